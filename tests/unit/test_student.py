"""Students: exact predictions, the weights they start from, and shapes that cannot be."""

from __future__ import annotations

import functools
import logging

import pytest
import torch
import yaml

from compress.artifact.artifact import Artifact, load
from compress.student.predicted_cost import predicted_cost
from compress.student.shape_check import nearest
from compress.student.student import Student
from compress.student.width import inherit
from eval.cost.size import macs
from eval.errors import UserError
from teachers.anatomy.encoder import (
    embedding_parts,
    layer_names,
    layer_parts,
    layers,
    max_tokens,
    shape_of,
    word_embeddings,
)
from teachers.taskmodel import load_taskmodel, save_taskmodel, weights_digest
from tests.tiny import FAMILIES, HIDDEN, LAYERS, POSITIONS, tiny_spec, tiny_task, tiny_taskmodel


@functools.cache
def tiny(family="bert", kind="classification"):
    return tiny_taskmodel(family, tiny_spec(kind))


def outputs(model, kind="classification"):
    return model.forward(model.encoder.collate(model.encoder.encode(tiny_task(kind).train[:4])))


SHAPES = [
    *((family, "classification", {"layers": 2, "intermediate_size": 48, "init": "width"}) for family in FAMILIES),
    ("bert", "masked-lm", {"layers": 2}),
    ("bert", "tagging", {"layers": 1, "hidden_size": 24, "heads": 3, "init": "random"}),
    ("deberta-v2", "masked-lm", {"layers": (0, 2)}),
    ("mobilebert", "masked-lm", {"max_positions": 32}),
    ("bert", "qa", {"family": "distilbert", "layers": (0, 2)}),
    ("bert", "regression", {"family": "mobilebert", "layers": 1, "init": "random", "hidden_size": 64}),
    ("mobilebert", "masked-lm", {"layers": 4, "init": "embeddings", "options": {"num_feedforward_networks": 3}}),
]


@pytest.mark.parametrize(("family", "kind", "shape"), SHAPES)
def test_predicted_cost_is_that_of_the_built_and_saved_model(family, kind, shape, tmp_path):
    student = Student(**shape)
    predicted = student.predict(tiny(family, kind)).student
    built = student.build(tiny(family, kind))
    save_taskmodel(built, tmp_path)
    assert predicted.bytes == (tmp_path / "model.safetensors").stat().st_size
    assert predicted.parameters == sum(parameter.numel() for parameter in built.model.parameters())
    assert predicted.length == min(128, max_tokens(built.model.config))
    assert predicted.macs == macs(built.model, length=predicted.length)


def test_predicted_parameters_are_those_known_of_bert_base():
    from transformers import BertConfig

    # 109,482,240 parameters of the encoder with its pooler, and a classifier of two classes.
    cost = predicted_cost(BertConfig(), tiny_spec())
    assert cost.parameters == 109_482_240 + 2 * 768 + 2
    attention, projections, ffn = 2 * 128 * 128 * 768, 4 * 128 * 768 * 768, 2 * 128 * 768 * 3072
    assert cost.macs == 12 * (attention + projections + ffn) + 768 * 768 + 2 * 768


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_from_the_teacher_are_the_teacher(family):
    teacher = tiny(family)
    before = weights_digest(teacher.model)
    student = Student().build(teacher)
    assert student.digest == weights_digest(teacher.model) == before
    assert student.model is not teacher.model
    assert (outputs(student) == outputs(teacher)).all()


@pytest.mark.parametrize(
    ("text", "student"),
    [
        ("{from: teacher, layers: [0, 2]}", Student(layers=(0, 2))),
        ("{layers: 2, pick: last, max_positions: 40}", Student(layers=2, pick="last", max_positions=40)),
        (
            "{family: bert, layers: 4, hidden_size: 24, heads: 2, intermediate_size: 40, init: random}",
            Student(family="bert", layers=4, hidden_size=24, heads=2, intermediate_size=40, init="random"),
        ),
        ("{hidden_size: 16, heads: 2, init: width}", Student(hidden_size=16, heads=2, init="width")),
        ("{family: distilbert, layers: 2}", Student(family="distilbert", layers=2)),
    ],
)
def test_yaml_and_python_give_the_same_weights(text, student):
    read = Student.model_validate(yaml.safe_load(text))
    assert read == student
    assert read.build(tiny(), seed=3).digest == student.build(tiny(), seed=3).digest
    again = Student.model_validate(read.model_dump(mode="json", by_alias=True))
    assert again == student


