"""The task's own losses against numbers by hand."""

import math

import pytest
import torch

from compress.distill.labels import LabelTraining
from compress.technique import Inputs
from eval.encoding import IGNORED
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch
from teachers.losses.task_loss import TaskLoss, task_loss


def batch_of(targets, mask=((1, 1),)):
    mask = torch.tensor(mask)
    return Batch({"input_ids": mask, "attention_mask": mask}, targets, torch.arange(len(mask)))


def test_the_objective_is_the_labels_alone():
    assert LabelTraining().make_objective(Inputs()) == TaskLoss()


def test_cross_entropy_by_hand():
    spec = TaskSpec(kind="classification", labels=("a", "b"))
    batch = batch_of({"labels": torch.tensor([0])})
    assert task_loss(spec, torch.tensor([[1.0, 0.0]]), batch).item() == pytest.approx(0.313262, abs=1e-6)


def test_class_weights_are_a_weighted_mean():
    spec = TaskSpec(kind="classification", labels=("a", "b"), class_weights=(1.0, 3.0))
    batch = batch_of({"labels": torch.tensor([0, 1])})
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    expected = (1 * math.log(1 + math.exp(-1)) + 3 * math.log(1 + math.exp(1))) / 4
    assert task_loss(spec, logits, batch).item() == pytest.approx(expected, abs=1e-6)


def test_regression_is_a_mean_square():
    batch = batch_of({"labels": torch.tensor([1.0, 3.0])})
    assert task_loss(TaskSpec(kind="regression"), torch.tensor([[2.0], [0.0]]), batch).item() == pytest.approx(5.0)


def test_ignored_places_are_not_counted():
    spec = TaskSpec(kind="tagging", labels=("O", "B"))
    logits = torch.tensor([[[1.0, 0.0], [9.0, -9.0], [0.0, 0.0]]])
    batch = batch_of({"labels": torch.tensor([[0, IGNORED, 1]])}, mask=((1, 1, 1),))
    assert task_loss(spec, logits, batch).item() == pytest.approx((0.313262 + math.log(2)) / 2, abs=1e-6)
    nothing = batch_of({"labels": torch.full((1, 3), IGNORED)}, mask=((1, 1, 1),))
    assert task_loss(spec, logits, nothing).item() == 0.0


def test_qa_gives_padding_no_probability():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [50.0, 50.0]]])
    targets = {"start_positions": torch.tensor([0]), "end_positions": torch.tensor([1])}
    batch = batch_of(targets, mask=((1, 1, 0),))
    start, end = math.log(1 + math.exp(-2)), math.log(1 + math.exp(-1))
    assert task_loss(TaskSpec(kind="qa"), logits, batch).item() == pytest.approx((start + end) / 2, abs=1e-6)
