"""Thresholds of predictions that are best for the examples that choose."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from eval.inference import predict
from eval.kinds.kind_registry import kind_of
from eval.task import Examples
from teachers.taskmodel import TaskModel
from teachers.training.scoring import scorable

Model = TypeVar("Model", bound=TaskModel)


def with_thresholds(model: Model, examples: Examples | None) -> Model:
    """Return a model with the thresholds that are best for examples, if its task asks for it; else the model itself.

    Args:
        model: A model whose weights do not change any more.
        examples: Those that choose; without their truths the model keeps the thresholds that it has.
    """
    spec = model.task
    if not spec.choose_thresholds or examples is None or not scorable(spec, examples):
        return model
    chosen = kind_of(spec.kind).chosen_thresholds(spec, predict(model, examples).answers, examples)
    return replace(model, task=spec.model_copy(update={"thresholds": chosen}))
