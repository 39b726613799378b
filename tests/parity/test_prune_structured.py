"""Cuts through the graph against masks and scores by hand; what is standard loads as standard, the rest through us."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from compress import load
from compress.artifact.structure import structure_of
from compress.engine.steps import run
from compress.export import export_onnx
from compress.prune.dependency import Dependencies, best, best_in_heads, best_overall, roots
from compress.prune.structured import StructuredPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from teachers.anatomy.attention_heads import head_counts
from teachers.anatomy.encoder import layer_parts, layers, shape_of
from tests.tiny import FAMILIES, FFN, HEADS, in_turn, tiny_task, tiny_taskmodel

WIDTHS = ("bert", "roberta", "ernie", "distilbert", "albert", "electra")
UNHEALED = {"recover": False}


def pruned(family, seed=0, kind="classification", **fields):
    task = tiny_task(kind)
    source = tiny_taskmodel(family, task.spec, seed=seed)
    inputs = Inputs(train=task.train, calibration=task.train[:8])
    return run(Recipe(steps=(StructuredPruning(**{**UNHEALED, **fields}),)), source, inputs), source, task


def same(first, second, task, atol=1e-5):
    examples = task.validation[:6]
    a, b = (np.stack(predict(model, examples).logits) for model in (first, second))
    np.testing.assert_allclose(a, b, atol=atol)


def test_the_choices():
    scores = [torch.tensor([0.5, 3.0, 2.0, 3.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])]
    assert best(scores[0], 2) == [1, 3]
    assert best_overall(scores, 4) == [[1, 2, 3], [3]]
    assert best_overall(scores, 1) == [[1], [3]], "every layer keeps one"
    # heads (0.5, 3) and (2, 3): the second is better on average; one channel of each
    assert best_in_heads(scores[0], 2, 1, 2) == [2, 3]
    assert best_in_heads(scores[0], 2, 2, 1) == [1, 3]


@pytest.mark.parametrize("family", FAMILIES)
def test_magnitude_is_the_squares_of_row_and_column(family):
    model = tiny_taskmodel(family)
    path = roots(model.model)["ffn"][0]
    parts = layer_parts(model.model, layers(model.model)[0])
    found = Dependencies(model.model).scores("ffn", path, "magnitude")
    out = model.model.get_submodule(path)
    role = next(role for role, part in parts.items() if part is out)
    if "gated_in" in parts:
        halves = parts["gated_in"].weight.reshape(2, FFN, -1).square().sum(dim=-1)
        expected = (halves.sum(dim=0) + out.weight.square().sum(dim=0)) / 3
    else:
        rows = parts[role.replace("out", "in")].weight.square().sum(dim=1)
        expected = (rows + out.weight.square().sum(dim=0)) / (1 if family == "albert" else 2)
    expected = expected / expected.mean()
    torch.testing.assert_close(found, expected.detach().double(), rtol=1e-4, atol=1e-6)


def test_taylor_adds_up_absolute_values_and_not_what_cancels():
    model = tiny_taskmodel("bert")
    into, out = (layer_parts(model.model, layers(model.model)[0])[role] for role in ("ffn_in", "ffn_out"))
    draw = torch.Generator().manual_seed(5)
    for parameter in model.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    with torch.no_grad():  # the first neuron's effects cancel out, weight by weight
        into.weight[0], out.weight[:, 0] = 1.0, 1.0
        into.weight.grad[0], out.weight.grad[:, 0] = (torch.tensor([3.0, -3.0]).repeat(16) for _ in range(2))
    found = Dependencies(model.model).scores("ffn", roots(model.model)["ffn"][0], "taylor")
    outside, inside = [], []
    for neuron in range(FFN):
        row, column = (into.weight * into.weight.grad)[neuron], (out.weight * out.weight.grad)[:, neuron]
        outside.append((row.sum().abs().item() + column.sum().abs().item()) / 2)
        inside.append((sum(abs(x) for x in row.tolist()) + sum(abs(x) for x in column.tolist())) / 2)
    assert found.tolist() == pytest.approx((np.array(inside) / np.mean(inside)).tolist(), rel=1e-4)
    assert (found.argmax(), np.argmin(outside)) == (0, 0), "the other formula would drop this one first"


@pytest.mark.parametrize(("family", "uniform"), in_turn(FAMILIES, (True, False), 2, always=("bert",)))
def test_neurons_that_are_cut_are_neurons_set_to_nothing(family, uniform, tmp_path):
    result, source, task = pruned(family, ffn=0.5, uniform=uniform)
    kept = result.lineage[-1].facts["kept"]["ffn"]
    with torch.no_grad():
        for path, neurons in kept.items():
            dropped = [i for i in range(FFN) if i not in neurons]
            source.model.get_submodule(path).weight[:, dropped] = 0
    same(result, source, task)
    assert sum(map(len, kept.values())) == len(kept) * FFN // 2
    assert (structure_of(result.model) == {}) is (len({len(n) for n in kept.values()}) == 1)
    result.save(tmp_path / "a")
    assert load(tmp_path / "a").digest == result.digest


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert", "electra", "opt"])
@pytest.mark.parametrize("uniform", [True, False])
def test_heads_that_are_cut_give_nothing(family, uniform, tmp_path):
    result, source, task = pruned(family, ffn=0, heads=0.5, uniform=uniform)
    kept = result.lineage[-1].facts["kept"]["attention"]
    for layer in {id(layer): layer for layer in layers(source.model)}.values():
        parts = layer_parts(source.model, layer)
        path = next(name for name, module in source.model.named_modules() if module is parts["query"])
        output = parts["attention_output"]
        dropped = [i for i in range(output.in_features) if i not in kept[path]]
        with torch.no_grad():
            output.weight[:, dropped] = 0
    same(result, source, task)
    assert sum(head_counts(result.model)) == len(head_counts(result.model)) * HEADS // 2
    result.save(tmp_path / "a")
    same(load(tmp_path / "a"), result, task, atol=1e-6)


@pytest.mark.parametrize(("family", "kind"), in_turn(WIDTHS, ("classification", "masked-lm"), 2, always=("bert",)))
def test_widths_are_stock_and_every_weight_is_one_of_the_old(family, kind, tmp_path):
    fields = {"embedding": 0.5} if family in ("albert", "electra") else {}
    result, source, task = pruned(family, kind=kind, ffn=0.5, hidden=0.4, heads=0.25, stock=True, **fields)
    shape = shape_of(result.model.config)
    assert (shape.hidden_size, shape.heads, shape.intermediate_size) == (18, 3, FFN // 2)
    assert shape.embedding_size == {"albert": 8, "electra": 8}.get(family)
    assert structure_of(result.model) == {}
    kept = next(iter(result.lineage[-1].facts["kept"]["hidden"].values()))
    old, new = (layer_parts(m.model, layers(m.model)[0])["ffn_norm"].weight for m in (source, result))
    assert torch.equal(new, old[kept])
    old, new = (layer_parts(m.model, layers(m.model)[0]) for m in (source, result))
    neurons = next(iter(result.lineage[-1].facts["kept"]["ffn"].values()))
    assert torch.equal(new["ffn_in"].weight, old["ffn_in"].weight[neurons][:, kept])
    result.save(tmp_path / "a")
    assert load(tmp_path / "a").digest == result.digest
    if kind == "classification":
        stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "a").eval()
        inputs = result.encoder.collate(result.encoder.encode(task.validation[:4]))
        with torch.no_grad():
            logits = stock(**{name: torch.from_numpy(a) for name, a in inputs.items()}).logits
        np.testing.assert_allclose(logits.numpy(), result.forward(inputs), atol=1e-6)


def test_channels_that_are_nothing_can_go():
    """A model of 24 channels, hidden in one of 32 whose others do nothing, is found again but for its norms."""
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    result = run(
        Recipe(steps=(StructuredPruning(ffn=0.0, hidden=0.25, importance="magnitude", recover=False),)), model, Inputs()
    )
    channels = next(iter(result.lineage[-1].facts["kept"]["hidden"].values()))
    again = Dependencies(model.model).scores("hidden", roots(model.model)["hidden"][0], "magnitude")
    assert channels == best(again, 24)


@pytest.mark.parametrize("importance", ["taylor", "magnitude", "random"])
def test_healing_and_its_absence(importance):
    task = tiny_task("classification")
    step = StructuredPruning(importance=importance, max_steps=3, batch_size=8, objective="distill.labels")
    inputs = Inputs(train=task.train, calibration=task.train[:8])
    result = run(Recipe(seed=3, steps=(step,)), tiny_taskmodel("bert", task.spec), inputs)
    assert result.lineage[-1].facts["history"]
    unhealed = StructuredPruning(importance=importance, recover=False)
    assert unhealed.needed() == ({"calibration"} if importance == "taylor" else set())
    assert StructuredPruning(importance="magnitude").needed() == {"train"}
    one, two = (run(Recipe(seed=s, steps=(unhealed,)), tiny_taskmodel("bert", task.spec), inputs) for s in (3, 4))
    assert (one.digest == two.digest) is (importance != "random")


def test_the_export_answers_alike(tmp_path):
    result, _, task = pruned("bert", ffn=0.5, heads=0.5, uniform=False)
    report = export_onnx(result, tmp_path / "out", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-5


def test_mistakes_are_named():
    def said(family, **fields):
        return "; ".join(StructuredPruning(**fields).check(tiny_taskmodel(family), Inputs()))

    for family in ("xlnet", "mobilebert", "deberta-v2", "modernbert", "gpt2"):
        assert f"heads and widths of {family} cannot be cut through the graph" in said(family, hidden=0.5)
        assert f"heads and widths of {family} cannot be cut through the graph" in said(family, heads=0.5)
        assert said(family) == ""
    assert "are not factorised" in said("bert", embedding=0.5)
    for fields, message in [
        ({"ffn": 0}, "nothing would be removed"),
        ({"hidden": 0.5, "uniform": False}, "write uniform: true with them"),
        ({"stock": True, "uniform": False}, "equal layers"),
        ({"stock": True, "heads": 0.5}, "fewer heads need a smaller hidden"),
        ({"recover": False, "objective": "distill.labels"}, "an objective is for recovery fine-tuning"),
    ]:
        with pytest.raises(ValueError, match=message):
            StructuredPruning(**fields)
    result, _, task = pruned("bert", ffn=0.5, uniform=False)
    with pytest.raises(UserError, match="widths are cut in standard networks alone"):
        run(Recipe(steps=(StructuredPruning(hidden=0.5, recover=False),)), result, Inputs(calibration=task.train))


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_a_tied_decoder_is_cut_like_the_table(family):
    result, _, _ = pruned(family, kind="masked-lm", ffn=0, hidden=0.5)
    parameters = result.model.get_output_embeddings().weight, result.model.get_input_embeddings().weight
    assert parameters[0] is parameters[1]
