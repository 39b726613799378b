"""Shared layers of an encoder and of its decoder: networks built by hand, sums of gradients, folders and exports."""

import re
from collections import Counter

import numpy as np
import onnx
import pytest
import torch

from compress import load
from compress.engine.steps import run
from compress.export import export
from compress.export.runtime import Runtime
from compress.recipe import Recipe
from compress.share.layers import LayerSharing, distortions
from compress.technique import Inputs
from eval.inference import predict
from teachers.anatomy.encoder import decoder_layers, layers
from teachers.anatomy.families import FAMILIES
from teachers.signals.hooks import SignalSpec, observe
from tests.tiny import ENCODER_DECODERS, at_first, tiny_task, tiny_taskmodel

DECODER = 4
"""Layers of the decoder here; the encoder has 3."""
TABLE = "relative_attention_bias"
FFN = re.compile(r"\.(fc1|fc2|final_layer_norm)\.|encoder\S*\.layer\.1\.|decoder\S*\.layer\.2\.")
LAYER = re.compile(r"(.*(?:encoder|decoder)\.(?:layers|block)\.)(\d+)(\..*)")
GROUPS = {"encoder": [(0, 1), (2,)], "decoder": [(0, 1), (2, 3)]}


@pytest.fixture(scope="module")
def task():
    return tiny_task("seq2seq")


def new(family, task):
    return tiny_taskmodel(family, task.spec, **{FAMILIES.get(family).config["decoder_layers"]: DECODER})


def shared(model, inputs=None, **fields):
    technique = LayerSharing(recover=False, **fields)
    assert technique.check(model, Inputs()) == []
    return technique.apply(model, inputs or Inputs(), torch.Generator())


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def batch_of(model, examples):
    arrays = model.encoder.collate(model.encoder.encode(examples))
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def by_hand(family, task, what, weights_of):
    """Return an unshared network in which ``weights_of(layers of a group)`` says which weights become one."""
    model = new(family, task)
    given = model.model.state_dict()
    found = dict(given)
    for name in given:
        if (place := LAYER.fullmatch(name)) is None or TABLE in name:
            continue
        if what == "all" or (what == "ffn") == bool(FFN.search(name)):
            stem, layer, rest = place.groups()
            groups = GROUPS["decoder" if "decoder." in stem else "encoder"]
            group = next(group for group in groups if int(layer) in group)
            pieces = [given[f"{stem}{one}{rest}"] for one in weights_of(group)]
            found[name] = torch.stack(pieces).double().mean(dim=0).float()
    model.model.load_state_dict(found)
    return model


