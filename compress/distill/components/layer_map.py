"""Which teacher layer each student layer imitates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from teachers.anatomy.encoder import layer_count
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.hooks import SignalSpec, observe
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel, evaluating
from teachers.training.scoring import rows_of

logger = logging.getLogger("compress.distill.components.layer_map")

Rule = Literal["uniform", "last", "first", "auto"]
LayerMap = Rule | tuple[Annotated[int, Field(ge=0)], ...]
"""``layer_map[i]`` is the teacher layer that student layer ``i`` imitates, both from 0; or the rule that gives it."""

SAMPLE = 64
"""Training examples on which ``auto`` compares layers."""


def map_layers(rule: LayerMap, student: int, teacher: int) -> tuple[int, ...]:
    """Return the teacher layer of every student layer.

    Args:
        rule: ``uniform`` ends every student layer's share of the teacher: layer ``m`` of ``M``, counted from 1, takes
            layer ``m · N / M`` (TinyBERT's ``g``, BERT-PKD's "skip"); ``last`` and ``first`` take a block. A list is
            returned as it is.
        student: Layers of the student.
        teacher: Layers of the teacher.

    Raises:
        ValueError: If the list does not fit, or the rule needs the models themselves (``auto``).
    """
    if isinstance(rule, tuple):
        if len(rule) != student or any(layer >= teacher for layer in rule):
            raise ValueError(
                f"layer_map {list(rule)}: needs {student} numbers, one for each student layer, each from 0 to "
                f"{teacher - 1}"
            )
        return rule
    if rule == "auto":
        raise ValueError("the layer map 'auto' is chosen from the models themselves")
    if rule == "first":
        return tuple(min(i, teacher - 1) for i in range(student))
    if rule == "last":
        return tuple(max(teacher - student + i, 0) for i in range(student))
    return tuple(max((2 * (i + 1) * teacher + student) // (2 * student) - 1, 0) for i in range(student))


def map_problems(rule: LayerMap, student: int, teacher: int) -> list[str]:
    """Return what is wrong with a layer map, one sentence at most."""
    try:
        if rule != "auto":
            map_layers(rule, student, teacher)
    except ValueError as error:
        return [str(error)]
    return []


def resolve(rule: LayerMap, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> tuple[int, ...]:
    """Return the layer map for these two models; ``auto`` compares their hidden states on a sample."""
    count = layer_count(student.model)
    if rule != "auto":
        return map_layers(rule, count, teacher.layers)
    sample = rows_of(student, rows.examples[:SAMPLE], rows.seed)
    reader = teacher.read(sample, SignalSpec(hidden_states=tuple(range(1, teacher.layers + 1))))
    batch = sample.batch(range(len(sample)))
    with evaluating(student.model):
        own = observe(student.model, batch.inputs, SignalSpec(hidden_states=tuple(range(1, count + 1))))
    real = batch.mask.bool()
    found = most_similar(_flat(own.hidden_states, real), _flat(reader(batch).hidden_states, real))
    logger.info("layer map chosen by similarity: %s", list(found))
    return found


def _flat(states: Mapping[int, Tensor], real: Tensor) -> list[Tensor]:
    return [state[real] for state in states.values()]


def most_similar(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the ascending layer map under which the summed similarity (linear CKA) is highest.

    Args:
        student: Hidden states after each student layer, ``[tokens, d]``.
        teacher: Hidden states after each teacher layer, ``[tokens, d']``.
    """
    similarity = [[cka(own, other) for other in teacher] for own in student]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * len(teacher)
    for row in similarity:
        reached: list[tuple[float, tuple[int, ...]]] = []
        for layer, value in enumerate(row):
            total, path = max(best[: layer + 1], key=lambda found: found[0])
            reached.append((total + value, (*path, layer)))
        best = reached
    return max(best, key=lambda found: found[0])[1]


def cka(first: Tensor, second: Tensor) -> float:
    """Return the linear centred kernel alignment of two representations of the same tokens, 0 to 1.

    Kornblith et al. 2019, arXiv 1905.00414; unchanged by rotation and scale of either side.

    Args:
        first: ``[n, d]``.
        second: ``[n, d']``.
    """
    x, y = (states.double() - states.double().mean(dim=0) for states in (first, second))
    cross, own, other = (torch.linalg.matrix_norm(a.T @ b).item() for a, b in ((x, y), (x, x), (y, y)))
    return float(cross**2 / max(own * other, 1e-30))
