"""Factorised layers against Eckart and Young's bound, a search over ranks, and outputs on the calibration examples."""

import numpy as np
import pytest
import torch
from torch import nn

from compress import load
from compress.artifact.artifact import Artifact
from compress.artifact.structure import structure_of
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.modules.low_rank import LowRankLinear
from compress.quantize.weights import WeightQuantization
from compress.recipe import Recipe
from compress.share.lowrank import (
    LowRank,
    factorise,
    input_root,
    largest_rank,
    rank_for,
    second_moments,
    singular_values,
)
from compress.technique import Inputs
from eval.inference import predict
from teachers.anatomy.encoder import layer_parts, layers
from tests.tiny import at_first, tiny_task, tiny_taskmodel


@pytest.fixture
def task():
    return tiny_task("classification")


def matrix(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_product_is_the_nearest_of_its_rank():
    weight = matrix(7, 5)
    values = np.linalg.svd(weight.numpy(), compute_uv=False)
    for rank in range(1, 6):
        first, second, lost = factorise(weight, rank)
        assert first.shape == (rank, 5)
        assert second.shape == (7, rank)
        error = float((weight - second @ first).square().sum())
        assert error == pytest.approx(float((values[rank:] ** 2).sum()), abs=1e-5), "Eckart and Young"
        assert lost == pytest.approx(error / float((values**2).sum()), abs=1e-6)


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_moments_are_of_real_tokens_alone(family, task):
    """Texts of several lengths, read together and one by one, also where layers compute on the tokens first."""
    model, texts = tiny_taskmodel(family, task.spec), task.train[:6]
    parts = layer_parts(model.model, layers(model.model)[1])
    linear = [parts["query"], parts["ffn_in"], parts["ffn_out"]]
    lengths = [len(feature.ids) for feature in model.encoder.encode(texts)]
    assert len(set(lengths)) > 1
    found, single = second_moments(model, linear, texts), [second_moments(model, linear, [text]) for text in texts]
    for module in linear:
        expected = sum(one[module] * count for one, count in zip(single, lengths, strict=True)) / sum(lengths)
        assert torch.allclose(found[module], expected, rtol=1e-4, atol=1e-6)


def test_a_matrix_by_hand():
    weight = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    first, second, lost = factorise(weight, 1)
    assert torch.allclose(second @ first, torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), atol=1e-6)
    assert lost == pytest.approx(0.1)
    # An input channel that is ten times as strong outweighs the larger weight beside it.
    root = input_root(torch.diag(torch.tensor([1.0, 100.0])), "rms")
    first, second, _ = factorise(weight, 1, root)
    assert torch.allclose(second @ first, torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), atol=1e-6)


def test_the_covariance_gives_the_nearest_outputs():
    weight, inputs = matrix(6, 8), matrix(200, 8, seed=1) @ matrix(8, 8, seed=2)
    root = input_root(inputs.T @ inputs / len(inputs), "covariance")

    def error(factors):
        return float((inputs @ (weight - factors[1] @ factors[0]).T).square().sum())

    found = error(factorise(weight, 3, root))
    # The best outputs of rank 3: project X Wᵀ on its own first three singular vectors.
    outputs = inputs @ weight.T
    best = float(torch.linalg.svdvals(outputs)[3:].square().sum())
    assert found == pytest.approx(best, rel=1e-3)
    assert error(factorise(weight, 3)) > 1.2 * found
    assert error(factorise(weight, 3, input_root(inputs.T @ inputs / len(inputs), "rms"))) > found


def test_the_rank_of_an_energy_by_search():
    values = singular_values(matrix(9, 6), None)
    for energy in (0.1, 0.5, 0.9, 0.99):
        total, rank = 0.0, 0
        while total < energy * float(values.square().sum()):
            total += float(values[rank] ** 2)
            rank += 1
        assert rank_for(values, energy) == rank
    assert rank_for(torch.tensor([2.0, 1.0, 0.0]), 0.8) == 1


