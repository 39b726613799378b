"""The scene of hostile cases, made once."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """\
name: small
seed: 13
task: {kind: classification, data: data, max_length: 32}
teacher: {model: model}
student: {from: teacher, layers: [0, 2]}
training: {max_steps: 2, learning_rate: 1.0e-3, batch_size: 8}
steps:
  - distill.logits: {temperature: 2.0, alpha: 0.9}
export:
  - onnx
evaluate: {against: teacher, latency: null}
"""


@pytest.fixture(scope="session")
def pristine(made_once, forker):
    """A scene in which all is well."""
    return made_once("pristine", lambda scene: fill(scene, forker))


def fill(scene, forker):
    from teachers.taskmodel import save_taskmodel

    task = tiny_task("classification")
    for name in ("data", "model", "home"):
        (scene / name).mkdir(parents=True)
    for name, split in task.splits.items():
        lines = "".join(json.dumps(dict(item)) + "\n" for item in split)
        (scene / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    save_taskmodel(tiny_taskmodel("bert", task.spec), scene / "model")
    (scene / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    ran = forker.run(
        ["run", "recipe.yaml", "--out", "made"], cwd=scene, env={"COMPRESS_HOME": str(scene / "home")}, seconds=300
    )
    assert ran.code == 0, ran.err
    (scene / "made" / "model").rename(scene / "artifact")
    (scene / "made" / "onnx").rename(scene / "export")
    for name in ("made", "home"):
        shutil.rmtree(scene / name)
    (scene / "home").mkdir()
