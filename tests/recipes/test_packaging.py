"""Results load where this project is not installed, and the project works where its sources are not."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from compress.distill.logits import LogitDistillation
from compress.engine.steps import run
from compress.prune.layers import LayerPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.inference import predict
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
STOCK = """
import sys, json
if "--blocked" in sys.argv:
    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("compress", "teachers", "eval"):
                raise ImportError(f"{name} is blocked")
    sys.meta_path.insert(0, Blocked())
try:
    import compress
    raise SystemExit("compress can be imported here")
except ImportError:
    pass
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
found = {}
for folder in json.loads(sys.argv[1]):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    # XLNet was trained with token types, which its tokenizer only gives when asked.
    types = {"return_token_type_ids": True} if model.config.model_type == "xlnet" else {}
    inputs = AutoTokenizer.from_pretrained(folder)("a good day", return_tensors="pt", **types)
    with torch.no_grad():
        found[folder] = model(**inputs).logits[0].tolist()
print("RESULT " + json.dumps([found, model.config.id2label]))
"""


@pytest.fixture(autouse=True)
def no_sources_on_the_path(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def students(tmp_path_factory):
    """Cut and distilled students of every family, saved, with their logits for one sentence."""
    task, root = tiny_task("classification"), tmp_path_factory.mktemp("students")
    found = {}
    for family in FAMILIES:
        teacher = tiny_taskmodel(family, task.spec)
        inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=root / "signals"))
        steps = (LayerPruning(keep=(0, 2)), LogitDistillation(max_steps=2))
        student = run(Recipe(steps=steps), teacher, inputs, dry_run_first=False)
        student.save(root / family)
        found[str(root / family)] = predict(student, [{"text": "a good day"}]).logits[0]
    return found


def check(python, students, folder, *more):
    command = [str(python), "-c", STOCK, json.dumps(list(students)), *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found, labels = json.loads(line.removeprefix("RESULT "))
    assert labels == {"0": "bad", "1": "good"}
    for name, logits in students.items():
        assert np.allclose(found[name], logits, atol=1e-5), name


def test_students_load_with_stock_classes_where_the_project_is_blocked(students, tmp_path):
    check(sys.executable, students, tmp_path, "--blocked")


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A virtual environment with torch and transformers and nothing of ours, and the wheel."""
    root = tmp_path_factory.mktemp("clean")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(root), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(root / "venv", with_pip=True)
    python = root / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "torch==2.13.0"], check=True, capture_output=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", "transformers"], check=True, capture_output=True)
    (wheel,) = root.glob("*.whl")
    return python, wheel


@pytest.mark.slow
def test_students_load_in_a_clean_environment(students, clean, tmp_path):
    check(clean[0], students, tmp_path)


@pytest.mark.slow
def test_the_wheel_works_outside_of_the_repository(students, clean, tmp_path):
    python, wheel = clean
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(wheel)], check=True, capture_output=True)
    command = python.parent / "compress"
    listed = subprocess.run([command, "list", "--json"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "distill.logits" in listed.stdout
    (folder, *_) = students
    history = subprocess.run([command, "history", folder], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "prune.layers" in history.stdout
    out = tmp_path / "onnx"
    export = [command, "export", folder, "--to", "onnx", "--out", str(out)]
    done = subprocess.run(export, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = subprocess.run([command, "predict", str(out), "a good day"], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["label"] in ("bad", "good")
    (tmp_path / "text.txt").write_text("One sentence. Another one.\n" * 50, encoding="utf-8")
    (tmp_path / "teach.yaml").write_text(
        "name: own\nseed: 1\nteacher: {pretrain: {text: text.txt, tokenizer: {kind: wordpiece, size: 100},"
        " network: {family: bert, layers: 1, hidden_size: 16, heads: 2}, stages: [{length: 16, tasks: {text:"
        " {objectives: mlm}}}]}}\n"
    )
    subprocess.run([command, "check", "teach.yaml"], cwd=tmp_path, check=True)
    files = subprocess.run(
        [python, "-m", "pip", "show", "-f", "nlp-compress"], capture_output=True, text=True, check=True
    )
    assert "compress/py.typed" in files.stdout
    assert "compress/export/targets/page/index.html" in files.stdout
    assert "eval/report/templates/model_card.md.j2" in files.stdout
    assert "tests/" not in files.stdout