def test_seed_decides_random_weights_and_global_chance_stays():
    student = Student(layers=1, init="random")
    state = torch.get_rng_state()
    first, second = student.build(tiny(), seed=1), student.build(tiny(), seed=2)
    assert first.digest == student.build(tiny(), seed=1).digest != second.digest
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("student", "kept"),
    [
        (Student(layers=2), (0, 2)),
        (Student(layers=2, pick="last"), (1, 2)),
        (Student(layers=2, pick="stride"), (0, 1)),
        (Student(layers=(0, 2)), (0, 2)),
        (Student(layers=1), (0,)),
    ],
)
def test_layers_that_a_number_means(student, kept):
    built = student.build(tiny())
    assert student.kept_layers(tiny()) == kept
    given = [layers(tiny().model)[i].state_dict() for i in kept]
    for layer, expected in zip(layers(built.model), given, strict=True):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in layer.state_dict().items())


def test_fewer_positions_cut_the_table():
    for family, first in (("bert", 0), ("roberta", 2)):
        built = Student(max_positions=40).build(tiny(family))
        table = built.model.base_model.embeddings.position_embeddings.weight
        assert table.shape == (40 + first, HIDDEN)
        assert torch.equal(table, tiny(family).model.base_model.embeddings.position_embeddings.weight[: 40 + first])
        assert (outputs(built) == outputs(tiny(family))).all()


def log_norms(rows):
    return sum(torch.log(torch.stack([row.double().norm() for row in weight])) for weight in rows)


def test_width_follows_its_rule_stated_once_more():
    """Choose hidden channels, heads, channels and neurons of BERT by hand, then compare every tensor of a layer."""
    teacher, width, count, size = tiny().model, 16, 2, 8
    built = Student(layers=(1,), hidden_size=width, heads=count, intermediate_size=20, init="width").build(tiny()).model
    source = Student(layers=(1,)).build(tiny()).model
    runs = [word_embeddings(source).weight.T, source.bert.embeddings.position_embeddings.weight.T]
    runs += [source.bert.embeddings.token_type_embeddings.weight.T]
    runs += [source.bert.embeddings.LayerNorm.weight[:, None]]
    part = layer_parts(source, layers(source)[0])
    runs += [part[role].weight.T for role in ("query", "key", "value", "ffn_in")]
    runs += [part[role].weight for role in ("attention_output", "ffn_out")]
    runs += [part[role].weight[:, None] for role in ("attention_norm", "ffn_norm")]
    pooler = source.bert.pooler.dense.weight
    runs += [pooler, pooler.T, source.classifier.weight.T]
    hidden = log_norms(runs).topk(width).indices.sort().values
    value, output = part["value"].weight.view(4, size, HIDDEN), part["attention_output"].weight.T.view(4, size, HIDDEN)
    heads = log_norms([value, output]).topk(count).indices.sort().values
    neurons = log_norms([part["ffn_in"].weight, part["ffn_out"].weight.T]).topk(20).indices.sort().values
    carry = torch.cat(
        [head * size + log_norms([value[head], output[head]]).topk(8).indices.sort().values for head in heads]
    )
    new = layer_parts(built, layers(built)[0])
    assert torch.equal(new["value"].weight, part["value"].weight[carry][:, hidden])
    assert torch.equal(new["attention_output"].weight, part["attention_output"].weight[hidden][:, carry])
    assert torch.equal(new["query"].weight, part["query"].weight[carry][:, hidden])
    assert torch.equal(new["ffn_in"].weight, part["ffn_in"].weight[neurons][:, hidden])
    assert torch.equal(new["ffn_in"].bias, part["ffn_in"].bias[neurons])
    assert torch.equal(new["ffn_out"].weight, part["ffn_out"].weight[hidden][:, neurons])
    assert torch.equal(word_embeddings(built).weight, word_embeddings(teacher).weight[:, hidden])
    assert torch.equal(built.classifier.weight, teacher.classifier.weight[:, hidden])


