"""Parts that follow the steps of a training."""

import pytest
import torch
from torch import nn

from compress.distill.components.schedule import Schedule
from teachers.data.encoded_dataset import EncodedDataset
from teachers.finetuning.auxiliary_lm import gamma
from teachers.training.config import AuxiliaryLM, Training
from teachers.training.loop import train
from teachers.training.scheduled_modules import Scheduled, parameter_groups
from tests.tiny import tiny_task, tiny_taskmodel


class Gate(nn.Module):
    """Multiplies by a learned number, and settles when half of the training is over."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.calls = []

    def at_step(self, step, total):
        self.calls.append((step, total))
        return step >= total / 2

    def rates(self):
        return {"scale": 0.5}

    def forward(self, x):
        return x * self.scale


def gated():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    gate = Gate()
    model.model.classifier = nn.Sequential(gate, model.model.classifier)
    return task, model, gate


def test_parts_are_told_every_step_and_at_every_score():
    task, model, gate = gated()
    train(model, task.train[:32], training=Training(epochs=2, batch_size=16), validation=task.validation)
    assert gate.calls == [(0, 4), (1, 4), (2, 4), (2, 4), (3, 4), (4, 4)]


def test_weights_from_before_the_last_shape_are_not_kept(monkeypatch):
    task, model, gate = gated()
    gate.at_step = lambda step, total: step == total
    scores = iter([0.9, 0.5, 0.1])
    monkeypatch.setattr("teachers.training.monitor.Monitor.figures", lambda self: {"score": next(scores)})
    seen = []
    gate.register_forward_hook(lambda *_: seen.append(gate.scale.item()))
    train(model, task.train[:32], training=Training(epochs=3, batch_size=16), validation=task.validation)
    assert gate.scale.item() != 1.0
    _, other, free = gated()
    free.at_step = lambda step, total: True
    scores = iter([0.9, 0.5, 0.1])
    train(other, task.train[:32], training=Training(epochs=3, batch_size=16), validation=task.validation)
    assert gate.scale.item() != free.scale.item()  # the free one went back to its first epoch


def test_own_rates_have_their_own_group():
    _, model, gate = gated()
    parameters = list(model.model.parameters())
    groups = parameter_groups(parameters, Scheduled([model.model]).rates(), Training(weight_decay=0.1))
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.0]
    assert groups[-1]["params"] == [gate.scale]
    assert (groups[0]["peak"], groups[-1]["peak"]) == (Training().learning_rate, 0.5)
    assert sum(len(group["params"]) for group in groups) == len(parameters)


@pytest.fixture
def progress_of(monkeypatch):
    """Return what says how far a training of so many optimizer steps is at each of them."""
    found, batch = [], EncodedDataset.batch

    def noting(rows, numbers, epoch=0, progress=0.0):
        found.append(progress)
        return batch(rows, numbers, epoch, progress)

    def run(steps):
        found.clear()
        task = tiny_task("classification")
        training = Training(max_steps=steps, epochs=20, batch_size=16)
        train(tiny_taskmodel("bert", task.spec), task.train[:32], training=training)
        return list(found)

    monkeypatch.setattr(EncodedDataset, "batch", noting)
    return run


@pytest.mark.parametrize("schedule", [{"from": 4.0, "to": 1.0}, {"from": 0.1, "to": 0.7, "shape": "cosine"}])
def test_a_schedule_has_its_first_value_first_and_its_last_value_last(progress_of, schedule):
    own = Schedule(**schedule)
    found = [own.at(progress) for progress in progress_of(10)]
    assert (found[0], found[-1]) == (own.from_, own.to), "exactly"
    if own.shape == "linear":
        assert found == pytest.approx([4 - 3 * step / 9 for step in range(10)])
    assert [own.at(progress) for progress in progress_of(1)] == [own.to], "a single step is the last one"


def test_so_has_the_weight_of_the_auxiliary_language_model(progress_of):
    weight = AuxiliaryLM(start=0.3, end=0.7)
    found = [gamma(weight, progress) for progress in progress_of(5)]
    assert found == pytest.approx([0.3 * (7 / 3) ** (epoch / 4) for epoch in range(5)])
    assert (found[0], found[-1]) == (0.3, 0.7), "exactly"
    assert [gamma(weight, progress) for progress in progress_of(1)] == [0.7]
