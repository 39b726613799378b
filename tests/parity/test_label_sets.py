"""Several labels a text: scores against scikit-learn, losses against transformers and against slow loops."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from torch.nn import functional

from compress.distill.components.distillation_losses import (
    kl_divergence,
    logit_mse,
    of_probabilities,
    soft_cross_entropy,
    soft_loss,
)
from compress.distill.tinybert import prediction_loss
from eval.kinds.kind_registry import kind_of
from eval.kinds.multilabel import sigmoid
from eval.metrics.label_thresholds import best_thresholds
from eval.scores import per_example, resampler, score
from eval.task import TaskSpec
from tests.tiny import tiny_taskmodel

LABELS = ("anger", "joy", "love", "none")
SPEC = TaskSpec(kind="multilabel", labels=LABELS, metric="micro_f1")


def drawn(seed, count=80):
    """Return truths and probabilities as arrays, some of them equal, and the same as examples and answers."""
    generator = np.random.default_rng(seed)
    true = generator.random((count, len(LABELS))) < (0.5, 0.3, 0.15, 0.4)
    chances = np.clip(0.3 * true + generator.random(true.shape), 0, 1).round(1)
    examples = [{"text": "", "labels": named(row)} for row in true]
    answers = [
        {"labels": named(row >= 0.6), "probabilities": dict(zip(LABELS, row.tolist(), strict=True))} for row in chances
    ]
    return true, chances, answers, examples


def named(row):
    return [label for label, there in zip(LABELS, row, strict=True) if there]


@pytest.mark.parametrize("seed", range(4))
def test_scores_against_scikit_learn(seed):
    true, chances, answers, examples = drawn(seed)
    found = chances >= 0.6
    assert score(SPEC, answers, examples) == pytest.approx(
        {
            "micro_f1": sklearn.metrics.f1_score(true, found, average="micro"),
            "macro_f1": sklearn.metrics.f1_score(true, found, average="macro"),
            "average_precision": sklearn.metrics.average_precision_score(true, chances, average="macro"),
            "subset_accuracy": sklearn.metrics.accuracy_score(true, found),
        }
    )
    alone = sklearn.metrics.f1_score(true, found, average=None)
    assert kind_of("multilabel").agreement(list(zip(answers, answers, strict=True))) == {"sets": 1.0, "labels": 1.0}
    assert len(alone) == len(LABELS)


def test_labels_that_never_occur_are_left_out_of_means():
    true, chances, answers, examples = drawn(3)
    chosen = np.flatnonzero(~true[:, 2] & ~(chances[:, 2] >= 0.6))[:20]
    rest = [0, 1, 3]
    for metric, theirs in (
        ("macro_f1", sklearn.metrics.f1_score(true[chosen][:, rest], chances[chosen][:, rest] >= 0.6, average="macro")),
        ("average_precision", sklearn.metrics.average_precision_score(true[chosen][:, rest], chances[chosen][:, rest])),
    ):
        spec = SPEC.model_copy(update={"metric": metric})
        assert resampler(spec, answers, examples)(chosen) == pytest.approx(theirs)
    nothing = [{"labels": [], "probabilities": dict.fromkeys(LABELS, 0.1)}], [{"text": "", "labels": []}]
    assert set(score(SPEC, *nothing).values()) == {0.0, 1.0}
    assert per_example(SPEC, *nothing).tolist() == [1.0]


def test_scores_of_single_examples_are_samples_f1():
    true, chances, answers, examples = drawn(5)
    filled = [place for place in range(len(true)) if true[place].any() or (chances[place] >= 0.6).any()]
    theirs = sklearn.metrics.f1_score(true[filled], chances[filled] >= 0.6, average="samples", zero_division=0)
    assert per_example(SPEC, answers, examples)[filled].mean() == pytest.approx(theirs)
    exact = SPEC.model_copy(update={"metric": "subset_accuracy"})
    assert per_example(exact, answers, examples).tolist() == (true == (chances >= 0.6)).all(axis=1).tolist()


def test_thresholds_have_the_best_f1_of_each_label():
    true, chances, _, _ = drawn(1, 60)
    for column, threshold in enumerate(best_thresholds(chances, true)):
        ours = sklearn.metrics.f1_score(true[:, column], chances[:, column] >= threshold)
        precision, recall, _ = sklearn.metrics.precision_recall_curve(true[:, column], chances[:, column])
        best = (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
        assert ours == pytest.approx(best)
    rare = np.zeros((4, 1), dtype=bool)
    assert best_thresholds(np.array([[0.1], [0.9], [0.2], [0.4]]), rare) == (0.5,)
    assert best_thresholds(np.array([[0.9], [0.8], [0.2], [0.1]]), np.array([[1], [1], [0], [0]]) == 1) == (0.5,)


def test_a_threshold_that_no_threshold_may_be_is_not_chosen():
    """The lowest of these probabilities would need one below the least."""
    chances = np.array([[0.9], [0.2], [0.2], [0.1], [0.1], [1e-7]])
    true = np.array([[0], [0], [0], [1], [1], [1]]) == 1
    (threshold,) = best_thresholds(chances, true)
    assert sklearn.metrics.f1_score(true, chances >= threshold) == pytest.approx(0.5)
    assert threshold == pytest.approx(0.05, rel=1e-5)


def bernoulli_kl(student, teacher, temperature):
    """The binary divergence, label by label: T² · mean of p log(p / q) + (1 - p) log((1 - p) / (1 - q))."""
    total, count = 0.0, 0
    for own, other in zip(student.flatten().tolist(), teacher.flatten().tolist(), strict=True):
        p, q = (1 / (1 + math.exp(-x / temperature)) for x in (other, own))
        total += p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
        count += 1
    return temperature**2 * total / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 5.0])
def test_binary_kl_and_its_gradient(temperature):
    generator = torch.Generator().manual_seed(2)
    student = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    loss = soft_loss(SPEC, "kl")(student, teacher, temperature)
    assert loss.item() == pytest.approx(bernoulli_kl(student, teacher, temperature), rel=1e-9)
    loss.backward()
    # d/dz of T² · KL is T · (sigmoid(z / T) - sigmoid(t / T)), over the number of labels and rows
    expected = temperature * (torch.sigmoid(student / temperature) - torch.sigmoid(teacher / temperature)) / 24
    assert torch.allclose(student.grad, expected, atol=1e-12)
    assert soft_loss(SPEC, "kl")(teacher, teacher, temperature).item() == pytest.approx(0.0, abs=1e-12)


def test_other_soft_losses_by_the_same_probabilities():
    student, teacher = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, 3.0]])
    soft = torch.sigmoid(teacher)
    assert soft_loss(SPEC, "soft_cross_entropy")(student, teacher, 1.0).item() == pytest.approx(
        functional.binary_cross_entropy_with_logits(student, soft).item()
    )
    assert soft_loss(SPEC, "mse")(student, teacher, 1.0).item() == pytest.approx((1 + 25) / 2)
    code = of_probabilities(SPEC, prediction_loss)(student, teacher, 1.0, "code")
    assert code.item() == pytest.approx(functional.binary_cross_entropy_with_logits(student, soft).item() / 2)
    choice = TaskSpec(kind="classification", labels=("a", "b"))
    assert (soft_loss(choice, "kl"), of_probabilities(choice, soft_cross_entropy)) == (
        kl_divergence,
        soft_cross_entropy,
    )
    assert soft_loss(TaskSpec(kind="regression", metric="pearson"), "kl") is logit_mse


def test_the_loss_of_labels_is_that_of_transformers():
    model = tiny_taskmodel("bert", SPEC)
    assert model.model.config.problem_type == "multi_label_classification"
    ids, labels = torch.tensor([[2, 50, 60, 3], [2, 70, 80, 3]]), torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 0]])
    with torch.no_grad():
        theirs = model.model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)
    kind, mask = kind_of("multilabel"), torch.ones_like(ids)
    assert kind.loss(SPEC, theirs.logits, {"labels": labels}, mask).item() == pytest.approx(theirs.loss.item())
    unknown = torch.cat([labels, torch.full((1, 4), math.nan)])
    more = torch.cat([theirs.logits, torch.ones(1, 4)])
    assert kind.loss(SPEC, more, {"labels": unknown}, mask).item() == pytest.approx(theirs.loss.item())
    assert int(kind.counted(SPEC, unknown)) == 2
    assert kind.loss(SPEC, more[2:], {"labels": unknown[2:]}, mask).item() == 0.0
    weighted = SPEC.model_copy(update={"class_weights": (2.0, 1.0, 1.0, 3.0)})
    by_hand = functional.binary_cross_entropy_with_logits(
        theirs.logits, labels, pos_weight=torch.tensor([2.0, 1.0, 1.0, 3.0])
    )
    assert kind.loss(weighted, theirs.logits, {"labels": labels}, mask).item() == pytest.approx(by_hand.item())


def test_an_ensemble_averages_the_probabilities_of_each_label():
    members = torch.tensor([[[2.0, -1.0, 30.0]], [[-1.0, 0.5, 20.0]]])
    weights = torch.tensor([0.25, 0.75]).reshape(2, 1, 1)
    together = kind_of("multilabel").combined(members, weights, torch.ones(1, 1))
    mean = (weights * torch.sigmoid(members)).sum(dim=0)
    assert torch.allclose(torch.sigmoid(together), mean)
    assert torch.isfinite(together).all()


def test_a_probability_is_finite_for_any_logit():
    found = sigmoid(np.array([-1000.0, 0.0, 1000.0]))
    assert found.tolist() == [0.0, 0.5, 1.0]