def test_narrower_heads_keep_matching_channels_and_scale_queries():
    size, narrow = 8, 4
    source = tiny().model
    built = Student(hidden_size=16, init="width").build(tiny()).model
    for before, after in zip(layers(source), layers(built), strict=True):
        old, new = layer_parts(source, before), layer_parts(built, after)
        query, key = old["query"].weight.view(4, size, HIDDEN), old["key"].weight.view(4, size, HIDDEN)
        for head in range(4):
            match = log_norms([query[head], key[head]]).topk(narrow).indices.sort().values + head * size
            rows = slice(head * narrow, (head + 1) * narrow)
            torch.testing.assert_close(new["query"].bias[rows], old["query"].bias[match] * 0.5**0.5)
            assert torch.equal(new["key"].bias[rows], old["key"].bias[match])


def test_rotary_heads_keep_their_frequencies():
    source, built = tiny("modernbert").model, Student(hidden_size=16, init="width").build(tiny("modernbert")).model
    old = source.model.rotary_emb.full_attention_inv_freq
    new = built.model.rotary_emb.full_attention_inv_freq
    assert torch.equal(new, old[::2])
    keys = [
        weight.view(3, 4, -1, weight.shape[1])[1, 0]
        for weight in (source.model.layers[0].attn.Wqkv.weight, built.model.layers[0].attn.Wqkv.weight)
    ]
    for kept, channel in enumerate((0, 2, 4, 6)):
        assert all((keys[0][channel] == value).any() for value in keys[1][kept])


@pytest.mark.parametrize("family", FAMILIES)
def test_neurons_without_effect_are_what_a_narrower_ffn_drops(family):
    teacher = tiny_taskmodel(family)
    dead = torch.arange(1, 64, 4)
    with torch.no_grad():
        for layer in layers(teacher.model):
            for role, part in layer_parts(teacher.model, layer).items():
                if role.startswith("ffn_out"):
                    part.weight[:, dead] *= 1e-9
    built = Student(intermediate_size=48, init="width").build(teacher)
    assert shape_of(built.model.config).intermediate_size == 48
    assert abs(outputs(built) - outputs(teacher)).max() < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_narrower_student_comes_from_the_teacher(family):
    changes = {"hidden_size": 24, "heads": 4 if family == "mobilebert" else 3}
    source, student = tiny(family), Student(**changes, layers=(0, 2), init="width")
    built = student.build(source)
    digest = built.digest
    giver = Student(layers=(0, 2)).build(source)
    found = inherit(giver.model, built.model)
    assert found.new == []
    assert len(found.cut) + len(found.copied) == len(list(built.model.named_parameters()))
    assert weights_digest(built.model) == digest


def test_heads_that_share_a_bias_are_chosen_alike_in_all_layers():
    source = tiny("mpnet")
    built = Student(hidden_size=16, heads=2, init="width").build(source)
    bias, old = (model.model.mpnet.encoder.relative_attention_bias.weight for model in (built, source))
    kept = [next(head for head in range(4) if torch.equal(old[:, head], column)) for column in bias.T]
    assert kept[0] < kept[1]
    for own, other in zip(layers(built.model), layers(source.model), strict=True):
        values, whole = (layer_parts(m.model, x)["value"].bias for m, x in ((built, own), (source, other)))
        assert torch.equal(values.view(2, 8), whole.view(4, 8)[kept])


def test_a_distilbert_from_bert_starts_with_its_layers():
    teacher = tiny(kind="tagging")
    built = Student(family="distilbert", layers=(0, 2)).build(teacher)
    same = Student(layers=(0, 2)).build(teacher)
    assert type(built.model).__name__ == "DistilBertForTokenClassification"
    inputs = same.encoder.collate(same.encoder.encode(tiny_task("tagging").train[:4]))
    ours = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    assert abs(built.forward(ours) - same.forward(inputs))[inputs["attention_mask"] == 1].max() < 1e-6


@pytest.mark.parametrize("family", ["xlnet", "albert", "modernbert"])
def test_any_family_can_follow_any_with_random_weights(family):
    built = Student(family=family, layers=1, init="random").build(tiny())
    assert built.model.config.model_type == family
    assert outputs(built).shape == (4, 2)
    assert shape_of(built.model.config).hidden_size == HIDDEN


