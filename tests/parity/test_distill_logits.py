"""The losses of distillation against numbers worked out by hand and against slow loops."""

import math
from dataclasses import replace

import pytest
import torch

from compress.distill.components.distillation_losses import (
    cosine_distance,
    kl_divergence,
    logit_mse,
    paired_logits,
    soft_cross_entropy,
)
from compress.distill.components.schedule import Schedule
from compress.distill.logits import LogitDistillation, SoftTargets
from eval.encoding import IGNORED
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch
from teachers.signals.hooks import Signals

TEACHER = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
STUDENT = torch.tensor([[1.0, 0.0], [0.0, 0.0]])


def slow_kl(student, teacher, temperature):
    total = 0.0
    for own, other in zip(student.tolist(), teacher.tolist(), strict=True):
        p = [math.exp(x / temperature) for x in other]
        q = [math.exp(x / temperature) for x in own]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return temperature**2 * total / len(student)


def test_soft_kl_by_hand():
    assert kl_divergence(STUDENT, TEACHER, 1.0).item() == pytest.approx(0.089037, abs=1e-6)
    assert kl_divergence(STUDENT, TEACHER, 2.0).item() == pytest.approx(0.113289, abs=1e-6)
    assert kl_divergence(STUDENT[:1], TEACHER[:1], 1.0).item() == pytest.approx(0.067131, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
def test_soft_kl_equals_the_slow_loop(temperature):
    generator = torch.Generator().manual_seed(1)
    student, teacher = torch.randn(9, 5, generator=generator), torch.randn(9, 5, generator=generator)
    assert kl_divergence(student, teacher, temperature).item() == pytest.approx(
        slow_kl(student, teacher, temperature), rel=1e-5
    )


def test_kl_is_zero_for_equal_logits_and_cross_entropy_is_not():
    assert kl_divergence(TEACHER, TEACHER, 3.0).item() == pytest.approx(0.0, abs=1e-7)
    assert logit_mse(TEACHER, TEACHER).item() == 0.0
    assert cosine_distance(TEACHER, TEACHER).item() == pytest.approx(0.0, abs=1e-6)
    assert soft_cross_entropy(TEACHER, TEACHER, 1.0).item() > 0.3


@pytest.mark.parametrize("loss", [kl_divergence, soft_cross_entropy, logit_mse])
def test_no_rows_have_no_loss(loss):
    """As a batch of one tagged sentence whose only word is a control character, which has no token."""
    student = torch.empty(0, 3, requires_grad=True)
    found = loss(student, torch.empty(0, 3), 2.0)
    found.backward()
    assert found.item() == 0.0


def test_soft_cross_entropy_has_the_gradient_of_kl():
    gradients = []
    for loss in (kl_divergence, soft_cross_entropy):
        student = STUDENT.clone().requires_grad_()
        loss(student, TEACHER, 2.0).backward()
        gradients.append(student.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)


def test_cosine_by_hand():
    student = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    teacher = torch.tensor([[4.0, 3.0], [0.0, 2.0]])
    assert cosine_distance(student[:1], teacher[:1]).item() == pytest.approx(0.04, abs=1e-6)
    assert cosine_distance(student, teacher).item() == pytest.approx(0.52, abs=1e-6)


def batch_of(mask, **targets):
    mask = torch.tensor(mask)
    return Batch({"input_ids": torch.zeros_like(mask), "attention_mask": mask}, targets, torch.arange(len(mask)))


@pytest.mark.parametrize("kind", ["tagging", "qa", "masked-lm"])
def test_padding_changes_no_loss(kind):
    spec = TaskSpec(kind=kind, labels=("O", "B", "I") if kind == "tagging" else ())
    width = 2 if kind == "qa" else 3
    generator = torch.Generator().manual_seed(2)
    student, teacher = torch.randn(2, 4, width, generator=generator), torch.randn(2, 4, width, generator=generator)
    labels = torch.tensor([[IGNORED, 1, 2, IGNORED], [IGNORED, 0, IGNORED, IGNORED]])
    short = batch_of([[1, 1, 1, 1], [1, 1, 1, 0]], labels=labels)
    padded_labels = torch.nn.functional.pad(labels, (0, 3), value=IGNORED)
    long = batch_of([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0]], labels=padded_labels)
    for loss in (kl_divergence, soft_cross_entropy):
        plain = [loss(a, b, 2.0) for a, b in paired_logits(spec, student, teacher, short)]
        noisy = [torch.nn.functional.pad(x, (0, 0, 0, 3), value=9.0) for x in (student, teacher)]
        padded = [loss(a, b, 2.0) for a, b in paired_logits(spec, *noisy, long)]
        assert torch.allclose(torch.stack(plain), torch.stack(padded), atol=1e-6)
    assert len(plain) == (2 if kind == "qa" else 1)


