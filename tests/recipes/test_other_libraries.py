"""Saved folders open in sentence-transformers and model2vec where nothing of ours is there, with the same numbers."""

import json
import site
import subprocess
import sys

import numpy as np
import pytest

from compress.distill.static import StaticDistillation
from compress.engine.steps import run
from compress.prune.layers import LayerPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.inference import predict
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import tiny_task, tiny_taskmodel

TEXTS = ["a good day", "a sad and very dull song", "the day " * 40]
PAIRS = [["a good day", "a bad day"], ["the day " * 40, "a song"]]
THEIRS = """
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("compress", "teachers", "eval"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from model2vec import StaticModel
from sentence_transformers import CrossEncoder, SentenceTransformer
folders, texts, pairs = json.loads(sys.argv[1])
found = {name: SentenceTransformer(folders[name], device="cpu").encode(texts).tolist() for name in ("pruned", "static")}
found["model2vec"] = StaticModel.from_pretrained(folders["static"]).encode(texts).tolist()
search = SentenceTransformer(folders["search"], device="cpu")
found |= {"query": search.encode_query(texts).tolist(), "document": search.encode_document(texts).tolist()}
for name in ("scores", "classes", "reranker"):
    found[name] = CrossEncoder(folders[name], device="cpu").predict(pairs).tolist()
print("RESULT " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of a clean environment with the two libraries, which sees the packages of this one."""
    root = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True, capture_output=True)
    place = next((root / "lib").glob("python*/site-packages"))
    (place / "shared.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    found = root / "bin" / "python"
    install = [str(found), "-m", "pip", "install", "-q", "sentence-transformers", "model2vec"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the libraries cannot be installed here: {done.stderr.strip()[-200:]}")
    return found


@pytest.mark.slow
def test_they_give_our_numbers(python, tmp_path):
    task = tiny_task("embedding", pair=True)
    teacher = tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path / "signals"))
    static = StaticDistillation(max_steps=3, batch_size=8, embedding_size=12)
    models = {
        "pruned": run(Recipe(steps=(LayerPruning(keep=(0, 2)),)), teacher, inputs, dry_run_first=False),
        "static": run(Recipe(steps=(static,)), teacher, inputs, dry_run_first=False),
    }
    prompts = {"query_prompt": "query: ", "document_prompt": "the film is: "}
    specs = {
        "scores": tiny_task("regression", pair=True).spec,
        "classes": tiny_task("classification", pair=True).spec,
        "search": tiny_task("retrieval").spec.model_copy(update=prompts),
        "reranker": tiny_task("reranking").spec,
    }
    for name, spec in specs.items():
        source = tiny_taskmodel("bert", spec)
        models[name] = run(Recipe(steps=(LayerPruning(keep=(0, 2)),)), source, Inputs(), dry_run_first=False)
    folders = {name: str(model.save(tmp_path / name)) for name, model in models.items()}
    command = [str(python), "-c", THEIRS, json.dumps([folders, TEXTS, PAIRS])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(line.removeprefix("RESULT "))
    for name in ("pruned", "static"):
        own = np.stack([rows[0] for rows in predict(models[name], [{"text": text} for text in TEXTS]).logits])
        assert np.allclose(found[name], own, atol=1e-5), name
    assert np.allclose(found["model2vec"], found["static"], atol=1e-5)
    for role in ("query", "document"):
        asked = [{"text": text, "prompt_name": role} for text in TEXTS]
        assert np.allclose(found[role], np.concatenate(predict(models["search"], asked).logits), atol=1e-5), role
    for name in ("scores", "classes", "reranker"):
        own = np.stack(predict(models[name], [{"text_a": a, "text_b": b} for a, b in PAIRS]).logits)
        assert np.allclose(found[name], own.reshape(np.shape(found[name])), atol=1e-5), name