def test_a_folder_can_take_the_teachers_place(tmp_path):
    other = tiny_taskmodel("distilbert", seed=5)
    save_taskmodel(other, tmp_path)
    built = Student.model_validate({"from": str(tmp_path), "layers": [0, 2]}).build(load_taskmodel(tmp_path))
    assert (built.name, built.folder) == ("student", None)
    built = Student.model_validate({"from": str(tmp_path), "layers": [0, 2]}).build(tiny())
    assert built.model.config.model_type == "distilbert"
    assert built.digest == Student(layers=(0, 2)).build(other).digest
    assert built.tokenizer.model_input_names == ["input_ids", "attention_mask"]


def test_an_artifact_gives_an_artifact_with_one_more_record(tmp_path):
    teacher = Artifact.from_model(tiny(), origin="tiny")
    built = Student(layers=2).build(teacher, seed=4)
    assert isinstance(built, Artifact)
    record = built.lineage[-1]
    assert [entry.technique for entry in built.lineage] == ["source", "student"]
    assert record.weights_before == teacher.digest
    assert record.weights_after == built.digest
    assert (record.config["layers"], record.config["from"], record.seed) == (2, "teacher", 4)
    assert (record.facts["layers"], record.facts["random"]) == ([0, 2], [])
    assert load(built.save(tmp_path / "student")).digest == built.digest


@pytest.mark.parametrize("kind", ["classification", "masked-lm"])
def test_new_layers_between_the_teachers_embeddings_and_head(kind):
    """The teacher's norm has gains and biases of the same shape as a student's without statistics."""
    changes = {"normalization_type": "layer_norm", "intra_bottleneck_size": 48, "num_feedforward_networks": 1}
    teacher = tiny_taskmodel("mobilebert", tiny_spec(kind), **changes)
    options = {"normalization_type": "no_norm", "intra_bottleneck_size": 16, "num_feedforward_networks": 2}
    student = Student(init="embeddings", layers=4, options=options)
    built = student.build(teacher, seed=3)
    config = built.model.config
    assert (config.true_hidden_size, config.normalization_type, shape_of(config).layers) == (16, "no_norm", 4)
    given, inside = teacher.model.state_dict(), [f"{name}." for name in layer_names(built.model)]
    for name, tensor in built.model.state_dict().items():
        assert name.startswith(tuple(inside)) or torch.equal(tensor, given[name]), name
    fresh = Student(init="random", layers=4, options=options).build(teacher, seed=3)
    for own, other in zip(layers(built.model), layers(fresh.model), strict=True):
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in own.state_dict().items())
    facts = Student(init="embeddings").build(Artifact.from_model(tiny("bert", kind))).lineage[-1].facts
    assert facts["copied"] + len(facts["random"]) == len(list(tiny("bert", kind).model.parameters()))
    assert all(".layer." in name for name in facts["random"])
    assert "embeddings and head from teacher, layers random" in student.describe(teacher)


def test_what_lies_outside_of_the_layers_is_taken_where_it_fits():
    built = Student(init="embeddings", max_positions=40, intermediate_size=20).build(tiny())
    table = embedding_parts(built.model)
    assert len(table["positions"].weight) == 40
    assert torch.equal(table["words"].weight, embedding_parts(tiny().model)["words"].weight)
    assert not torch.equal(table["positions"].weight, embedding_parts(tiny().model)["positions"].weight[:40])


def test_the_table_says_what_will_be_and_is_logged(caplog):
    student = Student(layers=2, hidden_size=16, init="width")
    table = student.describe(tiny())
    found = student.predict(tiny())
    assert "bert, 2 layers, hidden 16, 4 heads, FFN 64, vocabulary" in table
    for cost in (found.student, found.teacher):
        assert all(f"{number:,}" in table for number in (cost.parameters, cost.bytes, cost.macs))
    assert "layers 0, 2; kept are the hidden channels" in table
    with caplog.at_level(logging.INFO, "compress.student.student"):
        student.build(tiny())
    assert table in caplog.text