def test_tagging_counts_the_first_pieces_alone():
    spec = TaskSpec(kind="tagging", labels=("O", "B"))
    labels = torch.tensor([[IGNORED, 1, IGNORED, 0]])
    batch = batch_of([[1, 1, 1, 1]], labels=labels)
    logits = torch.arange(8.0).reshape(1, 4, 2)
    ((student, _),) = paired_logits(spec, logits, logits, batch)
    assert student.tolist() == [[2.0, 3.0], [6.0, 7.0]]


def test_the_weighted_sum_by_hand():
    spec = TaskSpec(kind="classification", labels=("a", "b"))
    batch = batch_of([[1], [1]], labels=torch.tensor([0, 0]))
    loss = SoftTargets(spec, lambda batch: Signals(TEACHER), 2.0, 0.9, kl_divergence)
    terms = loss(Signals(STUDENT), batch)
    hard = (math.log(1 + math.exp(-1)) + math.log(2)) / 2
    assert terms["soft"].item() == pytest.approx(0.9 * 0.113289, abs=1e-6)
    assert terms["task"].item() == pytest.approx(0.1 * hard, abs=1e-6)


def test_a_weight_of_zero_leaves_the_term_out():
    spec = TaskSpec(kind="classification", labels=("a", "b"))
    batch = batch_of([[1], [1]], labels=torch.tensor([0, 0]))
    reader = lambda batch: Signals(TEACHER)  # noqa: E731
    assert set(SoftTargets(spec, reader, 2.0, 1.0, kl_divergence)(Signals(STUDENT), batch)) == {"soft"}
    assert set(SoftTargets(spec, reader, 2.0, 0.0, kl_divergence)(Signals(STUDENT), batch)) == {"task"}


def test_a_schedule_goes_from_one_value_to_the_other():
    linear, cosine = Schedule(**{"from": 4.0, "to": 1.0}), Schedule(**{"from": 4.0, "to": 1.0, "shape": "cosine"})
    assert [linear.at(x) for x in (0.0, 0.5, 1.0)] == pytest.approx([4.0, 2.5, 1.0])
    assert [cosine.at(x) for x in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([4.0, 3.560660, 2.5, 1.0])
    with pytest.raises(ValueError, match=r"temperature goes to 0; it must stay between 0\.01 and 1000"):
        LogitDistillation(temperature={"from": 4, "to": 0})


def test_scheduled_weights_follow_the_training():
    spec = TaskSpec(kind="classification", labels=("a", "b"))
    falling = Schedule(**{"from": 1.0, "to": 0.0})
    loss = SoftTargets(spec, lambda batch: Signals(TEACHER), 2.0, falling, kl_divergence)
    hard = (math.log(1 + math.exp(-1)) + math.log(2)) / 2
    for progress in (0.0, 0.25, 1.0):
        batch = replace(batch_of([[1], [1]], labels=torch.tensor([0, 0])), progress=progress)
        terms = loss(Signals(STUDENT), batch)
        assert terms["soft"].item() == pytest.approx((1 - progress) * 0.113289, abs=1e-6)
        assert terms["task"].item() == pytest.approx(progress * hard, abs=1e-6)
