"""The gradient of a sample's loss, batch by batch, against that of the whole sample, with the weights of classes."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.prune.dependency import add_gradients
from compress.prune.head_importance import measured
from compress.quantize.layer_curvature import layer_eigenvalues
from compress.quantize.qbert import QBert
from compress.sample_loss import SampleLoss
from compress.technique import Inputs
from eval.encoding import IGNORED
from eval.task import Examples
from teachers.anatomy.encoder import layer_parts, layers
from teachers.losses.task_loss import TaskLoss, task_loss
from teachers.training.scoring import rows_of
from tests.tiny import HEADS, HIDDEN, LAYERS, tiny_task, tiny_taskmodel

WEIGHTS = {"classification": (1.0, 9.0), "tagging": (0.25, 2.0, 5.0)}
SIZE = HIDDEN // HEADS


def weighted(kind):
    """Return a model whose task has class weights, and examples of different lengths."""
    task = tiny_task(kind)
    spec = task.spec.model_copy(update={"class_weights": WEIGHTS[kind]})
    examples = list(task.train[:9])
    if kind == "tagging":
        examples = [{k: v[: 2 + 3 * (i % 4)] for k, v in e.items()} for i, e in enumerate(examples)]
    return tiny_taskmodel("bert", spec), Examples(examples, "train")


def slow_loss(model, batch):
    """Return the sum over all labels of weight times cross-entropy, and the sum of the weights, label by label."""
    logits = model.model(**batch.inputs).logits.reshape(-1, len(model.task.labels))
    labels = batch.targets["labels"].reshape(-1).tolist()
    total, weight = torch.zeros(()), 0.0
    for scores, label in zip(logits, labels, strict=True):
        if label != IGNORED:
            total = total + model.task.class_weights[label] * F.cross_entropy(scores[None], torch.tensor([label]))
            weight += model.task.class_weights[label]
    return total, weight


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
@pytest.mark.parametrize("size", [1, 4, 9])
def test_the_loss_does_not_depend_on_how_the_sample_is_cut(kind, size):
    model, examples = weighted(kind)
    rows = rows_of(model, examples, 0)
    cut = [rows.batch(range(start, min(start + size, 9))) for start in range(0, 9, size)]
    loss = SampleLoss(model, TaskLoss().bind(model, rows), cut)
    total, weight = slow_loss(model, rows.batch(range(9)))
    assert len(loss) == len(cut)
    found = sum(loss.of(i).item() for i in range(len(loss)))
    assert found == pytest.approx((total / weight).item(), rel=1e-5)


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
@pytest.mark.parametrize("importance", ["paper", "code"])
def test_heads_count_by_the_weight_of_the_labels(kind, importance):
    model, examples = weighted(kind)
    rows = rows_of(model, examples, 0)
    seen = {}
    for index, layer in enumerate(layers(model.model)):
        layer_parts(model.model, layer)["attention_output"].register_forward_pre_hook(
            lambda _module, args, i=index: seen.__setitem__(i, args[0])
        )
    expected, weights, tokens = torch.zeros(LAYERS, HEADS, dtype=torch.float64), 0.0, 0
    for row in range(len(rows)):  # one text at a time, so without padding
        batch = rows.batch([row])
        total, weight = slow_loss(model, batch)
        gradients = torch.autograd.grad(total, [seen[i] for i in range(LAYERS)])
        weights, tokens = weights + weight, tokens + int(batch.mask.sum())
        for index, gradient in enumerate(gradients):
            gate = (seen[index] * gradient).unflatten(-1, (HEADS, SIZE)).sum(dim=-1)[0].detach().double()
            expected[index] += gate.abs().sum(dim=0) if importance == "code" else gate.sum(dim=0).abs()
    expected = expected / weights
    if importance == "code":  # which divides by the tokens in the place of the texts, but for the last layer
        expected[:-1] *= len(rows) / tokens
    found = torch.stack(measured(model, examples, importance, 0))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
def test_taylor_is_of_the_loss_of_the_sample(kind, monkeypatch):
    monkeypatch.setattr("compress.prune.head_importance.BATCH", 4)
    model, examples = weighted(kind)
    rows = rows_of(model, examples, 0)
    total, weight = slow_loss(model, rows.batch(range(len(rows))))
    (total / weight).backward()
    parts = layer_parts(model.model, layers(model.model)[1])
    expected = torch.zeros(HEADS, dtype=torch.float64)
    for head in range(HEADS):
        span = slice(head * SIZE, (head + 1) * SIZE)
        for tensor in (p for role in ("query", "key", "value") for p in (parts[role].weight, parts[role].bias)):
            expected[head] += (tensor[span] * tensor.grad[span]).square().sum()
        output = parts["attention_output"].weight
        expected[head] += (output[:, span] * output.grad[:, span]).square().sum()
    model.model.zero_grad()
    assert torch.allclose(measured(model, examples, "taylor", 0)[1], expected, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
def test_gradients_for_neurons_are_of_the_loss_of_the_sample(kind, monkeypatch):
    monkeypatch.setattr("compress.prune.dependency.BATCH", 4)
    model, examples = weighted(kind)
    rows = rows_of(model, examples, 0)
    total, weight = slow_loss(model, rows.batch(range(len(rows))))
    (total / weight).backward()
    expected = {name: p.grad.clone() for name, p in model.model.named_parameters()}
    model.model.zero_grad()
    add_gradients(model, examples, 0)
    for name, parameter in model.model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], rtol=1e-3, atol=1e-6), name


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
def test_curvature_is_that_of_the_whole_portion(kind):
    model, examples = weighted(kind)
    one, several = (
        layer_eigenvalues(
            QBert(portions=1, portion_examples=9, power_steps=10, tolerance=1e-6, batch_size=size),
            model,
            Inputs(train=examples),
            torch.Generator().manual_seed(0),
        )
        for size in (9, 2)
    )
    assert torch.allclose(torch.tensor(one), torch.tensor(several), rtol=1e-3)


def test_a_sample_without_a_label_loses_nothing():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec.model_copy(update={"class_weights": (1.0, 2.0)}))
    rows = rows_of(model, Examples([{"text": "a good film"}], "train"), 0)
    batch = rows.batch([0])
    loss = SampleLoss(model, TaskLoss().bind(model, rows), [batch])
    assert loss.of(0).item() == task_loss(model.task, torch.ones(1, 2), batch).item() == 0.0