@pytest.mark.parametrize("what", ["all", "attention", "ffn"])
@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_the_forward_is_that_of_means_by_hand(family, what, task):
    model = shared(new(family, task), groups=2, share=what).model
    expected = by_hand(family, task, what, lambda group: group)
    inputs = batch_of(model, task.test[:5])
    with torch.no_grad():
        found, other, before = (m.model(**inputs).logits for m in (model, expected, new(family, task)))
    assert torch.allclose(found, other, atol=1e-5)
    assert not torch.allclose(found, before, atol=1e-2)
    own = dict(model.model.named_parameters(remove_duplicate=False))
    for stack, ((_, second), *_) in GROUPS.items():
        names = [name for name in own if (m := LAYER.fullmatch(name)) and f"{stack}." in m[1] and m[2] == "0"]
        tied = {name for name in names if own[name] is own.get(LAYER.sub(rf"\g<1>{second}\g<3>", name))}
        wanted = {n for n in names if TABLE not in n and (what == "all" or (what == "ffn") == bool(FFN.search(n)))}
        assert tied == wanted != set()


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_group_is_one_module_run_again(family, task):
    """The standard network whose lists of layers hold one layer again and again, with the means as its weights."""
    model = shared(new(family, task)).model
    expected = new(family, task)
    base = getattr(expected.model, FAMILIES.get(family).base, expected.model)
    for stack in (base.encoder, base.decoder):
        (name,) = (name for name in ("layers", "block") if hasattr(stack, name))
        every = getattr(stack, name)
        for key, tensor in (first := every[0].state_dict()).items():
            if TABLE not in key:
                tensor.copy_(torch.stack([layer.state_dict()[key] for layer in every]).mean(dim=0))
        assert len(first) > 8
        setattr(stack, name, torch.nn.ModuleList([every[0]] * len(every)))
    inputs = {**batch_of(model, task.test[:5]), "use_cache": False}
    with torch.no_grad():
        assert torch.allclose(model.model(**inputs).logits, expected.model(**inputs).logits, atol=1e-5)
    assert count(model.model) == count(expected.model)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_gradients_add_up_over_places_and_each_is_trained_once(family, task):
    tied, apart = shared(new(family, task)).model, new(family, task)
    apart.model.load_state_dict(tied.model.state_dict())
    assert count(apart.model) > count(tied.model)
    inputs = batch_of(tied, task.train[:4])
    for model in (tied, apart):
        model.model(**inputs).logits.square().mean().backward()
    places = dict(tied.model.named_parameters(remove_duplicate=False))
    several = Counter(map(id, places.values()))
    grads = {name: parameter.grad for name, parameter in apart.model.named_parameters(remove_duplicate=False)}
    sums = {}
    for name, parameter in places.items():
        if LAYER.fullmatch(name):
            sums[parameter] = sums.get(parameter, 0) + grads[name]
    assert {several[id(parameter)] for parameter in sums} == ({1, 3, 4} if family == "t5" else {3, 4})
    for parameter, expected in sums.items():
        assert torch.allclose(parameter.grad, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_listed_layer_of_each_stack_runs_in_every_place(family, task):
    outcome = shared(new(family, task), groups=2, init=(1, 2), decoder=(0, 3))
    starts = {(0, 1): {"encoder": 1, "decoder": 0}, (2,): {"encoder": 2}, (2, 3): {"decoder": 3}}
    assert outcome.facts == {
        "groups": [0, 0, 1],
        "from": [1, 2],
        "decoder_groups": [0, 0, 1, 1],
        "decoder_from": [0, 3],
    }
    expected, given = new(family, task), new(family, task).model
    for stack, every, own in (
        ("encoder", layers(expected.model), layers(given)),
        ("decoder", decoder_layers(expected.model), decoder_layers(given)),
    ):
        for group in GROUPS[stack]:
            for place in group:
                every[place].load_state_dict(own[starts[group][stack]].state_dict(), strict=family != "t5")
        for name, tensor in own[0].state_dict().items():  # T5's table of distances stays where it was
            if TABLE in name:
                every[0].get_parameter(name).data.copy_(tensor)
    inputs = batch_of(outcome.model, task.test[:5])
    with torch.no_grad():
        assert torch.equal(outcome.model.model(**inputs).logits, expected.model(**inputs).logits)


@pytest.mark.parametrize("family", at_first(ENCODER_DECODERS, "t5"))
def test_the_least_distortion_of_a_decoder_by_hand(family, task):
    examples = task.train[:8]
    model = new(family, task)
    found = distortions(model, [(0, 1), (2, 3)], "all", examples, "decoder_")

    def states(network, example):
        """The outputs of the decoder's layers for a target by itself, so without padding."""
        with torch.no_grad():
            return network(**batch_of(model, [example]), output_hidden_states=True).decoder_hidden_states[1:]

    for layer in (0, 1):
        other = new(family, task)
        every = decoder_layers(other.model)
        every[1 - layer].load_state_dict(every[layer].state_dict(), strict=False)
        moved, length = np.zeros(2), np.zeros(2)
        for example in examples:
            for place, (before, after) in enumerate(
                zip(*(states(m.model, example) for m in (model, other)), strict=True)
            ):
                if place < 2:
                    moved[place] += float((after - before).square().sum())
                    length[place] += float(before.square().sum())
        assert found[layer] == pytest.approx((moved / length).sum(), rel=1e-4)
    outcome = shared(new(family, task), Inputs(calibration=examples), groups=2, init="least")
    assert outcome.facts["decoder_distortion"] == pytest.approx(found, rel=1e-6)
    assert outcome.facts["decoder_from"] == [min(group, key=found.__getitem__) for group in GROUPS["decoder"]]
    alone = distortions(new(family, task), GROUPS["encoder"], "all", examples)
    assert outcome.facts["distortion"] == pytest.approx(alone, rel=1e-6)


def test_attention_that_is_shared_is_read_at_every_place(task):
    tied, apart = shared(new("marian", task)).model, new("marian", task)
    apart.model.load_state_dict(tied.model.state_dict())
    wanted = SignalSpec(cross_queries=(0, 2), cross_keys=(1, 3), queries=(0, 2))
    inputs = batch_of(tied, task.test[:3])
    with torch.no_grad():
        own, other = (observe(model.model, inputs, wanted).tensors() for model in (tied, apart))
    assert own.keys() == other.keys()
    assert {("cross_queries", 0), ("cross_queries", 2), ("cross_keys", 1), ("cross_keys", 3)} < own.keys()
    for key, tensor in own.items():
        assert torch.allclose(tensor, other[key], atol=1e-6), key
    assert not torch.allclose(own["cross_queries", 0], own["cross_queries", 2], atol=1e-3)


def test_a_stack_of_few_layers_keeps_them_apart(task):
    model = tiny_taskmodel("marian", task.spec)
    outcome = shared(model, groups=2)
    assert (outcome.facts["groups"], outcome.facts["decoder_groups"]) == ([0, 0, 1], [0, 1])
    given = tiny_taskmodel("marian", task.spec).model
    for own, other in zip(decoder_layers(outcome.model.model), decoder_layers(given), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own.parameters(), other.parameters(), strict=True))


