"""A whole search at tiny size: what falls, what goes on, what wins, and that a kill or a second process changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compress.cli import main
from compress.recipe import read_recipe, recipe_to_plain
from compress.search.budget import read_budget
from compress.search.default_space import starts, template
from compress.search.limit import limit_from_plain
from compress.search.ranges import points_of, resolve
from eval.errors import UserError
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
BUDGET = """\
name: tiny
task: {kind: classification, data: data, max_length: 16}
teacher: {model: base, finetune: {max_steps: 40, batch_size: 16, learning_rate: 2.0e-3}}
limits: [bytes <= MOST, loss <= 20 points @ 95%]
optimise: [bytes, score]
candidates: 5
shares: [0.25, 1]
space: {template: space.yaml, start: start.yaml}
"""
SPACE = """\
student: {search: [null, {from: teacher, layers: [0, 2]}, {from: teacher, layers: [1]}]}
steps:
  - distill.logits: {max_steps: 8, batch_size: 16, learning_rate: {search: [1.0e-3, 3.0e-3]}, checkpoint_seconds: 0}
  - {search: [null, prune.vocabulary]}
  - {search: [null, prune.structured: {ffn: {search: {low: 0.25, high: 0.75}}, recover: false}]}
  - {search: [quantize.dynamic, null]}
export: [onnx: {agreement: 0.5}]
"""
START = """\
student: {from: teacher, layers: [1]}
steps:
  - distill.logits: {max_steps: 8, batch_size: 16, learning_rate: 3.0e-3, checkpoint_seconds: 0}
  - quantize.dynamic
export: [onnx: {agreement: 0.5}]
"""


def scene(folder, most="60 KB"):
    task = tiny_task("classification", examples=48)
    write_data(task, folder / "data")
    (folder / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), folder / "base")
    (folder / "budget.yaml").write_text(BUDGET.replace("MOST", most))
    (folder / "space.yaml").write_text(SPACE)
    (folder / "start.yaml").write_text(START)


@pytest.fixture
def place(tmp_path, monkeypatch):
    scene(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    return tmp_path


def facts(folder):
    return json.loads((folder / "search.json").read_text())


def told(found):
    """Return what must be alike whatever happened on the way: no seconds."""
    apart = {"seconds", "number"}
    found = {**found, "candidates": [{k: v for k, v in one.items() if k not in apart} for one in found["candidates"]]}
    return {key: value for key, value in found.items() if key not in ("seconds", "spent")}


def test_a_search_ends_with_a_winner_within_the_budget(place):
    assert main(["search", "budget.yaml", "--out", "out"]) == 0
    print(json.dumps(facts(place / "out"), indent=1))
