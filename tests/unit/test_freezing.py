"""Gradual unfreezing: what is trained when, what stays bit for bit, and that a stopped training goes on alike."""

import logging

import pytest
import torch
from pydantic import ValidationError

from eval.errors import UserError
from teachers.anatomy.encoder import head_parameters
from teachers.losses.loss import Objective
from teachers.losses.task_loss import BoundTaskLoss
from teachers.signals.hooks import SignalSpec
from teachers.taskmodel import weights_digest
from teachers.training.config import Training
from teachers.training.freezing import Unfreezing, freeze, unfreezing
from teachers.training.layer_groups import layer_groups
from teachers.training.loop import train
from tests.stopping import StopsAt
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

QUICK = Training(epochs=3, learning_rate=3e-3, batch_size=8, checkpoint_seconds=0)


@pytest.fixture(scope="module")
def task():
    return tiny_task(examples=24)


def begins(groups, total):
    """Return for each group the first optimizer step at which it is trained."""
    parts = Unfreezing(groups, 1.0), Unfreezing(groups, 2.5)
    found = []
    for part in parts:
        first = {}
        for step in range(total):
            assert part.at_step(step, total)
            for number, group in enumerate(groups):
                if all(parameter.requires_grad for parameter in group):
                    first.setdefault(number, step)
        found.append([first.get(number) for number in range(len(groups))])
    return found


def test_groups_are_unfrozen_one_after_another():
    groups = [[torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1))] for _ in range(4)]
    assert begins(groups, 10) == [[0, 1, 2, 3], [0, 3, 5, 8]]


def test_the_state_depends_on_the_step_alone():
    groups = [[torch.nn.Parameter(torch.ones(2))] for _ in range(3)]
    part = Unfreezing(groups, 2.0)
    for step, trained in ((5, 3), (0, 1), (3, 2), (1, 1), (2, 2)):
        part.at_step(step, 9)
        assert [group[0].requires_grad for group in groups] == [number < trained for number in range(3)]
    assert list(part.parameters()) == [], "nothing is saved twice"


def test_a_part_of_the_training_is_divided_evenly_and_leaves_none_out(task):
    model = tiny_taskmodel("bert", task.spec).model
    parameters = list(model.parameters())
    for part, every in ((0.5, 20.0), (1.0, 40.0)):
        (found,) = unfreezing([model], parameters, Training(unfreeze=part), total=200, an_epoch=7)
        assert len(found.groups) == 5
        assert found.every == pytest.approx(every)
        found.at_step(200 * part - 1, 200)
        assert all(parameter.requires_grad for parameter in parameters)
    (found,) = unfreezing([model], parameters, Training(unfreeze="epoch"), total=200, an_epoch=7)
    assert found.every == 7
    assert list(unfreezing([model], parameters, Training(), total=200, an_epoch=7)) == []


def test_too_few_epochs_are_told(task, caplog):
    model = tiny_taskmodel("bert", task.spec).model
    with caplog.at_level(logging.WARNING, "teachers"):
        list(unfreezing([model], list(model.parameters()), Training(unfreeze="epoch"), total=21, an_epoch=7))
    assert "3 of 5 groups of layers are trained before the training ends" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "teachers"):
        list(unfreezing([model], list(model.parameters()), Training(unfreeze="epoch"), total=29, an_epoch=7))
    assert caplog.text == ""


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "albert", "modernbert", "mobilebert"))
def test_frozen_groups_stay_bit_for_bit_and_the_others_move(task, family):
    student = tiny_taskmodel(family, task.spec)
    groups = layer_groups(student.model)
    before = [[parameter.detach().clone() for parameter in group] for group in groups]
    train(student, task.train, training=QUICK.model_copy(update={"unfreeze": "epoch", "epochs": 2, "keep": "last"}))
    still = [
        all(torch.equal(new, old) for new, old in zip(group, olds, strict=True))
        for group, olds in zip(groups, before, strict=True)
    ]
    assert still == [False, False] + [True] * (len(groups) - 2)
    assert all(parameter.requires_grad for parameter in student.model.parameters()), "nothing is left frozen"


def test_dropout_of_frozen_layers_stays_active(task):
    student = tiny_taskmodel("bert", task.spec)
    modes = []
    student.model.bert.encoder.layer[0].register_forward_hook(lambda module, *_: modes.append(module.training))
    train(student, task.train, training=QUICK.model_copy(update={"unfreeze": "epoch", "epochs": 1}))
    assert modes == [True] * 3


