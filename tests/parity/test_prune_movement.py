"""Movement pruning against numbers by hand: schedule, masks, straight-through gradients, the regulariser."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from compress import load
from compress.engine.steps import run
from compress.export import export_onnx
from compress.modules.masked import MaskedLinear
from compress.prune.movement import MovementPruning, MovementSchedule, mean_sigmoid
from compress.prune.movement_scores import ScoredLinear, chosen, scheduled_value, spread
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.inference import predict
from teachers.anatomy.encoder import decoder_layer_names, decoder_layers, part_names
from teachers.taskmodel import weights_digest
from teachers.training.config import Training
from tests.stopping import StopsAt
from tests.tiny import HIDDEN, tiny_task, tiny_taskmodel

SHORT = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "checkpoint_seconds": 0}


def applied(technique, folder=None, family="bert", task=None):
    task = task or tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation, folder=folder)
    torch.manual_seed(0)
    return technique.apply(tiny_taskmodel(family, task.spec), inputs, torch.Generator().manual_seed(3))


def scored(weight, block=(1, 1), method="hard"):
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        plain.weight.copy_(weight)
    return ScoredLinear(plain, block, method, 1e-2)


# ---- the formula


def test_the_schedule_by_hand():
    expected = {0: 1, 100: 1, 200: 0.685277, 350: 0.375820, 600: 0.169825, 801: 0.15, 1000: 0.15}
    found = {t: scheduled_value(1.0, 0.15, t, 1000, 100, 1, 2) for t in expected}
    assert found == pytest.approx(expected, abs=1e-6)
    technique = MovementPruning(warmup_steps=0.1)
    assert {t: technique.value(t, 1000) for t in expected} == pytest.approx(expected, abs=1e-6)
    assert [technique.settled(step, 1000) for step in (800, 801)] == [False, True]
    soft = MovementPruning(method="soft", warmup_steps=0.1)
    assert [soft.value(t, 1000) for t in (0, 100, 801)] == [0, 0, 0.1]


def test_the_largest_scores_are_kept():
    scores = torch.tensor([[0.3, -0.1], [0.2, 0.05]])
    assert chosen(scores, "hard", 0.5).tolist() == [[True, False], [True, False]]
    weight = torch.tensor([[1.0, -4.0], [2.0, 0.5]])
    assert chosen(weight.abs(), "hard", 0.5).tolist() == [[False, True], [True, False]], "MaP, magnitude pruning"


def test_the_threshold_is_on_the_sigmoid_and_leaves_a_little():
    scores = torch.tensor([-3.0, -2.2, -2.1, 0.0])
    assert chosen(scores, "soft", 0.1).tolist() == [s > math.log(0.1 / 0.9) for s in scores.tolist()]
    low = torch.full((1000,), -9.0)
    assert int(chosen(low, "soft", 0.1).sum()) == 5, "at least 0.5 %"


@pytest.mark.parametrize("mask", [[[1, 1], [1, 1]], [[1, 0], [0, 1]], [[0, 0], [0, 0]]])
def test_the_gradient_of_scores_does_not_see_the_mask(mask):
    layer = scored(torch.tensor([[1.0, -4.0], [2.0, 0.5]]))
    layer.mask.copy_(torch.tensor(mask).bool())
    layer(torch.tensor([1.0, 2.0])).backward(torch.tensor([1.0, -1.0]))
    assert layer.scores.grad.tolist() == [[1.0, -8.0], [-2.0, -1.0]]
    expected = torch.tensor([[1.0, 2.0], [-1.0, -2.0]]) * torch.tensor(mask)
    assert torch.equal(layer.weight.grad, expected)


def test_the_effective_weight_is_exact():
    layer = scored(torch.randn(5, 7))
    with torch.no_grad():
        layer.scores.normal_()
    layer.choose(0.3)
    assert torch.equal(layer(torch.eye(7)), (layer.weight * layer.keep()).T)
    assert int(layer.keep().sum()) == round(0.3 * 35)


def test_a_block_has_one_score():
    weight = torch.randn(4, 6)
    layer = scored(weight, block=(2, 3))
    assert layer.scores.shape == (2, 2)
    x, upstream = torch.randn(6), torch.randn(4)
    layer(x).backward(upstream)
    product = torch.outer(upstream, x) * weight
    slow = [[product[2 * i : 2 * i + 2, 3 * j : 3 * j + 3].sum().item() for j in range(2)] for i in range(2)]
    assert np.allclose(layer.scores.grad.tolist(), slow, atol=1e-5)
    assert spread(torch.tensor([[1, 2]]), (2, 2)).tolist() == [[1, 1, 2, 2], [1, 1, 2, 2]]


def test_scores_begin_at_zero_and_have_their_own_rate():
    layer = scored(torch.randn(3, 3))
    assert not layer.scores.any()
    assert layer.rates() == {"scores": 1e-2}


def test_the_regulariser_follows_the_threshold():
    layers = [scored(torch.randn(2, 2), method="soft"), scored(torch.randn(4, 3), method="soft")]
    with torch.no_grad():
        layers[1].scores.fill_(-1.0)
    assert mean_sigmoid([layer.scores for layer in layers]).item() == pytest.approx((4 * 0.5 + 12 * 0.268941) / 16)
    schedule = MovementSchedule(MovementPruning(method="soft", penalty=400, warmup_steps=0.1), layers)
    schedule.at_step(0, 1000)
    assert schedule.terms()["scores"].item() == 0
    schedule.at_step(350, 1000)
    factor = 400 * (1 - (1 - 250 / 700) ** 3)
    assert schedule.terms()["scores"].item() == pytest.approx(factor * (4 * 0.5 + 12 * 0.268941) / 16, rel=1e-5)
    schedule.at_step(1000, 1000)
    assert schedule.weight == pytest.approx(400)
    assert MovementSchedule(MovementPruning(), layers).terms() == {}


# ---- whole trainings


@pytest.mark.parametrize("family", ["bert", "modernbert", "mobilebert"])
def test_each_matrix_keeps_its_share(family):
    outcome = applied(MovementPruning(keep=0.25, **SHORT), family=family)
    network = outcome.model.model
    for path in outcome.facts["masked"]:
        weight = network.get_submodule(path).weight
        assert type(network.get_submodule(path)) is MaskedLinear
        assert int((weight != 0).sum()) == round(0.25 * weight.numel()), path
    assert outcome.facts["sparsity_of_pruned_matrices"] == pytest.approx(0.75, abs=1e-3)
    assert not any("scores" in name for name in network.state_dict())


def test_scores_and_not_sizes_decide():
    start = tiny_taskmodel("bert", tiny_task().spec)
    outcome = applied(MovementPruning(keep=0.5, **SHORT))
    path = outcome.facts["masked"][0]
    kept = outcome.model.model.get_submodule(path).weight != 0
    large = chosen(start.model.get_submodule(path).weight.abs(), "hard", 0.5)
    assert 0.3 < (kept == large).float().mean() < 0.9


def test_the_table_of_words_stays():
    start = tiny_taskmodel("bert", tiny_task().spec).model.bert.embeddings.word_embeddings.weight
    after = applied(MovementPruning(keep=0.25, **SHORT)).model.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(start, after)


def test_the_penalty_lowers_scores_and_prunes():
    left = {}
    for penalty in (0.0, 400.0):
        technique = MovementPruning(method="soft", penalty=penalty, score_rate=1.0, threshold=0.4, **SHORT)
        outcome = applied(technique)
        left[penalty] = 1 - outcome.facts["sparsity_of_pruned_matrices"]
        assert ("scores" in outcome.facts["history"][0]["terms"]) is True
    assert left[400.0] < left[0.0]
    assert left[400.0] >= 0.005


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_neurons_of_a_decoder_have_one_score_each_too(family):
    network = tiny_taskmodel(family, tiny_task("seq2seq").spec).model
    blocks = MovementPruning(block=(8, 16)).blocks(network)
    assert len(decoder_layers(network)) == 2
    for path, layer in zip(decoder_layer_names(network), decoder_layers(network), strict=True):
        parts = part_names(network, layer)
        assert blocks[f"{path}.{parts['ffn_in']}"] == (1, HIDDEN)
        assert blocks[f"{path}.{parts['ffn_out']}"] == (HIDDEN, 1)
        assert blocks[f"{path}.{parts['cross_query']}"] == (8, 16)


def test_blocks_are_empty_or_whole():
    outcome = applied(MovementPruning(keep=0.5, block=(8, 16), **SHORT))
    layer = outcome.model.model.bert.encoder.layer[1]
    blocks = layer.attention.self.query.weight.reshape(4, 8, 2, 16).transpose(1, 2).reshape(8, -1)
    assert (blocks != 0).all(dim=1).sum() == 4
    assert (blocks == 0).all(dim=1).sum() == 4
    assert (layer.intermediate.dense.weight == 0).all(dim=1).sum() == 32, "rows of the first matrix"
    assert (layer.output.dense.weight == 0).all(dim=0).sum() == 32, "columns of the second"


@pytest.mark.parametrize("method", ["hard", "soft"])
@pytest.mark.parametrize("update", [2, 7])
def test_a_stopped_pruning_goes_on_to_the_same_weights(method, update, tmp_path, monkeypatch):
    technique = MovementPruning(method=method, keep=0.3, score_rate=0.5, **SHORT)
    whole = applied(technique)
    with monkeypatch.context() as patched:
        patched.setattr(MovementPruning, "make_objective", lambda *_: StopsAt(update))
        with pytest.raises(KeyboardInterrupt):
            applied(technique, tmp_path)
    again = applied(technique, tmp_path)
    assert weights_digest(again.model.model) == weights_digest(whole.model.model)


def test_it_is_saved_without_zeros_and_exported(tmp_path):
    task = tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation)
    artifact = run(Recipe(steps=(MovementPruning(keep=0.1, **SHORT),)), tiny_taskmodel("bert", task.spec), inputs)
    artifact.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.digest == artifact.digest
    assert np.array_equal(predict(again, task.validation[:4]).logits, predict(artifact, task.validation[:4]).logits)
    report = export_onnx(again, tmp_path / "out", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-5
    export_onnx(again, tmp_path / "int8", int8=True, examples=task.validation, agreement=0.5)


# ---- what is refused


def test_what_does_not_fit_is_named():
    model = tiny_taskmodel("bert", tiny_task().spec)
    (problem,) = MovementPruning(block=(7, 8)).check(model, Inputs())
    assert problem.startswith(
        "prune.movement: block [7, 8] does not divide bert.encoder.layer.0.attention.self.query, "
    )
    (problem,) = MovementPruning(training=Training(warmup_steps=0.4)).check(model, Inputs())
    assert "3 warm-ups of 0.4 of all optimizer steps each, which leaves no time to prune" in problem
    (problem,) = MovementPruning().check(tiny_taskmodel("bert", tiny_task("embedding").spec), Inputs())
    assert "objective: distill.embedding" in problem
