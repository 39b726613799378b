"""What a model loses with its layers: the loss without some of them, a search by it, and a table of scores."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compress.sample_loss import SampleLoss
from compress.student.layer_choice import choose_layers
from eval.errors import UserError
from eval.inference import batches_by_length
from eval.task import Examples
from teachers.anatomy.encoder import layer_count
from teachers.anatomy.layer_changes import replace_layers
from teachers.losses.task_loss import TaskLoss
from teachers.taskmodel import TaskModel, evaluating
from teachers.training.scoring import MASK_SEED, rows_of, scorable, scores

BATCH = 32


def cut(model: TaskModel, kept: Sequence[int]) -> TaskModel:
    """Return a copy of a model that has only these of its layers."""
    shallow = replace(model, model=copy.deepcopy(model.model))
    replace_layers(shallow.model, kept)
    return shallow


def sample_loss(model: TaskModel, examples: Examples) -> float:
    """Return the mean loss of the labels over examples, without dropout; see ``SampleLoss``."""
    rows, device = rows_of(model, examples, MASK_SEED), next(model.model.parameters()).device
    batches = [rows.batch(indices).to(device) for indices in batches_by_length(rows.lengths, BATCH)]
    loss = SampleLoss(model, TaskLoss().bind(model, rows), batches)
    with evaluating(model.model):
        return sum(float(loss.of(number)) for number in range(len(loss)))


def search(model: TaskModel, count: int, examples: Examples) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    """Drop layers one by one, each time that whose absence costs least, until ``count`` are left.

    Args:
        model: It stays as it is.
        count: Layers to keep, at least 1.
        examples: What the loss is measured on.

    Returns:
        The layers that are kept, and every set that was tried with its loss, in order.

    Raises:
        UserError: If no layer can be dropped, because several groups of shared layers would fall out of step.
    """
    kept, tried = tuple(range(layer_count(model.model))), []
    while len(kept) > count:
        round_of: dict[tuple[int, ...], float] = {}
        for dropped in kept:
            left = tuple(layer for layer in kept if layer != dropped)
            try:
                round_of[left] = sample_loss(cut(model, left), examples)
            except UserError:  # ALBERT could not run its groups so
                continue
        if not round_of:
            raise UserError(f"none of the layers {list(kept)} can be dropped alone; say which to keep")
        tried += [{"layers": list(left), "loss": loss} for left, loss in round_of.items()]
        kept = min(round_of, key=lambda left: round_of[left])
    return kept, tried


def depth_table(model: TaskModel, examples: Examples | None) -> list[dict[str, Any]]:
    """Return the score at every depth, from the whole model to one layer, cut every other and not trained again.

    Args:
        model: It stays as it is.
        examples: What is scored; without any, or without their truths, the table is empty.
    """
    found: list[dict[str, Any]] = []
    if examples is None or not scorable(model.task, examples):
        return found
    total = layer_count(model.model)
    for count in range(total, 0, -1):
        kept = choose_layers(total, count, "stride")
        try:
            shallow = cut(model, kept)
        except UserError:  # ALBERT could not run its groups so
            continue
        found.append({"layers": list(kept), "score": next(iter(scores(shallow, examples).values()))})
    return found