REFUSALS = [
    ({"layers": (0, 5)}, ["[5] do not exist; the teacher has layers 0 to 2"]),
    ({"layers": (2, 0, 0)}, ["must ascend, each layer once, such as [0, 2]"]),
    ({"layers": ()}, ["must ascend"]),
    ({"layers": 7}, ["at most 3"]),
    ({"layers": (0, 1), "init": "random"}, ["write layers: 2"]),
    ({"layers": (0, 1), "init": "embeddings"}, ["write layers: 2"]),
    ({"family": "electra", "init": "embeddings"}, ["takes those of bert, and not for electra; use init: random"]),
    ({"options": {"hidden_dropout": 0.0}}, ["bert has no 'hidden_dropout'; did you mean 'hidden_dropout_prob'?"]),
    ({"options": {"num_hidden_layers": 2}}, ["is a dimension; write layers: 2 beside options"]),
    ({"options": {"type_vocab_size": "two"}}, ["type_vocab_size: 'two' is refused by transformers"]),
    (
        {"family": "mobilebert", "init": "random", "options": {"normalization_type": "batch_norm"}},
        ["cannot run a network with these values ('batch_norm')"],
    ),
    (
        {"hidden_size": 30},
        ["4 heads do not divide hidden_size 30; nearest heads: 3, 5; nearest sizes for 4 heads: 28, 32"],
    ),
    ({"hidden_size": 24}, ["hidden_size 24 (teacher 32); init: width"]),
    ({"heads": 2}, ["heads 2 (teacher 4)"]),
    ({"heads": 2, "init": "width"}, ["2 heads of 16 channels, and the teacher's heads have 8", "nearest heads: 4"]),
    ({"hidden_size": 64, "init": "width"}, ["more than the teacher's 32"]),
    ({"intermediate_size": 100, "init": "width"}, ["intermediate_size: 100, more than the teacher's 64"]),
    ({"max_positions": 1000}, [f"the teacher has {POSITIONS}"]),
    ({"vocab_size": 10, "init": "random"}, ["the tokenizer gives ids up to", "prune.vocabulary"]),
    ({"vocab_size": 500}, ["leave it out", "prune.vocabulary"]),
    ({"family": "distilbret"}, ["did you mean 'distilbert'?"]),
    ({"family": "funnel"}, ["'funnel' is not supported; allowed: albert, bart, bert,"]),
    ({"family": "modernbert"}, ["weights of bert do not fit modernbert", "distilbert", "init: random"]),
    (
        {"family": "mobilebert", "heads": 3, "init": "random"},
        ["do not divide the bottleneck of 128; nearest heads: 2, 4"],
    ),
    ({"family": "modernbert", "hidden_size": 20, "init": "random"}, ["even number of channels", "nearest heads: 2, 5"]),
    ({"family": "xlnet", "hidden_size": 9, "heads": 3, "init": "random"}, ["even number"]),
    ({"family": "xlnet", "max_positions": 64, "init": "random"}, ["xlnet has none"]),
    (
        {"embedding_size": 8, "activation": "gelo", "vocab_size": 3},
        ["bert has none; leave it out, or choose a family that does: albert", "did you mean 'gelu'?", "at least 137"],
    ),
]


@pytest.mark.parametrize(("fields", "parts"), REFUSALS)
def test_impossible_shapes_are_refused_with_what_is_near(fields, parts):
    student = Student(**fields)
    with pytest.raises(UserError) as caught:
        student.build(tiny())
    assert list(caught.value.problems) == student.problems(tiny())
    assert all(part in str(caught.value) for part in parts)
    assert all(problem.startswith("student.") for problem in caught.value.problems)


def test_refusals_that_only_some_families_need():
    for family, kind, fields, part in (
        ("electra", "classification", {"hidden_size": 16, "init": "width"}, "the two sizes cannot be equal"),
        ("mobilebert", "masked-lm", {"hidden_size": 16, "init": "width"}, "at most 15"),
        ("electra", "classification", {"family": "bert"}, "leave family out, or use init: random"),
    ):
        assert any(part in problem for problem in Student(**fields).problems(tiny(family, kind)))
    assert Student(family="xlnet", init="random").problems(tiny(kind="masked-lm")) == [
        "student.family: xlnet has no masked-language head in transformers; choose another family"
    ]


def test_nearest_numbers():
    assert nearest(10, (1, 8, 12, 24)) == "8, 12"
    assert nearest(3, ()) == "none"


def test_depth_is_left_alone_by_default():
    assert Student().kept_layers(tiny()) == tuple(range(LAYERS))
