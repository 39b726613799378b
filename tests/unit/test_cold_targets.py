"""Soft targets at low temperatures, where some rows have fewer choices than others: padded tokens, missing choices."""

import math

import pytest
import torch

from compress.distill.components.distillation_losses import kl_divergence, logit_mse, paired_logits, soft_cross_entropy
from compress.registry import get, names
from compress.technique import Inputs, TrainedTechnique
from eval.task import Examples
from teachers.losses.task_loss import task_loss
from teachers.signals.hooks import observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.conformance.battery import instance
from tests.tiny import tiny_task, tiny_taskmodel

COLD = 0.05


def distributions(logits, temperature):
    top = max(logits)
    shares = [math.exp((x - top) / temperature) for x in logits]
    return [share / sum(shares) for share in shares], [(x - top) / temperature - math.log(sum(shares)) for x in logits]


def slow_kl(student, teacher, temperature):
    (p, log_p), (_, log_q) = distributions(teacher, temperature), distributions(student, temperature)
    return temperature**2 * sum(a * (b - c) for a, b, c in zip(p, log_p, log_q, strict=True))


def slow_cross_entropy(student, teacher, temperature):
    (p, _), (_, log_q) = distributions(teacher, temperature), distributions(student, temperature)
    return -(temperature**2) * sum(a * b for a, b in zip(p, log_q, strict=True))


def slow_mse(student, teacher, temperature):
    return sum((a - b) ** 2 for a, b in zip(student, teacher, strict=True)) / len(student)


SLOW = {kl_divergence: slow_kl, soft_cross_entropy: slow_cross_entropy, logit_mse: slow_mse}
OBJECTIVES = {
    "distill.logits": ("soft", 1.0, slow_kl, {"alpha": 1.0}),
    "distill.logits, cross-entropy": ("soft", 0.5, slow_cross_entropy, {"loss": "soft_cross_entropy"}),
    "distill.logits, squares": ("soft", 1.0, slow_mse, {"alpha": 1.0, "loss": "mse"}),
    "distill.ensemble": ("soft", 1.0, slow_cross_entropy, {"alpha": 1.0}),
    "distill.distilbert": ("soft", 5.0, slow_kl, {}),
    "distill.pkd": ("soft", 0.7, slow_kl, {}),
    "distill.scalar_mix": ("soft", 0.5, slow_kl, {}),
    "distill.tinybert": ("prediction", 1.0, slow_cross_entropy, {"stages": ("prediction",)}),
}
"""Name of a technique -> the term of its logits, its weight, the loss said slowly, and its fields."""


def test_every_technique_with_a_temperature_of_logits_is_here():
    """But those whose temperature divides something else: cosines, or the scores of a query's passages."""
    warm = {name for name in names() if "temperature" in get(name).model_fields}
    others = {"distill.static", "distill.embedding", "distill.contrastive", "distill.listwise"}
    assert warm - others == {name.partition(",")[0] for name in OBJECTIVES}


def padded():
    """Return a reader, rows whose lengths differ, and one batch of them."""
    task = tiny_task("qa")
    longer = [{**e, "question": "and " * (2 * number) + e["question"]} for number, e in enumerate(task.train[:5])]
    student = tiny_taskmodel("bert", task.spec)
    rows = rows_of(student, Examples(longer), 1)
    batch = rows.batch(range(5))
    assert len(set(rows.lengths)) > 2
    assert (batch.mask == 0).sum() > 10
    return task, student, rows, batch


@pytest.mark.parametrize("temperature", [COLD, 0.01, 2.0])
@pytest.mark.parametrize("named", OBJECTIVES)
def test_questions_without_padding_give_the_same(named, temperature, tmp_path):
    term, weight, slow, fields = OBJECTIVES[named]
    name = named.partition(",")[0]
    task, student, rows, batch = padded()
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1), cache=tmp_path)
    technique = instance(name, temperature=temperature, **fields)
    assert isinstance(technique, TrainedTechnique)
    loss = technique.make_objective(Inputs(train=task.train, teacher=teacher)).bind(student, rows)
    student.model.requires_grad_(True)
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    expected = []
    for row in range(len(rows)):  # each question alone, so that nothing is padded
        alone = rows.batch([row])
        own, other = (
            (model.forward({key: value.numpy() for key, value in alone.inputs.items()})[0]).T.tolist()
            for model in (student, teacher.model)
        )
        if name == "distill.ensemble":  # its targets are probabilities
            other = [distributions(side, 1.0)[1] for side in other]
        expected.append(sum(slow(a, b, temperature) for a, b in zip(own, other, strict=True)) / 2)
    assert found[term].item() == pytest.approx(weight * sum(expected) / len(expected), rel=2e-4, abs=1e-9)
    sum(found.values()).backward()
    gradients = [parameter.grad for parameter in student.model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert any(bool(gradient.any()) for gradient in gradients)


@pytest.mark.parametrize("temperature", [1e-9, COLD, 2.0])
@pytest.mark.parametrize("fast", SLOW, ids=lambda loss: loss.__name__)
def test_a_choice_that_an_example_lacks_counts_nowhere(fast, temperature):
    model = tiny_taskmodel("bert", tiny_task("multiple-choice").spec)
    examples = tiny_task("multiple-choice").train[:3]
    uneven = [{**example, "choices": example["choices"][: 2 + n % 2], "label": 0} for n, example in enumerate(examples)]
    batch = rows_of(model, Examples(uneven), 1).batch([0, 1, 2])
    scores = torch.tensor([1.0, 2.0, 0.5, 0.0, -1.0, 3.0, 1.5])[:, None].requires_grad_()
    other = torch.tensor([0.3, 1.0, -2.0, 0.25, 1.0, 0.0, 0.5])[:, None]
    ((student, teacher),) = paired_logits(model.task, scores, other, batch)
    found = fast(student, teacher, temperature)
    ends = [slice(0, 2), slice(2, 5), slice(5, 7)]
    slow = [SLOW[fast](scores[end, 0].tolist(), other[end, 0].tolist(), temperature) for end in ends]
    assert found.item() == pytest.approx(sum(slow) / 3, rel=1e-5)
    (found + task_loss(model.task, scores, batch)).backward()
    assert bool(scores.grad.isfinite().all())
