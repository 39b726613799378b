"""A folder with data, a teacher and a recipe; and a way to call commands in this process."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from compress.cli import main
from tests.tiny import tiny_task, tiny_taskmodel
from tests.undrawn import undrawn

__all__ = ["call", "cells", "home", "place", "ran", "undrawn"]

ROOT = Path(__file__).parents[3]
RECIPE = """\
name: small
seed: 13
task: {{kind: classification, data: {data}, max_length: 32}}
teacher: {{model: {teacher}}}
student: {{from: teacher, layers: [0, 2]}}
training: {{epochs: 1, learning_rate: 1.0e-3, batch_size: 8}}
steps:
  - distill.logits: {{temperature: 2.0, alpha: 0.9}}
  - prune.layers: {{keep: [0]}}
evaluate: {{against: teacher, latency: null}}
"""


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with data, a teacher and a recipe."""
    from teachers.taskmodel import save_taskmodel

    folder = tmp_path_factory.mktemp("cli")
    task = tiny_task("classification")
    (folder / "data").mkdir()
    for name, split in task.splits.items():
        lines = "".join(json.dumps(dict(item)) + "\n" for item in split)
        (folder / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), folder / "teacher")
    text = RECIPE.format(data=folder / "data", teacher=folder / "teacher")
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def call(capsys):
    """Run a command; return its exit code, what it printed, and what it said on standard error."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def cells(text, first):
    """Return the cells of the table row that begins with ``first``."""
    (row,) = [line for line in text.splitlines() if line.split("  ")[0].strip() == first]
    return [cell.strip() for cell in re.split(r"\s{2,}", row.strip())]


@pytest.fixture(scope="session")
def ran(place):
    """The folder of a recipe that was run, with an export, and what the command printed."""
    out = place / "out"
    changes = [f"--set={change}" for change in ("export=[onnx]", "steps.distill.logits.epochs=2")]
    out_text, error_text = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out_text), redirect_stderr(error_text):
        patch.setenv("COMPRESS_HOME", str(place / "home"))
        code = main(["run", str(place / "recipe.yaml"), "--out", str(out), "--json", *changes])
    assert code == 0, error_text.getvalue()
    return out, json.loads(out_text.getvalue()), error_text.getvalue()
