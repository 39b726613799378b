"""docs/embedders.md: its programs run in the order of the page, from a folder of texts to a certified model."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from compress.cli import main
from compress.recipe import read_recipe
from eval.data.loading import load_task
from eval.inference import predict
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

PAGE = (Path(__file__).parents[2] / "docs" / "embedders.md").read_text(encoding="utf-8")
QUICK = ["training.max_steps=2", "evaluate.latency=null", "evaluate.margin=0.5"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """What the page begins with: an embedder, documents, and questions whose document is known."""
    queries = tiny_task("retrieval", examples=20).test
    corpus = queries[0]["corpus"]
    (tmp_path / "documents").mkdir()
    for name, text in zip(corpus.ids, corpus.texts, strict=True):
        (tmp_path / "documents" / f"{name}.txt").write_text(text, encoding="utf-8")
    rows = [{"question": query["text"], "document": next(iter(query["relevant"]))} for query in queries]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "my-embedder").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("embedding"), num_hidden_layers=6), tmp_path / "my-embedder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    return tmp_path


def test_its_programs_run_in_order(here, capsys):
    first, last = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (recipe,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    names = {}
    exec(compile(first, "docs/embedders.md", "exec"), names)
    asked = [json.loads(line) for line in (here / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    queries = load_task("retrieval", here / "judged").test
    assert {query["text"]: set(query["relevant"]) for query in queries} == {
        text: {one["document"] for one in asked if one["question"] == text}
        for text in {one["question"] for one in asked}
    }
    (here / "recipe.yaml").write_text(recipe, encoding="utf-8")
    assert read_recipe(here / "recipe.yaml").evaluate.index[1].rescore == "int8"
    for line in re.findall(r"^    (compress .*)$", PAGE, flags=re.MULTILINE):
        _, *words = shlex.split(line)
        if words[0] == "distill":
            continue  # tests/recipes/test_optimize.py runs it
        quick = [part for value in QUICK for part in ("--set", value)] if words[0] == "run" else []
        assert main([*words, *quick]) == 0, (line, capsys.readouterr().err)
    assert (here / "small.cert").is_file()
    results = json.loads((here / "runs" / "small" / "results.json").read_text(encoding="utf-8"))
    assert {"onnx-int8, index int8", "onnx-int8, index binary, 400 rescored by int8"} < {row["name"] for row in results}
    capsys.readouterr()
    exec(compile(last, "docs/embedders.md", "exec"), names)
    assert len(names["places"][0]) == 3
    assert f" {names['index'].bytes}" in capsys.readouterr().out
    assert names["index"].bytes == names["index"].form.bytes_of(len(names["files"]), 32)


def test_the_model_opens_in_the_library(here):
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    texts = ["a warm film", "a dull day"]
    theirs = library.SentenceTransformer(str(here / "my-embedder"), device="cpu").encode(texts)
    ours = predict(load_taskmodel(here / "my-embedder"), [{"text": text} for text in texts]).logits
    assert np.allclose(np.concatenate(ours), theirs, atol=1e-5)


def test_ten_lines_write_the_data():
    program = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    assert (
        len([line for line in program.splitlines() if line.strip() and not line.startswith(("import", "from"))]) <= 10
    )
