"""Results load where this project is not installed, and the project works where its sources are not."""

import email
import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import compress
from compress.distill.logits import LogitDistillation
from compress.engine.steps import run
from compress.prune.layers import LayerPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.inference import predict
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
"""Pythons that the package is for."""
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


@pytest.mark.slow
def test_students_load_with_stock_classes_where_the_project_is_blocked(students, tmp_path):
    check(sys.executable, students, tmp_path, "--blocked")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The source distribution, and the wheel that is built from it."""
    root = tmp_path_factory.mktemp("distributions")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(root), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(root.glob("*.tar.gz")), next(root.glob("*.whl"))


def interpreter(version):
    """Return a Python of this version: the one that runs, pyenv's or that of the search path; None if there is none."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


@pytest.fixture(scope="module", params=VERSIONS)
def clean(request, tmp_path_factory):
    """The Python of a virtual environment with torch and transformers and nothing of ours."""
    base = interpreter(request.param)
    if base is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    root = tmp_path_factory.mktemp("clean")
    subprocess.run([base, "-m", "venv", str(root)], check=True, capture_output=True)
    python = root / "bin" / "python"
    pip_install(python, "torch==2.13.0")
    pip_install(python, "transformers")
    yield python
    shutil.rmtree(root)  # gigabytes where torch comes with CUDA


def pip_install(python, what):
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(what)], check=True, capture_output=True)


def own(name):
    """Whether a file of the repository belongs to one of the packages."""
    return name.split("/")[0] in ("compress", "eval", "teachers")


@pytest.mark.slow
def test_the_distributions_hold_the_packages_and_nothing_else(distributions):
    source, wheel = distributions
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    tracked = {name for name in listed if own(name)}
    assert {"compress/recipes/sst2-pkd.yaml", "compress/demo/grammar.py", "eval/py.typed"} <= tracked
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        (scripts,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/entry_points.txt")]
    assert {name for name in names if ".dist-info/" not in name} == tracked
    with tarfile.open(source) as archive:
        members = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {name for name in members if own(name)} == tracked
    about = {name for name in members if not own(name) and "egg-info" not in name}
    assert about == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    check_metadata(email.message_from_string(metadata))
    assert scripts.split("\n") == [
        *("[console_scripts]", "compress = compress.cli:main", "nlp-compress = compress.cli:main", "")
    ]


def check_metadata(metadata):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Name"], metadata["Version"]) == ("nlp-compress", compress.__version__)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert metadata.get_all("Provides-Extra") == list(project["optional-dependencies"])
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert required == project["dependencies"]
    supported = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier") if "Python :: 3." in line}
    assert supported == set(VERSIONS)


@pytest.mark.slow
def test_students_load_in_a_clean_environment(students, clean, tmp_path):
    check(clean, students, tmp_path)


@pytest.mark.slow
def test_the_wheel_works_outside_of_the_repository(students, clean, distributions, tmp_path):
    pip_install(clean, distributions[1])
    command = clean.parent / "nlp-compress"
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
    (tmp_path / "train.txt").write_text("One sentence. Another one.\n" * 50, encoding="utf-8")
    (tmp_path / "teach.yaml").write_text(
        "name: own\nseed: 1\nteacher: {pretrain: {text: train.txt, tokenizer: {kind: wordpiece, size: 100},"
        " network: {family: bert, layers: 1, hidden_size: 16, heads: 2}, stages: [{length: 16, tasks: {text:"
        " {objectives: mlm}}}]}}\n"
    )
    subprocess.run([command, "check", "teach.yaml"], cwd=tmp_path, check=True)
    subprocess.run([command, "recipes", "sst2-pkd"], cwd=tmp_path, check=True)
    subprocess.run([clean.parent / "compress", "check", "sst2-pkd.yaml", "--file-only"], cwd=tmp_path, check=True)
