"""Watching a training: each collapse is seen when it comes, and healthy trainings are left alone."""

import pytest
import torch

from eval.errors import DivergedError
from eval.task import Examples
from teachers.anatomy.encoder import layer_parts, layers
from teachers.losses.loss import Objective
from teachers.losses.task_loss import BoundTaskLoss
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.monitor import Monitor, Signs, attends, collapses, constant, spread
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

STILL = Training(epochs=1, learning_rate=1e-12, batch_size=8)
"""A training that changes nothing by itself."""
PLAIN = ("bert", "roberta", "ernie", "distilbert", "albert", "electra", "mobilebert")


@pytest.fixture
def task():
    return tiny_task("classification")


class Breaks(Objective):
    """An objective under which the student is broken by hand in the first optimizer step."""

    def __init__(self, change):
        self.change = change

    def bind(self, student, rows):
        del rows

        class Loss(BoundTaskLoss):
            def __call__(loss, outputs, batch):  # noqa: N805
                with torch.no_grad():
                    self.change(student.model)
                return super().__call__(outputs, batch)

        return Loss(student.task)


def stop(family, task, change):
    student = tiny_taskmodel(family, task.spec)
    message = r"training of model collapsed after step 5: .*; try a learning rate"
    with pytest.raises(DivergedError, match=message) as error:
        train(student, task.train, Breaks(change), STILL, validation=task.validation)
    return str(error.value)


def silence(model):
    """Give every token the same weight: no query asks for anything."""
    for layer in layers(model):
        for name in ("weight", "bias"):
            getattr(layer_parts(model, layer)["query"], name).data.zero_()


def stare(model):
    """Let all queries ask for the first channel of each head, which one token has far more of than the others."""
    for layer in layers(model):
        parts = layer_parts(model, layer)
        for name in ("query", "key"):
            parts[name].weight.data.zero_()
        parts["query"].bias.data.fill_(1e4)
        parts["key"].bias.data.zero_()
        parts["key"].weight.data[:, 0] = 1.0


def flatten(model):
    """Make the last layer's norm add the same large bias to every state."""
    norm = layer_parts(model, layers(model)[-1])["ffn_norm"]
    norm.weight.data.fill_(3e-3)
    norm.bias.data.copy_(torch.linspace(0, 1, len(norm.bias)))


def mute(model):
    for parameter in model.classifier.parameters():
        parameter.data.zero_()


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert"])
def test_attention_that_no_longer_chooses_stops_the_run(family, task):
    assert "every attention head looks at all tokens alike or at one alone" in stop(family, task, silence)


def test_attention_on_one_token_alone_stops_the_run(task):
    assert "every attention head looks at all tokens alike or at one alone" in stop("bert", task, stare)


def test_one_living_head_is_enough(task):
    student = tiny_taskmodel("bert", task.spec)

    def all_but_one(model):
        query = layer_parts(model, layers(model)[-1])["query"]
        kept = query.weight.detach()[:8].clone()
        silence(model)
        query.weight.data[:8] = kept

    train(student, task.train, Breaks(all_but_one), STILL, validation=task.validation)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_parallel_hidden_states_stop_the_run(family, task):
    said = stop(family, task, flatten)
    assert "the last hidden states of different inputs point the same way" in said
    assert "smaller weights of losses on hidden states and attention" in said


def test_constant_outputs_stop_the_run(task):
    said = stop("bert", task, mute)
    assert "it gives the same output for every input; try a learning rate below 1e-12" in said
    assert "attention head" not in said


@pytest.mark.parametrize("kind", ["tagging", "qa", "masked-lm"])
def test_the_same_output_for_every_token_is_constant_too(kind):
    task = tiny_task(kind)

    def nothing(model):
        head = next(reversed([m for m in model.modules() if isinstance(m, torch.nn.Linear)]))
        head.weight.data.zero_()

    assert "same output for every input" in stop("bert", task, nothing)


@pytest.mark.parametrize("change", [silence, stare, flatten])
def test_what_was_so_from_the_beginning_goes_on(change, task):
    student = tiny_taskmodel("bert", task.spec)
    with torch.no_grad():
        change(student.model)
    (entry,) = train(student, task.train, training=STILL, validation=task.validation)
    assert entry["step"] == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_training_goes_on(family, task):
    student = tiny_taskmodel(family, task.spec)
    training = Training(epochs=4, learning_rate=1e-3, batch_size=8)
    history = train(student, task.train, training=training, validation=task.validation, seed=1)
    assert len(history) == 4
    before = Monitor(student, task.validation).before
    assert before.spread > 1e-3
    assert before.attends is (True if family in PLAIN else None)
    assert not before.constant


@pytest.mark.parametrize("kind", ["regression", "tagging", "qa", "masked-lm"])
def test_a_healthy_training_of_every_kind_goes_on(kind):
    task = tiny_task(kind)
    student = tiny_taskmodel("bert", task.spec)
    training = Training(epochs=4, learning_rate=1e-3, batch_size=8)
    assert len(train(student, task.train, training=training, validation=task.validation)) == 4


def test_a_network_without_layers_is_judged_by_its_outputs(task, monkeypatch):
    monkeypatch.setattr("teachers.training.monitor.layer_count", lambda _: 0)
    student = tiny_taskmodel("bert", task.spec)
    watch = Monitor(student, task.validation)
    assert watch.before == Signs(constant=False, spread=None, attends=None)
    with torch.no_grad():
        flatten(student.model)
        silence(student.model)
    watch.refuse_collapse(1, 1e-4)
    assert collapses(watch.before, Signs(constant=True)) == ["it gives the same output for every input"]


def test_equal_inputs_tell_nothing(task):
    same = Examples([task.validation[0]] * 5, "validation")
    watch = Monitor(tiny_taskmodel("bert", task.spec), same)
    assert watch.before is None
    watch.refuse_collapse(1, 1e-4)


def test_the_signs_by_hand():
    mask = torch.tensor([[True, True, True], [True, True, False]])
    states = torch.zeros(2, 3, 2)
    states[0, :, 0], states[1, :2, 1] = 1.0, 2.0
    states[1, 2] = 99.0
    assert spread(states, mask) == pytest.approx(1.0), "the states are at right angles, padding left out"
    assert constant(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), mask)
    assert not constant(torch.tensor([[1.0, 2.0], [1.0, 2.1]]), mask)
    token_logits = torch.ones(2, 3, 2)
    token_logits[1, 2] = 7.0
    assert constant(token_logits, mask), "padding is not looked at"

    zeros, random = torch.zeros(2, 3, 4), torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    assert not attends(zeros, random, mask, 2)
    assert attends(random, random, mask, 2)
    first = torch.zeros(2, 3, 4)
    first[:, 0] = 1.0
    assert not attends(torch.full((2, 3, 4), 100.0), first, mask, 2), "all on the first token"


def test_agreement_and_score_are_told(task, tmp_path):
    teacher = tiny_taskmodel("bert", task.spec, seed=1)
    watch = Monitor(teacher, task.validation, ModelTeacher(teacher, cache=tmp_path))
    figures = watch.figures()
    assert figures["agreement"] == 1.0
    assert figures["score"] == figures["scores"]["accuracy"]
