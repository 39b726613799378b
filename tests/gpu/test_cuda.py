"""On a CUDA device: trainings, teachers, answers and kernels give what the processor gives. Run them with -m gpu."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from compress.distill.distilbert import DistilBertDistillation
from compress.engine.steps import run
from compress.quantize.bitsandbytes import BitsAndBytes
from compress.quantize.q8bert import Q8Bert
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.cost.size import device_of
from eval.inference import predict, predict_in_place
from eval.measurement import measure
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import Training
from teachers.training.loop import train
from tests.tiny import tiny_task, tiny_taskmodel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TRAINED = """
import sys
from safetensors.torch import save_file
from teachers.training.config import Training
from teachers.training.loop import train
from tests.tiny import tiny_task, tiny_taskmodel
task = tiny_task("classification")
model = tiny_taskmodel("bert", task.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
train(model, task.train, None, Training(epochs=3, batch_size=8, learning_rate=1e-3, precision="fp32"), seed=3)
save_file({name: tensor.contiguous() for name, tensor in model.model.state_dict().items()}, sys.argv[1])
"""


def trained(place, command=(), **environment):
    """Return the weights after a training in a process of its own."""
    code = place.with_suffix(".py")
    code.write_text(TRAINED)
    start = [sys.executable, *command, str(code), str(place)]
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        start,
        check=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    return load_file(place)


def largest_difference(first, second):
    return max(float(np.abs(first[name].astype(np.float64) - second[name]).max()) for name in first)


def test_a_training_in_float32_ends_where_the_processors_does(tmp_path):
    on_gpu = trained(tmp_path / "gpu.safetensors")
    on_cpu = trained(tmp_path / "cpu.safetensors", CUDA_VISIBLE_DEVICES="")
    alone = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
    launched = trained(tmp_path / "torchrun.safetensors", alone)
    assert largest_difference(on_gpu, on_cpu) < 2e-3
    assert largest_difference(launched, on_gpu) < 2e-3


def test_bf16_is_the_default_and_the_teacher_stays_on_the_processor():
    task = tiny_task("classification")
    teacher, student = tiny_taskmodel("bert", task.spec, seed=1), tiny_taskmodel("bert", task.spec)
    live = ModelTeacher(teacher, budget_bytes=0)
    objective = DistilBertDistillation().make_objective(Inputs(teacher=live))
    history = train(
        student, task.train, objective, Training(epochs=2, batch_size=8), seed=3, validation=task.validation
    )
    assert history[-1]["precision"] == "bf16"
    assert history[-1]["loss"] < history[0]["loss"]
    assert device_of(teacher.model) == CPU == device_of(student.model)


@pytest.mark.parametrize("kind", ["classification", "tagging", "qa", "embedding"])
def test_answers_are_those_of_the_processor(kind):
    task = tiny_task(kind)
    model = tiny_taskmodel("bert", task.spec)
    here = predict_in_place(model, task.validation).logits
    seen = []
    model.model.register_forward_hook(lambda *_: seen.append(device_of(model.model).type))
    there = predict(model, task.validation).logits
    assert set(seen) == {"cuda"}
    assert device_of(model.model) == CPU
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert measure(model, task).examples == len(task.validation)


def test_q8bert_learns_on_the_device_and_answers_the_same_on_both():
    task = tiny_task("classification")
    made = run(
        Recipe(steps=(Q8Bert(training=Training(epochs=1, batch_size=8)),)),
        tiny_taskmodel("bert", task.spec),
        Inputs(train=task.train),
        dry_run_first=False,
    )
    here, there = predict_in_place(made, task.validation), predict(made, task.validation)
    for one, other in zip(here.logits, there.logits, strict=True):
        np.testing.assert_allclose(one, other, atol=0.05)


@pytest.mark.parametrize("form", ["int8", "nf4"])
def test_kernels_of_bitsandbytes_answer_as_on_the_processor(form):
    pytest.importorskip("bitsandbytes")
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec, hidden_size=64, intermediate_size=128)
    made = run(Recipe(steps=(BitsAndBytes(format=form),)), model, dry_run_first=False)
    here, there = predict_in_place(made, task.validation), predict(made, task.validation)
    for one, other in zip(here.logits, there.logits, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
