"""Two processes train as one with the same global batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import json, os, sys
from pathlib import Path
import torch
from eval.inference import predict
from eval.task import Examples
from teachers.config import Training
from teachers.training import train
from tests.tiny import THINGS, tiny_task, tiny_taskmodel

task = tiny_task("classification")
student = tiny_taskmodel("bert", task.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
training = Training(epochs=2, batch_size=8, learning_rate=1e-3)
folder = Path(sys.argv[1]) / "working"
train_examples, objective = task.train, None
if sys.argv[2] == "projections":  # maps to a wider teacher are trained beside the student
    from compress.distill.tinybert import TinyBertDistillation
    from compress.technique import Inputs
    from teachers.signals import ModelTeacher
    teacher = tiny_taskmodel("bert", task.spec, seed=1, hidden_size=48)
    inputs = Inputs(teacher=ModelTeacher(teacher, budget_bytes=0))
    objective = TinyBertDistillation(attention=0).make_objective(inputs)
    # Texts of one length: a loss over tokens is averaged in each process, and then both weigh alike.
    words = {"good": "good", "dull": "bad"}
    train_examples = Examples([{"text": f"the {t} is {w}", "label": words[w]} for t in THINGS for w in words], "train")
if sys.argv[2] == "unfreezing":
    training = training.model_copy(update={"unfreeze": 0.8, "layer_decay": 0.5, "schedule": "slanted_triangular"})
if sys.argv[2] == "language":
    from teachers.auxiliary_lm import WithLanguageModel
    objective = WithLanguageModel()
torch.manual_seed(int(os.environ.get("RANK", "0")))  # chance differs between processes; training must not
history = train(student, train_examples, objective, training, seed=3, validation=task.validation, folder=folder)
if os.environ.get("RANK", "0") == "0":
    logits = [row.tolist() for row in predict(student, task.validation).logits]
    (Path(sys.argv[1]) / "found.json").write_text(json.dumps([history, logits]))
"""


PRETRAINING = """
import json, os, sys
from pathlib import Path
import torch
from teachers.pretraining import pretrain as module
from teachers.pretraining.recipe import Pretraining

folder, what = Path(sys.argv[1]), sys.argv[2]
network = {"layers": 2, "hidden_size": 16, "heads": 2, "max_positions": 64}
network["options"] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
words = {"objectives": {"masked_words": {"units": "word"}, "in_document": {}}}
tasks = {"words": words} if what == "one task" else {"words": words, "order": {"pair": "sentence_order"}}
training = {"max_steps": 12, "batch_size": 8, "learning_rate": 1e-3, "checkpoint_seconds": 0}
block = Pretraining(
    text=str(folder.parent / "text"), tokenizer={"size": 120}, network=network,
    stages=[{"tasks": tasks, "length": 32, "training": training}],
)
torch.manual_seed(int(os.environ.get("RANK", "0")))
run = module._Run(block, 3)
facts = run.train(folder / "working")
if os.environ.get("RANK", "0") == "0":
    network = run.student.model.bert
    with torch.inference_mode():
        states = network(input_ids=torch.arange(10, 30)[None]).last_hidden_state
    (folder / "found.json").write_text(json.dumps([facts["stages"][0]["history"], states.tolist()]))
"""


def trained_by_one_and_two(code, what, tmp_path):
    """Return what a script wrote by itself, and as two processes."""
    script = tmp_path / "script.py"
    script.write_text(code)
    found = []
    for name, command in (
        ("one", [sys.executable]),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29511"]),
    ):
        (tmp_path / name).mkdir()
        home = str(tmp_path / name / "home")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COMPRESS_HOME": home}
        done = subprocess.run(
            [*command, str(script), str(tmp_path / name), what],
            env=environment,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads((tmp_path / name / "found.json").read_text()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["labels", "projections", "unfreezing"])
def test_two_processes_train_as_one(what, tmp_path):
    (one, own), (two, other) = trained_by_one_and_two(CODE, what, tmp_path)
    assert [entry["loss"] for entry in two] == pytest.approx([entry["loss"] for entry in one], abs=1e-5)
    # AdamW turns rounding into steps where a gradient is 0 by symmetry (the key's bias), so outputs are compared.
    assert np.allclose(own, other, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["one task", "two tasks"])
def test_two_processes_pretrain_as_one(what, tmp_path):
    places = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi")
    (tmp_path / "text").mkdir()
    text = [f"The film in {place} was good. {other} is a warm room.\n" for place in places for other in places]
    (tmp_path / "text" / "train.txt").write_text("".join(text), encoding="utf-8")
    (one, own), (two, other) = trained_by_one_and_two(PRETRAINING, what, tmp_path)
    terms = [[entry["terms"][name] for name in sorted(entry["terms"])] for entry in one]
    same = [[entry["terms"][name] for name in sorted(entry["terms"])] for entry in two]
    assert len(terms[0]) == (2 if what == "one task" else 3)
    for first, second in zip(terms, same, strict=True):
        assert second == pytest.approx(first, abs=1e-4)
    assert np.allclose(own, other, atol=1e-3)
