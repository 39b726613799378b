"""The lower ends of the ranges in pyproject.toml: everything in its oldest version, in an environment of its own.

torch is the exception: the range begins at 2.11, which images of GPU machines have, and the build of it that a package
index gives is one of gigabytes for CUDA, so nothing tests it here.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CODE = """
import json
from pathlib import Path
from compress.cli import main
from compress.testing.tiny import tiny_task, tiny_taskmodel
from teachers.taskmodel import save_taskmodel

task = tiny_task("classification", examples=16)
Path("data").mkdir()
for name, split in task.splits.items():
    Path("data", f"{name}.jsonl").write_text("".join(json.dumps(dict(one)) + "\\n" for one in split))
save_taskmodel(tiny_taskmodel("bert", task.spec), Path("base"))
Path("recipe.yaml").write_text('''
name: oldest
task: {kind: classification, data: data, max_length: 32}
teacher: {model: base, finetune: {max_steps: 2, batch_size: 8}}
student: {from: teacher, layers: [0, 2]}
training: {max_steps: 2, learning_rate: 1.0e-3, batch_size: 8}
steps:
  - distill.logits: {temperature: 2.0, alpha: 0.9}
  - prune.magnitude: {sparsity: 0.3}
  - quantize.qbert: {bits: 4, portions: 2, portion_examples: 4, power_steps: 3}
export: [{onnx: {int8: true, agreement: 0.1}}]
evaluate: {against: teacher, latency: null}
''')
assert main(["check", "recipe.yaml"]) == 0
assert main(["run", "recipe.yaml", "--out", "out"]) == 0
assert main(["eval", "out/model", "--data", "data", "--against", "base"]) == 0
for export in ("onnx", "onnx-int8"):
    assert main(["verify", f"out/{export}"]) == 0
    assert main(["predict", f"out/{export}", "a warm and lovely film"]) == 0
print("all is well")
"""


def floors():
    """Return every requirement in its oldest version; torch is here already."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = [requirement.split(">=") for requirement in project["dependencies"]]
    assert all(len(parts) == 2 for parts in ranges), "every requirement says from which version on it is"
    return [f"{name}=={version}" for name, version in ranges if name != "torch"]


@pytest.mark.slow
def test_a_recipe_runs_with_the_oldest_versions(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "oldest")], check=True)
    python = tmp_path / "oldest" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"torch=={torch.__version__.split('+')[0]}"], check=True)
    subprocess.run([*pip, *floors()], check=True)
    (tmp_path / "place").mkdir()
    done = subprocess.run(
        [str(python), "-c", CODE],
        cwd=tmp_path / "place",
        env={**os.environ, "PYTHONPATH": str(ROOT), "COMPRESS_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("all is well")