@pytest.mark.parametrize(("inputs", "outputs"), [(768, 768), (768, 3072), (32, 64), (1, 1), (5, 3)])
def test_the_largest_rank_is_the_last_that_saves(inputs, outputs):
    rank = largest_rank(inputs, outputs)
    assert rank * (inputs + outputs) < inputs * outputs or rank == 0
    assert (rank + 1) * (inputs + outputs) >= inputs * outputs
    assert largest_rank(768, 768) == 383
    assert largest_rank(768, 3072) == 614


def test_moments_leave_padding_out(task):
    model = tiny_taskmodel("bert", task.spec)
    module = layer_parts(model.model, layers(model.model)[0])["query"]
    found = second_moments(model, [module], task.train[:9])[module]
    total, count = torch.zeros(32, 32), 0
    for example in task.train[:9]:
        inputs = model.encoder.collate(model.encoder.encode([example]))
        with torch.no_grad():
            tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
            states = model.model.bert.embeddings(tensors["input_ids"], tensors["token_type_ids"])[0]
        total += states.T @ states
        count += len(states)
    assert torch.allclose(found.float(), total / count, atol=1e-5)


def test_sizes_fall_by_what_was_kept(task):
    model = tiny_taskmodel("bert", task.spec)
    before = model.size()
    outcome = LowRank(keep=0.5, recover=False).apply(model, Inputs(), torch.Generator())
    parts = layer_parts(outcome.model.model, layers(outcome.model.model)[1])
    assert {role: part.rank for role, part in parts.items() if isinstance(part, LowRankLinear)} == {
        **dict.fromkeys(("query", "key", "value", "attention_output"), 8),  # 0.5 · 32 · 32 / 64
        **dict.fromkeys(("ffn_in", "ffn_out"), 10),  # 0.5 · 32 · 64 / 96
    }
    after = outcome.model.size()
    fewer = 3 * (4 * (32 * 32 - 8 * 64) + 2 * (32 * 64 - 10 * 96))
    assert before.parameters - after.parameters == fewer
    assert before.macs - after.macs == before.macs_length * fewer
    assert len(outcome.facts["ranks"]) == 18


def test_a_layer_stays_where_nothing_is_saved(task):
    model = tiny_taskmodel("bert", task.spec)
    (problem,) = LowRank(rank=22, recover=False).check(model, Inputs())
    assert problem == "share.lowrank: rank 22 makes no layer smaller; the most that does is 21"
    outcome = LowRank(rank=16, recover=False).apply(model, Inputs(), torch.Generator())
    assert all(".dense" in path and "attention" not in path for path in outcome.facts["ranks"]), "32 x 32 stays"
    again = LowRank(rank=16, recover=False).apply(outcome.model, Inputs(), torch.Generator())
    assert again.facts["ranks"] == {}


def test_full_energy_is_the_model_itself(task):
    model = tiny_taskmodel("bert", task.spec)
    for layer in layers(model.model):
        for part in layer_parts(model.model, layer).values():
            if isinstance(part, nn.Linear):  # every matrix has rank 4
                with torch.no_grad():
                    part.weight.copy_(matrix(part.out_features, 4) @ matrix(4, part.in_features) / 8)
    expected = predict(model, task.validation[:6]).logits
    outcome = LowRank(energy=1 - 1e-9, recover=False).apply(model, Inputs(), torch.Generator())
    assert set(outcome.facts["ranks"].values()) == {4}
    assert np.allclose(predict(outcome.model, task.validation[:6]).logits, expected, atol=1e-5)


def test_a_shared_layer_is_factorised_once(task):
    model = tiny_taskmodel("bert", task.spec)
    every = layers(model.model)
    every[2].intermediate.dense = every[0].intermediate.dense
    outcome = LowRank(energy=0.5, recover=False).apply(model, Inputs(), torch.Generator())
    every = layers(outcome.model.model)
    assert every[2].intermediate.dense is every[0].intermediate.dense
    assert isinstance(every[0].intermediate.dense, LowRankLinear)
    assert "bert.encoder.layer.2.intermediate.dense" not in outcome.facts["ranks"]


