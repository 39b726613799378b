"""Two processes train as one with the same global batch."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task

ROOT = Path(__file__).parents[2]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
CODE = """
import json, os, sys
from pathlib import Path
import torch
from eval.inference import predict
from eval.task import Examples
from teachers.training.config import Training
from teachers.training.loop import train
from tests.tiny import THINGS, tiny_task, tiny_taskmodel

task = tiny_task("classification")
student = tiny_taskmodel("bert", task.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
training = Training(epochs=2, batch_size=8, learning_rate=1e-3)
folder = Path(sys.argv[1]) / "working"
train_examples, objective = task.train, None
if sys.argv[2] == "projections":  # maps to a wider teacher are trained beside the student
    from compress.distill.tinybert import TinyBertDistillation
    from compress.technique import Inputs
    from teachers.signals.model_teacher import ModelTeacher
    teacher = tiny_taskmodel("bert", task.spec, seed=1, hidden_size=48)
    inputs = Inputs(teacher=ModelTeacher(teacher, budget_bytes=0))
    objective = TinyBertDistillation(attention=0).make_objective(inputs)
    # Texts of one length: a loss over tokens is averaged in each process, and then both weigh alike.
    words = {"good": "good", "dull": "bad"}
    train_examples = Examples([{"text": f"the {t} is {w}", "label": words[w]} for t in THINGS for w in words], "train")
if sys.argv[2] == "a row left":  # the last batch of an epoch has one row, and a process has none
    training = training.model_copy(update={"batch_size": 5, "gradient_accumulation_steps": 2})
    train_examples = task.train[:21]
if sys.argv[2] in ("pairs", "queries"):  # three groups of rows, of which two processes get two and one
    from teachers.losses.catalogue import CosineRegression, PairwiseRanking
    from tests.parity.test_ranking import ranked
    ranks = sys.argv[2] == "queries"
    task = ranked() if ranks else tiny_task("embedding", pair=True)
    objective = PairwiseRanking() if ranks else CosineRegression()
    student = tiny_taskmodel("bert", task.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    training = training.model_copy(update={"batch_size": 12 if ranks else 6})
    train_examples = task.train
if sys.argv[2] == "unfreezing":
    training = training.model_copy(update={"unfreeze": 0.8, "layer_decay": 0.5, "schedule": "slanted_triangular"})
if sys.argv[2] == "language":
    from teachers.finetuning.auxiliary_lm import WithLanguageModel
    objective = WithLanguageModel()
torch.manual_seed(int(os.environ.get("RANK", "0")))  # chance differs between processes; training must not
history = train(student, train_examples, objective, training, seed=3, validation=task.validation, folder=folder)
if os.environ.get("RANK", "0") == "0":
    logits = predict(student, task.validation).logits
    if sys.argv[2] == "queries":  # ranking leaves the bias of the scores alone, and so to rounding
        logits = [row - logits[0] for row in logits]
    (Path(sys.argv[1]) / "found.json").write_text(json.dumps([history, [row.tolist() for row in logits]]))
"""


PRETRAINING = """
import json, os, sys
from pathlib import Path
import torch
from teachers.pretraining import pretrain as module
from teachers.pretraining.settings import Pretraining

folder, what = Path(sys.argv[1]), sys.argv[2]
network = {"layers": 2, "hidden_size": 16, "heads": 2, "max_positions": 64}
network["options"] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
words = {"objectives": {"mlm": {"units": "word"}, "in_document": {}}}
training = {"max_steps": 12, "batch_size": 8, "learning_rate": 1e-3, "checkpoint_seconds": 0}
if what == "a row each":  # some rows have nothing to answer
    training |= {"batch_size": 2, "max_steps": 24}
    words = {"objectives": {"mlm": {}, "word_structural": {"size": 8}}}
tasks = {"words": words, "order": {"pair": "sentence_order"}} if what == "two tasks" else {"words": words}
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


def trained_by_one_and_two(code, what, forker, tmp_path):
    """Return what a script wrote by itself, and as two processes."""
    script, one, two = tmp_path / "script.py", tmp_path / "one", tmp_path / "two"
    script.write_text(code)
    for folder in (one, two):
        folder.mkdir()
    ending = forker.run([str(script), str(one), what], cwd=ROOT, env={"COMPRESS_HOME": str(one / "home")}, seconds=300)
    assert ending.code == 0, ending.err[-2000:]
    home = str(two / "home")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COMPRESS_HOME": home}
    command = [*TWO, str(script), str(two), what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads((folder / "found.json").read_text()) for folder in (one, two)]


OTHERS = ("a row left", "projections", "unfreezing", "language", "pairs", "queries")


@pytest.mark.slow  # by default tests/conformance/test_updates.py compares two processes with one
@pytest.mark.parametrize("what", ["labels", *OTHERS])
def test_two_processes_train_as_one(what, forker, tmp_path):
    (one, own), (two, other) = trained_by_one_and_two(CODE, what, forker, tmp_path)
    assert [entry["loss"] for entry in two] == pytest.approx([entry["loss"] for entry in one], abs=1e-5)
    # AdamW turns rounding into steps where a gradient is 0 by symmetry (the key's bias), so outputs are compared.
    assert np.allclose(own, other, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["one task", "two tasks", "a row each"])
def test_two_processes_pretrain_as_one(what, forker, tmp_path):
    places = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi")
    (tmp_path / "text").mkdir()
    text = [f"The film in {place} was good. {other} is a warm room.\n" for place in places for other in places]
    (tmp_path / "text" / "train.txt").write_text("".join(text), encoding="utf-8")
    (one, own), (two, other) = trained_by_one_and_two(PRETRAINING, what, forker, tmp_path)
    terms = [[entry["terms"][name] for name in sorted(entry["terms"])] for entry in one]
    same = [[entry["terms"][name] for name in sorted(entry["terms"])] for entry in two]
    assert len(terms[0]) == (3 if what == "two tasks" else 2)
    for first, second in zip(terms, same, strict=True):
        assert second == pytest.approx(first, abs=1e-4)
    assert np.allclose(own, other, atol=1e-3)


RECIPE = """
name: two
task: {{kind: classification, data: "{here}/data", metric: accuracy}}
teacher:
  pretrain:
    text: {here}/text
    tokenizer: {{size: 120}}
    network: {{layers: 2, hidden_size: 16, heads: 2, max_positions: 64}}
    stages:
      - length: 32
        training: {{epochs: 60, batch_size: 8, learning_rate: 1.0e-3, checkpoint_seconds: 0, report_steps: 60}}
        tasks: {{text: {{objectives: mlm}}}}
  finetune: {{epochs: 40, batch_size: 8, learning_rate: 1.0e-3, checkpoint_seconds: 0}}
"""


def teach(here, name, wait=True):
    """Teach as two processes, with dropout; what it says goes to a file."""
    with (here / f"{name}.log").open("a") as log:
        started = subprocess.Popen(
            [*TWO, "-m", "compress", "teach", "--recipe", str(here / "recipe.yaml"), "--out", str(here / name)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COMPRESS_HOME": str(here / f"{name}-home")},
            stdout=log,
            stderr=log,
        )
    if wait:
        assert started.wait() == 0, (here / f"{name}.log").read_text()[-6000:]
    return started


def kill(agent):
    """Kill torchrun with its workers, each of which has a session of its own."""
    everyone = [psutil.Process(agent), *psutil.Process(agent).children(recursive=True)]
    for process in everyone:
        process.kill()
    psutil.wait_procs(everyone)


@pytest.mark.slow
def test_two_killed_processes_teach_the_same(tmp_path):
    write_data(tiny_task("classification"), tmp_path / "data")
    (tmp_path / "text").mkdir()
    text = [
        f"The film in {a} was good. {b} is a warm room.\n" for a in ["Paris", "Rome", "Oslo"] for b in ["Ann", "Bob"]
    ]
    (tmp_path / "text" / "train.txt").write_text("".join(text * 6), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(here=tmp_path), encoding="utf-8")
    teach(tmp_path, "whole")
    said = (tmp_path / "whole.log").read_text()
    assert said.count("teacher: ") == 1, "one process speaks for both"
    expected = load_file(tmp_path / "whole" / "model.safetensors")
    kills = 0
    for kind in ("pretrained-*", "classification-*"):  # once within each of the two trainings
        running = teach(tmp_path, "killed", wait=False)
        while running.poll() is None:
            if list((tmp_path / "killed-home" / "teachers").glob(f"{kind}.working/**/checkpoint.safetensors")):
                kill(running.pid)
                kills += 1
                break
            time.sleep(0.005)
        running.wait()
    teach(tmp_path, "killed")
    assert kills == 2
    assert "resuming after step" in (tmp_path / "killed.log").read_text()
    found = load_file(tmp_path / "killed" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], tensor) for name, tensor in expected.items())


LATE = """
import os, time
from teachers.training import loop as training
from teachers.training.config import Training
from teachers.finetuning.finetune import finetune
from tests.tiny import tiny_task, tiny_taskmodel

load, late = training.load_weights, os.environ["RANK"] == "1"
training.load_weights = lambda *given: (time.sleep(late), load(*given))
task = tiny_task("classification")
finetune(tiny_taskmodel("bert", task.spec), task, Training(epochs=1, batch_size=8))
"""


@pytest.mark.slow
def test_the_first_process_waits_with_tidying(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COMPRESS_HOME": str(tmp_path)}
    done = subprocess.run([*TWO, str(tmp_path / "late.py")], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [path.name.split("-")[0] for path in (tmp_path / "teachers").iterdir()] == ["classification"]


@pytest.mark.slow
def test_a_run_is_for_one_process(tmp_path):
    done = subprocess.run(
        [*TWO, "-m", "compress", "run", "compress/recipes/demo.yaml", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "a recipe is run by one process; start it without torchrun" in done.stderr
    assert not (tmp_path / "out").exists()
