"""A run that is killed at any moment and started again ends with the same weights, bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compress.store import load
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
TIMES = 20
RECIPE = """
name: killed
task: {{kind: classification, data: "{data}"}}
teacher: {{model: "{teacher}", finetune: {{epochs: 6, batch_size: 4, checkpoint_seconds: 0}}}}
student: {{from: teacher, layers: [0, 2]}}
training: {{epochs: 6, batch_size: 4, checkpoint_seconds: 0}}
steps:
  - prune.layers: {{keep: [0]}}
  - distill.logits: {{alpha: 0.9}}
  - distill.distilbert
"""


def start(recipe, out, home):
    """Start a run; what it says goes to a file beside its folder."""
    log = out.with_suffix(".log")
    with log.open("w") as file:
        return _start(recipe, out, home, file)


def _start(recipe, out, home, file):
    return subprocess.Popen(
        [sys.executable, "-m", "compress", "run", str(recipe), "--out", str(out), "--resume"],
        cwd=ROOT,
        env={**os.environ, "COMPRESS_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=file,
    )


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    (tmp_path / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "teacher")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(data=tmp_path / "data", teacher=tmp_path / "teacher"))
    began = time.perf_counter()
    whole = start(recipe, tmp_path / "whole", tmp_path / "home")
    assert whole.wait() == 0, (tmp_path / "whole.log").read_text()
    seconds = time.perf_counter() - began
    expected = load(tmp_path / "whole" / "model")
    chance = random.Random(13)
    kills = 0
    for number in range(TIMES):
        out, home = tmp_path / f"out{number}", tmp_path / f"home{number}"
        killed = start(recipe, out, home)
        # Most of a run is loading libraries; kill in the later part, where there is something to lose.
        time.sleep(seconds * chance.uniform(0.4, 1.0))
        if killed.poll() is None:
            killed.send_signal(signal.SIGKILL)
            kills += 1
        killed.wait()
        again = start(recipe, out, home)
        assert again.wait() == 0, out.with_suffix(".log").read_text()
        found = load(out / "model")
        assert found.digest == expected.digest, f"run {number}"
        assert [r.weights_after for r in found.lineage] == [r.weights_after for r in expected.lineage]
    assert kills >= TIMES // 2, "most runs ended before they were killed"