def test_frozen_layers_have_no_moments_until_their_turn(task, tmp_path, monkeypatch):
    held = []
    monkeypatch.setattr(
        "teachers.training.loop.save_checkpoint",
        lambda folder, modules, optimizer, state, random: held.append(
            (state["step"], len(optimizer.state_dict()["state"]))
        ),
    )
    student = tiny_taskmodel("bert", task.spec)
    sizes = [len(group) for group in layer_groups(student.model)]
    train(student, task.train, training=QUICK.model_copy(update={"unfreeze": "epoch"}), folder=tmp_path)
    assert held == [(step, sum(sizes[: 1 + (step - 1) // 3])) for step in range(1, 10)]


@pytest.mark.parametrize("update", [2, 3, 5, 8])
@pytest.mark.parametrize("unfreeze", ["epoch", 0.7])
def test_a_stopped_training_goes_on_to_the_same_weights(task, tmp_path, update, unfreeze):
    training = QUICK.model_copy(update={"unfreeze": unfreeze, "layer_decay": 0.4, "schedule": "slanted_triangular"})
    whole, stopped, again = (tiny_taskmodel("bert", task.spec) for _ in range(3))
    train(whole, task.train, training=training, seed=3)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, task.train, StopsAt(update), training, seed=3, folder=tmp_path)
    train(again, task.train, training=training, seed=3, folder=tmp_path)
    assert weights_digest(again.model) == weights_digest(whole.model)
    assert weights_digest(stopped.model) != weights_digest(whole.model)


def test_what_is_frozen_for_good_is_not_unfrozen(task):
    student = tiny_taskmodel("bert", task.spec)
    words = student.model.bert.embeddings.word_embeddings.weight
    before = words.detach().clone()
    training = QUICK.model_copy(update={"unfreeze": 0.3, "freeze": ("embeddings",)})
    train(student, task.train, training=training)
    assert torch.equal(words, before)


def test_the_vector_of_padding_stays_silent_once_the_embeddings_are_trained(task):
    student = tiny_taskmodel("mobilebert", task.spec)
    words = student.model.mobilebert.embeddings.word_embeddings.weight
    before = words.detach().clone()
    train(student, task.train, training=QUICK.model_copy(update={"unfreeze": 0.3}))
    assert not torch.equal(words, before)
    assert not words[student.tokenizer.pad_token_id].any()


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "albert", "roberta"))
def test_a_frozen_encoder_leaves_the_head_with_its_pooler(task, family):
    student = tiny_taskmodel(family, task.spec)
    before = {name: parameter.detach().clone() for name, parameter in student.model.named_parameters()}
    train(student, task.train, training=QUICK.model_copy(update={"freeze": ("encoder",), "weight_decay": 0.1}))
    moved = {name for name, parameter in student.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == set(head_parameters(student.model))
    bare = tiny_taskmodel(family, tiny_spec("embedding"))
    freeze(bare.model, Training(freeze=("encoder",)))
    assert not any(parameter.requires_grad for parameter in bare.model.parameters())


def test_a_loss_of_which_nothing_is_trained_yet_is_refused(task):
    class FirstLayer(Objective):
        def bind(self, student, rows):
            class Loss(BoundTaskLoss):
                def __call__(self, outputs, batch):
                    return {"hidden": outputs.hidden_states[1].pow(2).mean()}

            return Loss(student.task, SignalSpec(hidden_states=(1,), logits=False))

    training = QUICK.model_copy(update={"unfreeze": "epoch"})
    with pytest.raises(UserError, match="nothing that the loss reads is trained; freeze less, or leave out unfreeze"):
        train(tiny_taskmodel("bert", task.spec), task.train, FirstLayer(), training)


def test_older_settings_are_written_down_as_before():
    assert not {"layer_decay", "unfreeze"} & Training().model_dump(mode="json").keys()
    assert Training(unfreeze=0.5, layer_decay=0.9).model_dump()["unfreeze"] == 0.5
    assert Training(layer_decay=1.0).model_dump(exclude_unset=True) == {"layer_decay": 1.0}
    for values in ({"unfreeze": 0.5}, {"unfreeze": "epoch", "layer_decay": 0.4}, {}):
        assert Training.model_validate_json(Training(**values).model_dump_json()) == Training(**values)


@pytest.mark.parametrize("wrong", [{"unfreeze": 0}, {"unfreeze": 1.5}, {"unfreeze": "step"}, {"layer_decay": 0}])
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValidationError):
        Training(**wrong)