def test_what_is_refused(task):
    marian = new("marian", task)

    def problems(model=marian, **fields):
        return LayerSharing(recover=False, **fields).check(model, Inputs())

    assert problems(groups=4) == ["share.layers: groups 4 of 4 layers share nothing; at most 3"]
    assert problems(stock=True) == [
        "share.layers: stock: marian does not compute as ALBERT does; leave out stock: true"
    ]
    (problem,) = problems(groups=2, init=(1, 2))
    assert problem.startswith("share.layers: init lists layers of the encoder; write decoder too, one layer of each ")
    assert problem.endswith("group, of [[0, 1], [2, 3]]")
    assert problems(groups=2, init=(2, 2), decoder=(1, 4)) == [
        "share.layers: init [2, 2] must name one layer of each group, of [[0, 1], [2]]",
        "share.layers: decoder [1, 4] must name one layer of each group, of [[0, 1], [2, 3]]",
    ]
    assert problems(tiny_taskmodel("bert"), init=(1,), decoder=(0,)) == [
        "share.layers: decoder: the model has no decoder beside its encoder; leave it out"
    ]
    with pytest.raises(ValueError, match="decoder goes with an init that lists layers of the encoder"):
        LayerSharing(decoder=(0,))


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_saved_once(family, task, tmp_path):
    source = new(family, task)
    technique = LayerSharing(max_steps=2, batch_size=8)
    artifact = run(Recipe(steps=(technique,)), source, Inputs(train=task.train), dry_run_first=False)
    artifact.save(tmp_path)
    again = load(tmp_path)
    inputs = artifact.encoder.collate(artifact.encoder.encode(task.test[:6]))
    assert np.array_equal(again.forward(inputs), artifact.forward(inputs))
    own, other = (
        {name: id(p) for name, p in one.model.named_parameters(remove_duplicate=False)} for one in (artifact, again)
    )
    assert all((own[a] == own[b]) == (other[a] == other[b]) for a in own for b in own)
    assert again.size() == artifact.size()
    assert count(again.model) == count(artifact.model) < count(source.model)
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * count(artifact.model) + 40_000


@pytest.mark.parametrize("int8", at_first([False, True], False), ids=["float32", "int8"])
@pytest.mark.parametrize("family", at_first(ENCODER_DECODERS, "t5"))
def test_an_export_writes_the_same_and_holds_a_matrix_once(family, int8, task, tmp_path):
    model = shared(new(family, task)).model
    options = {"int8": True, "agreement": 0.5} if int8 else {}
    export(model, tmp_path / "x", "generator", examples=task.validation[:6], **options)
    if not int8:
        assert Runtime(tmp_path / "x").predict(task.test[:6]).answers == predict(model, task.test[:6]).answers
    graphs = [onnx.load(tmp_path / "x" / name).graph for name in ("model.onnx", "encoder.onnx")]
    matrices = Counter(tuple(w.dims) for graph in graphs for w in graph.initializer if min(w.dims, default=0) == 32)
    # Of the encoder: queries, keys and values joined, what comes after, two of the feed-forward network, and two of
    # each attention to the encoder. Of the decoder the same, but that the source is given.
    assert matrices[(32, 96)] == 2
    assert matrices[(32, 32)] == 1 + 2 + 1 + 2
    assert matrices[(32, 64)] == matrices[(64, 32)] == 2
    for graph in graphs:
        products = [node.name for node in graph.node if node.op_type == "MatMul"]
        assert len(set(products)) == len(products)
