"""Layers as groups of parameters, from the head down, and the rate of each."""

import pytest
import torch

from teachers.anatomy.encoder import base_encoder, head_parameters, layers, word_embeddings
from teachers.training.config import Training
from teachers.training.layer_groups import layer_groups, rate_factors
from teachers.training.loop import train
from teachers.training.scheduled_modules import parameter_groups
from tests.tiny import FAMILIES, LAYERS, tiny_spec, tiny_task, tiny_taskmodel

ULMFIT = 1 / 2.6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_every_parameter_is_in_one_group_and_the_head_comes_first(family, kind):
    model = tiny_taskmodel(family, tiny_spec(kind)).model
    groups = layer_groups(model)
    places = {id(parameter): number for number, group in enumerate(groups) for parameter in group}
    assert len(places) == sum(map(len, groups)) == len(list(model.parameters()))
    assert len(groups) == (3 if family == "albert" else LAYERS + 2)
    assert {places[id(parameter)] for parameter in head_parameters(model).values()} == {0}
    for index, layer in enumerate(layers(model)):
        expected = 1 if family == "albert" else LAYERS - index
        assert {places[id(parameter)] for parameter in layer.parameters()} == {expected}
    assert places[id(word_embeddings(model).weight)] == len(groups) - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_without_a_head_begins_with_its_last_layer(family):
    model = tiny_taskmodel(family, tiny_spec("embedding")).model
    groups = layer_groups(model)
    assert base_encoder(model) is model
    assert len(groups) == (2 if family == "albert" else LAYERS + 1)
    assert {id(p) for p in layers(model)[-1].parameters()} <= {id(p) for p in groups[0]}
    assert sum(map(len, groups)) == len(list(model.parameters()))


def test_what_is_tied_to_the_word_embeddings_is_trained_with_them():
    model = tiny_taskmodel("bert", tiny_spec("masked-lm")).model
    decoder = model.get_output_embeddings().weight
    groups = layer_groups(model)
    assert decoder is word_embeddings(model).weight
    assert any(parameter is decoder for parameter in groups[-1])
    assert not any(parameter is decoder for parameter in groups[0])


def test_rates_are_those_of_the_paper():
    model = tiny_taskmodel("bert", num_hidden_layers=2).model
    training = Training(learning_rate=0.01, layer_decay=ULMFIT, weight_decay=0.1)
    parameters = list(model.parameters())
    groups = parameter_groups(parameters, {}, training, rate_factors(model, training.layer_decay))
    peaks = {id(parameter): group["peak"] for group in groups for parameter in group["params"]}
    assert len(peaks) == len(parameters) == sum(len(group["params"]) for group in groups)
    found = [peaks[id(group[0])] for group in layer_groups(model)]
    assert found == pytest.approx([0.01, 0.003846, 0.001479, 0.000569], abs=5e-7)
    for group in groups:
        assert {parameter.ndim >= 2 for parameter in group["params"]} == {group["weight_decay"] == 0.1}


def test_a_decay_of_one_is_what_was_there_before():
    model = tiny_taskmodel("bert").model
    parameters = list(model.parameters())
    assert rate_factors(model, 1.0) == {}
    matrices, vectors = parameter_groups(parameters, {}, Training(), rate_factors(model, 1.0))
    assert matrices["params"] == [p for p in parameters if p.ndim >= 2]
    assert vectors["params"] == [p for p in parameters if p.ndim < 2]
    assert matrices["peak"] == vectors["peak"] == Training().learning_rate


def test_own_rates_do_not_decay():
    model = tiny_taskmodel("bert").model
    own = layers(model)[0].attention.self.query.bias
    groups = parameter_groups(list(model.parameters()), {own: 0.5}, Training(), rate_factors(model, 0.5))
    assert [group["peak"] for group in groups if any(p is own for p in group["params"])] == [0.5]


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert"])
def test_the_first_update_of_a_layer_is_as_large_as_its_rate(family):
    """AdamW's first step is the learning rate for every weight with a gradient, whatever the gradient's size."""
    task = tiny_task(examples=16)
    student = tiny_taskmodel(family, task.spec)
    groups = layer_groups(student.model)
    before = [[parameter.detach().clone() for parameter in group] for group in groups]
    training = Training(
        max_steps=1, learning_rate=1e-2, layer_decay=0.5, warmup_steps=0, weight_decay=0, batch_size=16, eps=1e-12
    )
    train(student, task.train, training=training)
    for depth, (group, old) in enumerate(zip(groups, before, strict=True)):
        largest = max(float((new.detach() - was).abs().max()) for new, was in zip(group, old, strict=True))
        assert largest == pytest.approx(1e-2 * 0.5**depth, rel=1e-3)


def test_layers_that_learn_more_slowly_move_less():
    task = tiny_task(examples=32)
    moved = []
    for decay in (1.0, 0.1):
        student = tiny_taskmodel("bert", task.spec)
        words = word_embeddings(student.model).weight
        before = words.detach().clone()
        train(student, task.train, training=Training(epochs=2, layer_decay=decay, learning_rate=1e-3, batch_size=8))
        moved.append(float(torch.linalg.norm(words.detach() - before)))
    assert moved[1] < moved[0] * 1e-3