@pytest.mark.parametrize("weighting", ["rms", "covariance"])
def test_a_weighting_keeps_outputs_nearer(weighting, task):
    expected = np.stack(predict(tiny_taskmodel("bert", task.spec), task.train[:20]).logits)

    def distance(technique):
        outcome = technique.apply(tiny_taskmodel("bert", task.spec), Inputs(calibration=task.train), torch.Generator())
        return float(np.square(np.stack(predict(outcome.model, task.train[:20]).logits) - expected).sum())

    plain = distance(LowRank(rank=4, recover=False))
    assert distance(LowRank(rank=4, recover=False, weighting=weighting)) < plain


def test_what_is_needed_follows_the_fields():
    assert LowRank(recover=False).needed() == set()
    assert LowRank().needed() == {"train"}
    assert LowRank(recover=False, weighting="rms").needed() == {"calibration"}
    assert LowRank(objective={"distill.logits": {}}).needed() == {"train", "teacher"}
    with pytest.raises(ValueError, match="give one of rank, energy and keep"):
        LowRank(rank=3, keep=0.5)
    with pytest.raises(ValueError, match="an objective is for recovery fine-tuning"):
        LowRank(recover=False, objective={"distill.logits": {}})


def test_attention_without_linear_layers_is_refused_by_name():
    model = tiny_taskmodel("xlnet")
    assert LowRank(parts=("attention",)).check(model, Inputs()) == []
    (problem,) = LowRank(parts=("attention",)).check(WeightQuantization().apply(model, Inputs(), None).model, Inputs())
    assert problem == "share.lowrank: parts ['attention'] of xlnet hold no plain linear layer"


@pytest.mark.parametrize("family", at_first(["bert", "deberta-v2", "modernbert"], "bert"))
def test_saved_exported_and_quantized(family, task, tmp_path):
    source = tiny_taskmodel(family, task.spec)
    artifact = run(Recipe(steps=(LowRank(recover=False),)), source, Inputs(train=task.train), dry_run_first=False)
    artifact.save(tmp_path / "a")
    again = load(tmp_path / "a")
    expected = np.stack(predict(artifact, task.validation[:6]).logits)
    assert np.array_equal(np.stack(predict(again, task.validation[:6]).logits), expected)
    report = export_onnx(artifact, tmp_path / "fp32", examples=task.validation)
    found = Runtime(tmp_path / "fp32").predict(task.validation[:6])
    assert np.allclose(np.stack(found.logits), expected, atol=1e-5)
    assert report.bytes < export_onnx(source, tmp_path / "source", examples=task.validation).bytes
    export_onnx(artifact, tmp_path / "int8", int8=True, examples=task.validation, agreement=0.9)


def test_parts_of_a_factor_are_saved_too(task, tmp_path):
    model = tiny_taskmodel("bert", task.spec)
    outcome = LowRank(recover=False).apply(model, Inputs(), torch.Generator())
    parts = [layer_parts(model.model, layer)["query"] for layer in layers(model.model)]
    parts[1].second = parts[0].second
    parts[2].first = nn.Linear(32, 8, bias=True)
    structure = structure_of(outcome.model.model)
    stem = "bert.encoder.layer.{}.attention.self.query.{}"
    assert structure["shared"] == {stem.format(1, "second"): stem.format(0, "second")}
    assert structure["modules"][stem.format(2, "first")]["bias"] is True
    Artifact.from_model(outcome.model).save(tmp_path / "a")
    again = layers(load(tmp_path / "a").model)
    assert again[1].attention.self.query.second is again[0].attention.self.query.second
    assert again[2].attention.self.query.first.bias is not None
