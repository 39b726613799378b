"""Narrower networks with an encoder and a decoder, and those that divide no attention score by its channels."""

import copy

import numpy as np
import pytest
import torch

from compress.student.student import Student
from compress.student.width import inherit
from eval.errors import UserError
from teachers.anatomy.axes import cut, tensor_axes
from teachers.anatomy.encoder import attention_width, decoder_layers, layer_parts, layers, shape_of
from teachers.taskmodel import TaskModel, load_taskmodel, save_taskmodel
from tests.tiny import ENCODER_DECODERS, tiny_spec, tiny_task, tiny_taskmodel


def answers(model):
    inputs = model.encoder.collate(model.encoder.encode(tiny_task("seq2seq").train[:4]))
    return model.forward(inputs)


def reordered(model):
    """Return a copy whose channels, heads and neurons stand in another order, everywhere alike."""
    chance, network = torch.Generator().manual_seed(1), copy.deepcopy(model.model)
    shape, axes = shape_of(network.config), tensor_axes(network)
    heads, keep = {}, {}
    for unit in sorted({unit for found in axes.values() for axis in found for unit in axis.units}):
        layer, _, label = unit.partition(":")
        if unit == "heads" or label in ("q", "k", "v"):
            one = "all layers" if shape.max_positions is None else layer  # T5's tables give a column to each head
            order = heads.setdefault(one, torch.randperm(shape.heads, generator=chance))
            channels = torch.arange(attention_width(network.config)).view(shape.heads, -1)[order].flatten()
            keep[unit] = order if unit == "heads" else channels
        else:
            size = shape.hidden_size if unit == "hidden" else shape.intermediate_size
            keep[unit] = torch.randperm(size, generator=chance)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(cut(parameter, axes[name], keep).reshape(parameter.shape))
    return TaskModel(network, model.tokenizer, model.task), keep


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_units_run_through_exactly_the_axes_named(family):
    """Of a layer of the encoder q, k, v and the neurons, of the decoder those and q, k, v towards the encoder."""
    model = tiny_taskmodel(family, tiny_spec("seq2seq"))
    shape = shape_of(model.model.config)
    other, keep = reordered(model)
    assert len(keep) == 1 + (family == "t5") + 4 * shape.layers + 7 * shape.decoder_layers
    np.testing.assert_allclose(answers(other), answers(model), atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_narrower_student_is_the_teachers_whole_heads_and_is_the_same_once_saved(family, tmp_path):
    """Marian saves no positions: those of the file that is read again are sinusoids of the new width."""
    source = tiny_taskmodel(family, tiny_spec("seq2seq"))
    built = Student(hidden_size=16, heads=2, intermediate_size=24, init="width").build(source)
    assert inherit(source.model, built.model).new == []
    for own, given in zip(decoder_layers(built.model), decoder_layers(source.model), strict=True):
        new, old = layer_parts(built.model, own), layer_parts(source.model, given)
        for role in ("value", "cross_value"):
            rows, whole = (part[role].weight.view(heads, 8, -1) for part, heads in ((new, 2), (old, 4)))
            taken = [[torch.isin(row, head).all() for head in whole] for row in rows]
            assert [sum(map(bool, found)) for found in taken] == [1, 1]
    save_taskmodel(built, tmp_path)
    assert np.array_equal(answers(load_taskmodel(tmp_path)), answers(built))


def test_marian_keeps_its_frequencies():
    source = tiny_taskmodel("marian", tiny_spec("seq2seq"))
    built = Student(hidden_size=16, heads=2, init="width").build(source)
    old, new = (one.model.model.decoder.embed_positions.weight for one in (source, built))
    assert torch.equal(new, old[:, ::2])
    old, new = (one.model.model.shared.weight for one in (source, built))
    assert torch.equal(new, old[:, ::2])


@pytest.mark.parametrize("init", ["teacher", "width"])
def test_fewer_positions_cut_the_tables_of_both_stacks(init):
    source = tiny_taskmodel("bart", tiny_spec("seq2seq"))
    built = Student(max_positions=16, init=init).build(source)
    for stack in ("encoder", "decoder"):
        own, given = (one.model.model.get_submodule(stack).embed_positions.weight for one in (built, source))
        assert torch.equal(own, given[: len(own)])


def test_new_layers_are_new_in_both_stacks():
    source = tiny_taskmodel("bart", tiny_spec("seq2seq"))
    alike, fresh = (
        Student(init=init, layers=2, decoder_layers=1).build(source).model for init in ("embeddings", "random")
    )
    for stack in (layers, decoder_layers):
        for own, new in zip(stack(alike), stack(fresh), strict=True):
            assert all(torch.equal(tensor, new.state_dict()[name]) for name, tensor in own.state_dict().items())
    assert torch.equal(alike.model.shared.weight, source.model.model.shared.weight)


def test_stacks_of_unlike_widths_do_not_shrink_alike():
    source = tiny_taskmodel("bart", tiny_spec("seq2seq"), decoder_ffn_dim=48)
    with pytest.raises(UserError, match=r"other widths than its encoder: decoder_ffn_dim 48 \(encoder_ffn_dim 64\)"):
        Student(hidden_size=16, heads=2, init="width").build(source)


@pytest.mark.parametrize(
    ("family", "kind"), [("t5", "seq2seq"), ("gpt_neo", "classification"), ("opt", "classification")]
)
def test_queries_are_scaled_where_scores_are_divided(family, kind):
    source = tiny_taskmodel(family, tiny_spec(kind))
    built = Student(hidden_size=16, init="width").build(source)
    old, new = (layer_parts(m.model, layers(m.model)[0])["query"].weight.flatten() for m in (source, built))
    expected = old * 0.5**0.5 if family == "opt" else old
    assert bool(torch.isclose(new[:, None], expected, atol=0, rtol=1e-6).any(dim=1).all())
