"""Magnitude pruning against numbers by hand, and masks that nothing moves."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from compress import load
from compress.artifact.artifact import Artifact
from compress.artifact.structure import structure_of
from compress.engine.steps import run
from compress.export import export_onnx
from compress.modules.masked import MaskedEmbedding, MaskedLinear, masked, plain
from compress.prune.gates import GatedLinear
from compress.prune.magnitude import MagnitudePruning, MaskSchedule
from compress.prune.magnitude_ranking import keep_in_groups, keep_largest, keep_largest_together
from compress.prune.matrices import prunable
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.cost.size import onnx_size, sparse_bytes
from eval.inference import predict
from teachers.taskmodel import weights_digest
from teachers.training.config import Training
from teachers.training.loop import train
from tests.stopping import StopsAt
from tests.tiny import in_turn, tiny_task, tiny_taskmodel

PARTS = ("layers", "embeddings", "pooler")


def once(**fields):
    return MagnitudePruning(schedule="once", recover=False, **fields)


def applied(technique, model=None, inputs=None, seed=0):
    model = model or tiny_taskmodel("bert", tiny_task().spec)
    return technique.apply(model, inputs or Inputs(), torch.Generator().manual_seed(seed))


# ---- the formula


def test_the_cubic_schedule_by_hand():
    technique = MagnitudePruning(sparsity=0.5, begin=0, until=0.1)
    course = {t: technique.sparsity_at(t, 100_000) for t in (0, 2500, 5000, 7500, 10_000, 50_000)}
    expected = {0: 0.0, 2500: 0.289063, 5000: 0.4375, 7500: 0.492188, 10_000: 0.5, 50_000: 0.5}
    assert course == pytest.approx(expected, abs=1e-6)


def test_the_largest_are_kept():
    weights = torch.tensor([3.0, -0.1, 0.5, -2.0])
    assert MagnitudePruning(sparsity=0.5).masks([weights], 0.5)[0].tolist() == [True, False, False, True]
    assert keep_largest(torch.zeros(5), 2).tolist() == [True, True, False, False, False], "ties: the first ones"
    assert keep_in_groups(torch.tensor([[4.0, 1, 2, 3, 0, 0, 5, 0]]), 2, 4).tolist() == [
        [True, False, False, True, True, False, True, False]
    ]


def slow_mask(weight, share):
    """Sort all entries by size and place, and cross out the smallest."""
    entries = sorted((abs(value), -place) for place, value in enumerate(weight.flatten().tolist()))
    pruned = {-place for _, place in entries[: round(share * len(entries))]}
    return torch.tensor([place not in pruned for place in range(weight.numel())]).reshape(weight.shape)


def test_counts_are_exact_and_masks_nested():
    chance = torch.Generator().manual_seed(0)
    weight = torch.randint(-6, 6, (13, 17), generator=chance).float()  # many ties
    before = torch.ones_like(weight, dtype=torch.bool)
    for share in (0.0, 0.1, 0.333, 0.5, 0.77, 0.99):
        (keep,) = MagnitudePruning(sparsity=0.5).masks([weight], share)
        assert int((~keep).sum()) == round(share * weight.numel())
        assert torch.equal(keep, slow_mask(weight, share))
        assert not (keep & ~before).any()
        before = keep


def test_a_global_ranking_puts_all_matrices_in_one_order():
    small, large = torch.full((2, 3), 0.1), torch.arange(1.0, 7.0)
    keep = keep_largest_together([small, large], 4)
    assert [part.tolist() for part in keep] == [[[False] * 3] * 2, [False, False, True, True, True, True]]
    chosen = MagnitudePruning(sparsity=0.5, ranking="global").masks([small, large], 0.5)
    assert [int(part.sum()) for part in chosen] == [0, 6]
    assert [int(part.sum()) for part in MagnitudePruning(sparsity=0.5).masks([small, large], 0.5)] == [3, 3]


# ---- once, without training


def test_each_matrix_has_its_share_of_zeros():
    source = tiny_taskmodel("bert", tiny_task().spec)
    weights = {path: module.weight.detach().clone() for path, module in prunable(source.model, PARTS).items()}
    outcome = applied(once(sparsity=0.3))
    assert len(weights) == 3 * 6 + 1 + 1
    for path, before in weights.items():
        after = outcome.model.model.get_submodule(path).weight
        assert torch.equal(after, before * slow_mask(before, 0.3)), path
        assert not torch.signbit(after[after == 0]).any(), "zeros are +0.0"
    untouched = {"bert.embeddings.position_embeddings.weight", "classifier.weight", "bert.embeddings.LayerNorm.weight"}
    before, after = source.model.state_dict(), outcome.model.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in untouched)
    assert outcome.facts["sparsity_of_pruned_matrices"] == pytest.approx(0.3, abs=1e-3)
    assert outcome.facts["sparsity_of_all_parameters"] < 0.3
    assert outcome.facts["pruned_matrices"] == 20


def test_a_pattern_holds_in_every_group():
    outcome = applied(once(pattern="2:4"))
    for path in outcome.facts["masked"]:
        groups = outcome.model.model.get_submodule(path).weight.reshape(-1, 4)
        assert ((groups != 0).sum(dim=1) <= 2).all()
        assert (groups != 0).sum() == 2 * len(groups) or "words" in path or "word_embeddings" in path


def test_no_sparsity_changes_nothing():
    model = tiny_taskmodel("bert", tiny_task().spec)
    digest = weights_digest(model.model)
    outcome = applied(once(sparsity=0.0), model)
    assert weights_digest(outcome.model.model) == digest
    assert structure_of(outcome.model.model) == {}


def test_stock_loads_anywhere(tmp_path):
    from transformers import AutoModelForSequenceClassification

    task = tiny_task()
    sparse, stock = applied(once(sparsity=0.5)).model, applied(once(sparsity=0.5, stock=True)).model
    assert structure_of(stock.model) == {}
    assert weights_digest(stock.model) == weights_digest(sparse.model)
    Artifact.from_model(stock).save(tmp_path / "a")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "a")
    assert weights_digest(again) == weights_digest(stock.model)
    assert np.array_equal(stock.forward(inputs_of(stock, task)), sparse.forward(inputs_of(sparse, task)))


def inputs_of(model, task):
    return model.encoder.collate(model.encoder.encode(task.validation[:6]))


def test_bytes_are_a_bit_for_each_weight_and_those_that_are_left():
    model = tiny_taskmodel("bert", tiny_task().spec)
    dense = model.size()
    after = applied(once(sparsity=0.9, parts=["layers"])).model
    counts = [module.weight for module in prunable(after.model, ("layers",)).values()]
    left = sum(w.numel() - round(0.9 * w.numel()) for w in counts)
    total = sum(w.numel() for w in counts)
    assert dense.bytes - after.size().bytes == 4 * total - (total // 8 + 4 * left)
    assert dense.nonzero - after.size().nonzero == total - left
    assert after.size().macs == dense.macs, "zeros are multiplied too"
    sizes = {zeros: sparse_bytes(torch.tensor([0.0] * zeros + [1.0] * (320 - zeros))) for zeros in (10, 11)}
    assert sizes == {10: 1280, 11: 1276}, "a 1/32 of zeros pays for the bits"


# ---- masks that stay


def zeros_of(model):
    return {path: module.weight == 0 for path, module in prunable(model, PARTS).items()}


@pytest.mark.parametrize("kind", ["classification", "masked-lm"])
def test_zeros_stay_through_later_training(kind):
    task = tiny_task(kind)
    model = applied(once(sparsity=0.6), tiny_taskmodel("bert", task.spec)).model
    before, weights = zeros_of(model.model), copy.deepcopy(model.model.state_dict())
    train(model, task.train, training=Training(max_steps=8, batch_size=8, learning_rate=1e-2, weight_decay=0.5))
    for path, zeros in before.items():
        after = model.model.get_submodule(path).weight
        assert (after[zeros] == 0).all(), path
        assert not torch.signbit(after[zeros]).any()
        assert not torch.equal(after, weights[f"{path}.weight"])
    if kind == "masked-lm":
        assert model.model.cls.predictions.decoder.weight is model.model.bert.embeddings.word_embeddings.weight
        assert type(model.model.cls.predictions.decoder) is MaskedLinear


def test_zeros_get_no_gradient():
    layer = masked(nn.Linear(2, 2, bias=False), torch.tensor([[True, False], [True, True]]))
    layer(torch.tensor([1.0, 2.0])).sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 0.0], [1.0, 2.0]]
    table = masked(nn.Embedding(3, 2), torch.tensor([[True, False], [True, True], [False, True]]))
    table(torch.tensor([0, 0, 2])).sum().backward()
    assert table.weight.grad.tolist() == [[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    assert type(plain(table)) is nn.Embedding
    assert plain(layer).weight is layer.weight
    with pytest.raises(TypeError, match="LayerNorm has no masked kind"):
        masked(nn.LayerNorm(3))


def test_a_gated_layer_keeps_what_is_under_the_mask():
    layer = GatedLinear(nn.Linear(2, 1, bias=False))
    dense = layer.weight.detach().clone()
    layer.mask.copy_(torch.tensor([[True, False]]))
    layer(torch.ones(2)).sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 0.0]]
    assert torch.equal(layer.weight, dense)
    schedule = MaskSchedule(MagnitudePruning(sparsity=0.5, until=0.5, every=4), [[layer]])
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.1, 2.0]]))
    assert [schedule.at_step(step, 10) for step in (0, 3, 4, 5, 6)] == [False, False, False, True, True]
    assert layer.mask.tolist() == [[False, True]], "a weight that grew is let in again"
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 2.0]]))
    assert schedule.at_step(7, 10)
    assert layer.mask.tolist() == [[False, True]], "after the last choice the mask is fixed"


def gradual(**fields):
    block = {"training": Training(epochs=2, batch_size=8, learning_rate=1e-2, checkpoint_seconds=0)}
    return MagnitudePruning(**{"sparsity": 0.5, "every": 2, **block, **fields})


def test_gradual_pruning_ends_at_its_sparsity():
    task = tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation)
    outcome = applied(gradual(), inputs=inputs)
    model = outcome.model.model
    for path in outcome.facts["masked"]:
        weight = model.get_submodule(path).weight
        assert int((weight == 0).sum()) == round(0.5 * weight.numel()), path
    assert {type(m) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)} <= {
        MaskedLinear,
        MaskedEmbedding,
        nn.Linear,
        nn.Embedding,
    }
    assert outcome.facts["history"][-1]["step"] == 10
    assert not any("mask" in name for name in model.state_dict())


@pytest.mark.parametrize(("ranking", "update"), in_turn(("local", "global"), (1, 4, 7), 2))
def test_a_stopped_pruning_goes_on_to_the_same_weights(update, ranking, tmp_path, monkeypatch):
    task, technique = tiny_task(), gradual(ranking=ranking)
    whole = applied(technique, inputs=Inputs(train=task.train, validation=task.validation))
    inputs = Inputs(train=task.train, validation=task.validation, folder=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(MagnitudePruning, "make_objective", lambda *_: StopsAt(update))
        with pytest.raises(KeyboardInterrupt):
            applied(technique, inputs=inputs)
    again = applied(technique, inputs=inputs)
    assert weights_digest(again.model.model) == weights_digest(whole.model.model)


def test_a_saved_result_loads_in_another_process_and_is_trained_on(forker, tmp_path):
    task = tiny_task()
    artifact = run(Recipe(steps=(once(sparsity=0.7),)), tiny_taskmodel("bert", task.spec))
    artifact.save(tmp_path / "a")
    code = (
        "import sys; from compress import load\n"
        "m = load(sys.argv[1]); print(m.digest, sorted({type(p).__name__ for p in m.model.modules()} & "
        "{'MaskedLinear', 'MaskedEmbedding'}))"
    )
    printed = forker.program(code, str(tmp_path / "a"), cwd=tmp_path)
    assert printed.strip() == f"{artifact.digest} ['MaskedEmbedding', 'MaskedLinear']"
    again = load(tmp_path / "a")
    before = zeros_of(again.model)
    train(again, task.train, training=Training(max_steps=3, batch_size=8, learning_rate=1e-2))
    assert all(torch.equal(zeros, zeros_of(again.model)[path]) for path, zeros in before.items())


def test_the_export_holds_plain_weights(tmp_path):
    import onnx

    task = tiny_task()
    model = applied(once(sparsity=0.6)).model
    report = export_onnx(model, tmp_path / "out", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-5
    graph = onnx.load(str(tmp_path / "out" / "model.onnx")).graph
    assert "Where" not in {
        node.op_type for node in graph.node if "dense" in node.name or "word_embeddings" in node.name
    }
    plain_report = export_onnx(applied(once(sparsity=0.6, stock=True)).model, tmp_path / "b", examples=task.validation)
    assert report.bytes == pytest.approx(plain_report.bytes, rel=0.01)
    # An untrained model decides near ties, and int8 turns some of them.
    quantized = export_onnx(model, tmp_path / "c", int8=True, examples=task.validation, agreement=0.5)
    small, large = (onnx_size(tmp_path / name / "model.onnx").bytes for name in ("c", "out"))
    assert quantized.scheme == "int8"
    assert small < large / 2


# ---- what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "2:4", "sparsity": 0.5}, "leave out sparsity"),
        ({"pattern": "5:4"}, "must keep 1 to all"),
        ({"recover": False}, "write schedule: once"),
        ({"begin": 0.6}, r"begin \(0.6\) must be before until \(0.5\)"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MagnitudePruning(**fields)


def test_what_a_model_lacks_is_named():
    model = tiny_taskmodel("distilbert", tiny_task().spec)
    (problem,) = once(parts=["pooler"]).check(model, Inputs())
    assert problem == "prune.magnitude: this model has nothing to prune in pooler; choose other parts"
    (problem,) = once(pattern="2:5").check(model, Inputs())
    assert "5 does not divide the rows of 19 matrices" in problem
    assert once().needed() == frozenset()
    assert MagnitudePruning().needed() == {"train"}


def test_what_is_left_of_a_pruned_model_can_be_pruned_again():
    first = applied(once(sparsity=0.5)).model
    before = zeros_of(first.model)
    after = zeros_of(applied(once(sparsity=0.8), first).model.model)
    assert all((after[path] | ~zeros).all() for path, zeros in before.items())
    assert predict(first, tiny_task().validation[:2]).logits
