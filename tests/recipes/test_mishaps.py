"""What goes wrong on a Monday: one clear message, the right exit code, and the last good artifact still there."""

import copy
import json
import re
from pathlib import Path

import pytest

from compress.artifact.artifact import load
from compress.cli import main
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """
name: small
task: {{kind: classification, data: "{data}"}}
teacher: {{model: "{teacher}"}}
student: {{from: teacher, layers: [0, 2]}}
training: {{max_steps: 3, batch_size: 8}}
steps:
  - distill.logits: {{alpha: 0.9}}
"""


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A good data set, a good teacher, a recipe, and a good artifact at OUT/model."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    (tmp_path / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "teacher")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(data=tmp_path / "data", teacher=tmp_path / "teacher"))
    return tmp_path


def run(scene, *more):
    return main(["run", str(scene / "recipe.yaml"), "--out", str(scene / "out"), *more])


def refused(scene, capsys, pattern, code=2, *more):
    assert run(scene, *more) == code
    err = capsys.readouterr().err
    assert re.search(pattern, err), err
    assert "Traceback" not in err
    return err


def test_truncated_weights(scene, capsys):
    weights = scene / "teacher" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    refused(scene, capsys, r"teacher: the weights could not be read .*is the folder complete\?")


def test_a_wrong_tokenizer(scene, capsys):
    config = json.loads((scene / "teacher" / "config.json").read_text())
    other = copy.deepcopy(tiny_taskmodel("bert", tiny_task("classification").spec).tokenizer)
    other.add_tokens([f"new{i}" for i in range(config["vocab_size"])])
    other.save_pretrained(scene / "teacher")
    refused(
        scene, capsys, r"the tokenizer gives ids up to \d+, the model knows \d+ tokens; they do not belong together"
    )


def test_a_label_unknown_to_the_model(scene, capsys):
    with (scene / "data" / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": "fine", "label": "superb"}) + "\n")
    refused(scene, capsys, r"the model answers \['bad', 'good'\].*superb")


def test_a_label_that_training_never_saw(scene, capsys):
    with (scene / "data" / "validation.jsonl").open("a") as file:
        file.write(json.dumps({"text": "fine", "label": "superb"}) + "\n")
    refused(scene, capsys, r"validation\.jsonl:\d+: .*'superb'")


def test_an_empty_file(scene, capsys):
    (scene / "data" / "train.jsonl").write_text("")
    refused(scene, capsys, r"train\.jsonl.*(empty|no example)")


def test_bad_lines_are_all_named_at_once(scene, capsys):
    path = scene / "data" / "train.jsonl"
    lines = path.read_bytes().splitlines()
    lines[3], lines[7], lines[9] = b'{"text": "caf\xe9", "label": "good"}', b"not json", b'{"text": "no label"}'
    path.write_bytes(b"\n".join(lines) + b"\n")
    err = refused(scene, capsys, r"train\.jsonl:4: .*UTF-8")
    assert re.search(r"train\.jsonl:8: .*JSON", err)
    assert re.search(r"train\.jsonl:10: .*label", err)


def test_bad_lines_can_be_skipped(scene, capsys):
    path = scene / "data" / "train.jsonl"
    path.write_bytes(path.read_bytes() + b"not json\n")
    assert run(scene, "--set", "task.on_bad=skip") == 0, capsys.readouterr().err


def test_a_loss_that_is_no_number(scene, capsys):
    wild = ["learning_rate=10", "warmup_steps=0", "max_grad_norm=0", "max_steps=60"]
    sets = [word for value in wild for word in ("--set", f"training.{value}")]
    refused(scene, capsys, r"diverged|not finite|collapsed", 1, *sets)
    assert not (scene / "out" / "model").exists()


def test_a_full_disk_keeps_the_last_good_artifact(scene, capsys, monkeypatch):
    assert run(scene) == 0
    digest = load(scene / "out" / "model").digest

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compress.artifact.store.save_taskmodel", full)
    refused(scene, capsys, r"the disk is full \(.+\); free some space", 1, "--resume")
    assert load(scene / "out" / "model").digest == digest
    left = [path.name for path in Path(scene / "out").rglob("*.writing*")]
    assert left == []
