"""The anatomy of every family: what is found, what is kept, what a unit runs through."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import transformers

from eval.errors import UserError
from teachers.anatomy.axes import cut, tensor_axes
from teachers.anatomy.encoder import (
    UNLIMITED,
    attention_width,
    base_encoder,
    embedding_parts,
    family_of,
    first_position,
    head_parameters,
    head_parts,
    layer_count,
    layer_names,
    layer_parts,
    layers,
    max_tokens,
    model_inputs,
    new_config,
    reshaped,
    shape_of,
    word_embeddings,
)
from teachers.anatomy.layer_changes import copy_layer, replace_layers
from teachers.conversion import convert, convertible
from teachers.taskmodel import save_taskmodel
from tests.tiny import (
    FAMILIES,
    FFN,
    HEADS,
    HIDDEN,
    LAYERS,
    LONG,
    POSITIONS,
    tiny_config,
    tiny_spec,
    tiny_task,
    tiny_taskmodel,
    tiny_tokenizer,
)

TYPED = {"bert", "ernie", "albert", "electra", "xlnet", "mobilebert"}


@functools.cache
def tiny(family, kind="classification"):
    return tiny_taskmodel(family, tiny_spec(kind))


def batch(model, kind="classification", count=4):
    """Return a padded batch as tensors."""
    arrays = model.encoder.collate(model.encoder.encode(tiny_task(kind).train[:count]))
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


@torch.no_grad()
def logits(model, inputs):
    return model(**inputs).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_shape_and_inputs_are_read(family):
    model = tiny(family).model
    shape = shape_of(model.config)
    assert (shape.layers, shape.hidden_size, shape.heads, shape.intermediate_size) == (LAYERS, HIDDEN, HEADS, FFN)
    assert shape.vocab_size == len(tiny_tokenizer(family)) == word_embeddings(model).num_embeddings
    assert shape.activation == {"mobilebert": "relu", "albert": "gelu_new", "gpt2": "gelu_new"}.get(family, "gelu")
    assert max_tokens(model.config) == (UNLIMITED if family == "xlnet" else POSITIONS)
    assert ("token_type_ids" in model_inputs(model.config)) == (family in TYPED)
    assert first_position(model.config) == (2 if family in ("roberta", "mpnet") else 0)
    assert attention_width(model.config) == (16 if family == "mobilebert" else HIDDEN)


@pytest.mark.parametrize("family", FAMILIES)
def test_longest_input_fits_and_one_more_does_not(family):
    model = tiny(family).model
    fits = max_tokens(model.config)
    if fits == UNLIMITED:
        return
    ids = torch.full((1, fits + 1), 7)
    mask = torch.ones_like(ids)
    assert logits(model, {"input_ids": ids[:, :fits], "attention_mask": mask[:, :fits]}).isfinite().all()
    if "positions" in embedding_parts(model):
        with pytest.raises((IndexError, RuntimeError)):
            logits(model, {"input_ids": ids, "attention_mask": mask})


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_found(family):
    model = tiny(family).model
    assert type(base_encoder(model)).__name__.endswith("Model")
    assert len(layers(model)) == layer_count(model) == LAYERS
    assert len({id(layer) for layer in layers(model)}) == (1 if family == "albert" else LAYERS)
    for name, layer in zip(layer_names(model), layers(model), strict=True):
        assert model.get_submodule(name) is layer
        parts = layer_parts(model, layer)
        assert {"attention_norm", "ffn_out", "ffn_norm"} <= parts.keys()
        assert parts["ffn_out"].in_features == FFN
        if family not in ("xlnet", "modernbert", "gpt2"):
            assert parts["query"].out_features == attention_width(model.config)
            assert {"key", "value", "attention_output", "ffn_in"} <= parts.keys()
    assert embedding_parts(model)["words"] is word_embeddings(model)
    names = head_parameters(model)
    assert "classifier" in head_parts(model)
    assert any(word in name for name in names for word in ("classifier", "logits", "score"))
    assert not any(name.startswith(tuple(layer_names(model))) for name in names)


def run_without(model, dropped, inputs):
    """Return logits with the layers ``dropped`` turned into identities."""
    calls = []

    def skip(module, args, kwargs, output):
        del module
        calls.append(None)
        hidden = args[0] if args else kwargs["hidden_states"]
        if len(calls) - 1 not in dropped:
            return output
        return hidden if isinstance(output, torch.Tensor) else (hidden, *output[1:])

    modules = {id(layer): layer for layer in layers(model)}.values()
    hooks = [module.register_forward_hook(skip, with_kwargs=True) for module in modules]
    try:
        found = logits(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(calls) == layer_count(model)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_layers_compute_as_if_the_others_were_not_there_and_reload_in_stock(family, tmp_path):
    taskmodel = copy.deepcopy(tiny(family))
    inputs = batch(taskmodel)
    whole = logits(taskmodel.model, inputs)
    expected = run_without(taskmodel.model, {1}, inputs)
    assert not torch.allclose(expected, whole, atol=1e-4)
    replace_layers(taskmodel.model, (0, 2))
    assert layer_count(taskmodel.model) == len(layers(taskmodel.model)) == 2
    torch.testing.assert_close(logits(taskmodel.model, inputs), expected, atol=1e-6, rtol=0)
    save_taskmodel(taskmodel, tmp_path)
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    apart = 1e-6 if family == "xlnet" else 0  # whose standard class takes the sums of its output layer in another order
    torch.testing.assert_close(logits(stock, inputs), logits(taskmodel.model, inputs), atol=apart, rtol=0)
    assert all(
        getattr(module, "layer_idx", i) == i for i, layer in enumerate(layers(stock)) for module in layer.modules()
    )


def test_modernbert_keeps_kinds_of_attention_and_a_new_first_layer_loses_its_norm(tmp_path):
    taskmodel = copy.deepcopy(tiny("modernbert"))
    gain, weight = (layers(taskmodel.model)[1].attn_norm.weight, layers(taskmodel.model)[1].attn.Wqkv.weight.clone())
    replace_layers(taskmodel.model, (1, 2))
    assert taskmodel.model.config.layer_types == ["sliding_attention", "sliding_attention"]
    first = layers(taskmodel.model)[0]
    assert isinstance(first.attn_norm, torch.nn.Identity)
    torch.testing.assert_close(first.attn.Wqkv.weight, weight * gain)
    save_taskmodel(taskmodel, tmp_path)
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    inputs = batch(taskmodel)
    assert torch.equal(logits(stock, inputs), logits(taskmodel.model, inputs))


def test_albert_groups_are_kept_as_albert_divides_them():
    model = tiny_taskmodel("albert", num_hidden_layers=4, num_hidden_groups=2).model
    inputs = batch(tiny("albert"))
    expected = run_without(model, {1, 3}, inputs)
    with pytest.raises(UserError, match=r"run the groups of shared weights \[0, 1, 1\].* would run \[0, 0, 1\]"):
        replace_layers(model, (0, 2, 3))
    replace_layers(model, (0, 2))
    torch.testing.assert_close(logits(model, inputs), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kept", [(), (1, 0), (0, 0), (0, 3), (-1, 0)])
def test_impossible_layers_are_refused_and_nothing_changes(kept):
    model = tiny("bert").model
    with pytest.raises(UserError, match="from 0 to 2"):
        replace_layers(model, kept)
    assert layer_count(model) == LAYERS


def test_unknown_families_are_refused_by_name():
    with pytest.raises(UserError, match=r"'pegasus' is not supported; those that work: albert, bart, bert, .*xlnet"):
        family_of(transformers.PegasusConfig())
    for option in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        with pytest.raises(UserError, match=f"gpt2 with {option} = True is not supported; only {option} = False is"):
            family_of(tiny_config("gpt2", **{option: True}))
    with pytest.raises(UserError, match="inner_group_num"):
        family_of(tiny_config("albert", inner_group_num=2))


def test_mpnet_with_another_padding_than_transformers_counts_from_is_refused():
    with pytest.raises(UserError, match="mpnet with pad_token_id = 0 is not supported"):
        new_config("mpnet", tiny_config("bert"), tiny_tokenizer("bert"))
    assert shape_of(new_config("mpnet", tiny_config("bert"), tiny_tokenizer("roberta"))) == shape_of(
        tiny_config("bert")
    )


def test_reshaped_configs_bring_along_what_depends_on_them():
    assert reshaped(tiny_config("xlnet"), hidden_size=16).d_head == 4
    assert reshaped(tiny_config("deberta-v2"), hidden_size=16).pooler_hidden_size == 16
    assert reshaped(tiny_config("roberta"), max_positions=20).max_position_embeddings == 22
    assert reshaped(tiny_config("modernbert"), layers=5).layer_types == [
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ]
    factorised = reshaped(tiny_config("electra"), hidden_size=64)
    assert (factorised.hidden_size, factorised.embedding_size) == (64, 16)
    assert reshaped(tiny_config("electra", embedding_size=32), hidden_size=64).embedding_size == 64


def test_a_new_family_takes_shape_and_special_tokens():
    config = new_config("roberta", tiny_config("bert"), tiny_tokenizer("bert"))
    assert shape_of(config) == shape_of(tiny_config("bert"))
    assert (config.pad_token_id, config.type_vocab_size, first_position(config)) == (0, 2, 1)
    assert new_config("xlnet", tiny_config("bert"), tiny_tokenizer("bert")).summary_type == "first"


def test_layers_are_copied_within_and_across_families():
    bert, distilbert = tiny("bert").model, copy.deepcopy(tiny("distilbert").model)
    source, target = layers(bert)[2], layers(distilbert)[0]
    copy_layer(bert, source, distilbert, target)
    hidden = torch.randn(2, 5, HIDDEN, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(target(hidden), source(hidden), atol=1e-6, rtol=0)
    other = copy.deepcopy(bert)
    copy_layer(bert, source, other, layers(other)[0])
    assert torch.equal(
        layer_parts(other, layers(other)[0])["ffn_in"].weight, layer_parts(bert, source)["ffn_in"].weight
    )
    with pytest.raises(UserError, match="compute differently"):
        copy_layer(bert, source, tiny("modernbert").model, layers(tiny("modernbert").model)[0])
    wide = tiny_taskmodel("bert", intermediate_size=96).model
    with pytest.raises(UserError, match="differ in shape"):
        copy_layer(bert, source, wide, layers(wide)[0])


def permutations(model, axes):
    """Return a random order for every unit of a model: whole heads for attention."""
    chance = torch.Generator().manual_seed(1)
    shape, width = shape_of(model.config), attention_width(model.config)
    units = sorted({unit for found in axes.values() for axis in found for unit in axis.units} - {"position"})
    sizes = {"hidden": shape.hidden_size, "embedding": shape.embedding_size}
    found, heads = {}, {}
    for unit in units:
        layer, _, label = unit.partition(":")
        if unit == "heads" or label in ("q", "k", "v"):
            one = "all layers" if "heads" in units else layer
            order = heads.setdefault(one, torch.randperm(shape.heads, generator=chance))
        if unit == "heads":
            found[unit] = order
        elif label in ("q", "k", "v"):
            found[unit] = torch.arange(width).view(shape.heads, -1)[order].flatten()
        else:
            found[unit] = torch.randperm(sizes.get(unit, shape.intermediate_size), generator=chance)
    return found


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, "classification") for family in (*FAMILIES, *LONG)]
    # XLNet has no masked-language head, that of MobileBERT takes hidden channels apart.
    + [(family, "masked-lm") for family in FAMILIES if family not in ("xlnet", "mobilebert", "gpt2")],
)
def test_units_run_through_exactly_the_axes_named(family, kind):
    """A network whose channels, heads and neurons are reordered everywhere alike computes the same."""
    model = copy.deepcopy(tiny(family, kind).model)
    inputs = batch(tiny(family, kind), kind)
    expected = logits(model, inputs)
    axes = tensor_axes(model)
    keep = permutations(model, axes)
    assert len(keep) == 1 + ("embedding" in keep) + ("heads" in keep) + (1 if family == "albert" else LAYERS) * (
        5 if family == "mobilebert" else 4
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(cut(parameter, axes[name], keep).reshape(parameter.shape))
    torch.testing.assert_close(logits(model, inputs), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("family", "target"),
    [("bert", "distilbert"), ("bert", "roberta"), ("roberta", "distilbert"), ("ernie", "bert"), ("distilbert", "bert")],
)
@pytest.mark.parametrize("kind", ["tagging", "masked-lm"])
def test_a_single_text_gives_the_same_in_another_family(family, target, kind):
    source = tiny_taskmodel(family, tiny_spec(kind), **({"use_task_id": True} if family == "ernie" else {}))
    result = convert(source, target)
    inputs = batch(source, kind)
    ours = {name: values for name, values in inputs.items() if name in model_inputs(result.model.config)}
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(logits(result.model, ours)[real], logits(source.model, inputs)[real], atol=5e-6, rtol=0)


def test_only_families_of_one_make_can_be_converted():
    plain = ("roberta", "xlm-roberta", "camembert", "longformer", "ernie", "distilbert")
    assert convertible(tiny_config("bert")) == (*plain, "electra")
    assert convertible(tiny_config("mpnet")) == convertible(tiny_config("longformer")) == ()
    assert convertible(tiny_config("electra")) == convertible(tiny_config("albert")) == ()
    assert convertible(tiny_config("electra", embedding_size=HIDDEN)) == ("bert", *plain)


def test_pairs_keep_their_answers_where_the_other_family_has_token_types():
    source = tiny_taskmodel("bert", tiny_spec(pair=True))
    rows = tiny_task(pair=True).train[:4]
    result = convert(source, "roberta")
    inputs = source.encoder.collate(source.encoder.encode(rows))
    assert inputs["token_type_ids"].max() == 1
    difference = abs(source.forward(inputs) - result.forward(inputs)).max()
    assert difference < 1e-6
