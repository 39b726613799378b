"""Watching a student while it trains: its score, its agreement with the teacher, and whether it has collapsed.

A collapse is a state from which training does not come back: the same output for every input, attention that no longer
chooses, hidden states that all point the same way (not asked of an encoder that a decoder has yet to learn to read).
One small batch an epoch shows it. Attention and hidden states that
were so when training began are no collapse, and a network without transformer layers is judged by its outputs alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.errors import DivergedError
from eval.inference import Answer
from eval.kinds.kind_registry import kind_of
from eval.proof.paired_statistics import agreement
from eval.scores import score
from eval.task import Examples
from teachers.anatomy.encoder import (
    attention_width,
    has_decoder,
    has_plain_attention,
    layer_count,
    layer_parts,
    layers,
    shape_of,
)
from teachers.signals.hooks import NOTHING, Signals, SignalSpec, observe
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel, evaluating
from teachers.training.scoring import answers, scorable

COMPARED = 512
"""Validation examples on which student and teacher are compared."""
LOOKED_AT = 32
"""Validation inputs on which a collapse would show."""
SAME = 1e-5
"""Difference of two logits below which they are the same."""
PARALLEL = 1e-4
"""``1 - cos`` below which hidden states point the same way; the mean states of trained encoders differ far more."""
FELL = 10.0
"""How much larger that distance was when training began, at the least."""
EVEN = 1e-3
"""Part of ``1 / tokens`` by which attention may differ from it and still be even."""
ALL = 0.999
"""Attention on one token from which it is all."""


@dataclass(frozen=True)
class Signs:
    """What one small batch tells about a network.

    Attributes:
        constant: Whether every input, or every token, gets the same output.
        spread: The largest ``1 - cos`` between the mean last hidden states of two inputs; None without layers.
        attends: Whether some head of some layer looks at some tokens more than at others, and not always at one; None
            where attention cannot be read.
    """

    constant: bool
    spread: float | None = None
    attends: bool | None = None


class Monitor:
    """Looks at a student after every epoch.

    Args:
        student: What is trained; it is looked at once before training begins.
        validation: Examples it does not learn from.
        teacher: If given, agreement with it is told too.
    """

    def __init__(self, student: TaskModel, validation: Examples, teacher: TeacherSource | None = None) -> None:
        self.student, self.validation, self.teacher = student, validation, teacher
        features = student.encoder.encode(validation[:LOOKED_AT])[:LOOKED_AT]
        distinct = len({tuple(feature.ids) for feature in features}) > 1
        self.inputs = student.encoder.collate(features) if distinct else None
        self.before = self._signs()

    @cached_property
    def teacher_answers(self) -> list[Answer]:
        """The teacher's answers to the examples that are compared; none if it gives none of this kind."""
        if self.teacher is None or kind_of(self.student.task.kind).masks:
            return []
        return self.teacher.answers(self.validation[:COMPARED])

    def figures(self) -> dict[str, Any]:
        """Return ``scores`` and ``score`` (the metric), if there are truths, and with a teacher ``agreement``."""
        found = answers(self.student, self.validation)
        figures: dict[str, Any] = {}
        if scorable(self.student.task, self.validation):
            scores = score(self.student.task, found, self.validation)
            figures = {"scores": scores, "score": next(iter(scores.values()))}
        if self.teacher_answers:
            alike = agreement(self.student.task.kind, found[:COMPARED], self.teacher_answers)
            figures |= {"agreement": next(iter(alike.values()))} if alike else {}
        return figures

    def refuse_collapse(self, step: int, learning_rate: float) -> None:
        """Stop a training that no longer leads anywhere.

        Raises:
            DivergedError: Naming what happened and what helps.
        """
        now = self._signs()
        if self.before is None or now is None:
            return
        found = collapses(self.before, now)
        if found:
            raise DivergedError(
                f"training of {self.student.name} collapsed after step {step}: {' and '.join(found)}; try a learning "
                f"rate below {learning_rate:g}, a longer warm-up, or smaller weights of losses on hidden states and "
                "attention"
            )

    def _signs(self) -> Signs | None:
        return None if self.inputs is None else signs(self.student, self.inputs)


def joined(figures: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a single task as they are, and those of several with the means of score and agreement."""
    if len(figures) == 1:
        return next(iter(figures.values()))
    found: dict[str, Any] = {
        "scores": {f"{task}.{name}": x for task, own in figures.items() for name, x in own.get("scores", {}).items()}
    }
    for name in ("score", "agreement"):
        values = [own[name] for own in figures.values() if name in own]
        found |= {name: sum(values) / len(values)} if values else {}
    return found


def collapses(before: Signs, now: Signs) -> list[str]:
    """Return what has collapsed, one clause each; constant outputs count even if they were so from the beginning."""
    found = []
    if now.constant:
        found.append("it gives the same output for every input")
    if now.spread is not None and before.spread is not None and now.spread < min(PARALLEL, before.spread / FELL):
        found.append("the last hidden states of different inputs point the same way")
    if before.attends and not now.attends:
        found.append("every attention head looks at all tokens alike or at one alone")
    return found


def signs(model: TaskModel, inputs: Any) -> Signs:
    """Return what a batch of at least two different inputs tells; ``inputs`` are arrays ``[B, L]`` by name."""
    network = model.model
    device = next(network.parameters()).device
    tensors = {name: torch.from_numpy(values).to(device) for name, values in inputs.items()}
    mask, depth = tensors["attention_mask"].bool(), layer_count(network)
    readable, writes = depth > 0 and has_plain_attention(network) and _has_queries(network), has_decoder(network)
    with evaluating(network):
        seen = observe(network, tensors, _wanted(depth, readable))
        attends = _attends(network, seen, mask, 0) if readable else None
        # A healthy network is known by its first layer; only a dead one is read to its last.
        for layer in range(1, depth) if attends is False else ():
            wanted = SignalSpec(queries=(layer,), keys=(layer,))
            attends = attends or _attends(network, observe(network, tensors, wanted), mask, layer)
    shown = torch.ones_like(seen.logits[..., 0], dtype=torch.bool) if seen.logits.ndim == 3 and writes else mask
    return Signs(
        constant(seen.logits, shown), spread(seen.hidden_states[depth], mask) if depth and not writes else None, attends
    )


def _wanted(depth: int, readable: bool) -> SignalSpec:
    if not depth:
        return NOTHING
    first = (0,) if readable else ()
    return SignalSpec(hidden_states=(depth,), queries=first, keys=first)


def _has_queries(network: Any) -> bool:
    return all({"query", "key"} <= layer_parts(network, layer).keys() for layer in layers(network))


def _attends(network: Any, seen: Signals, mask: Tensor, layer: int) -> bool:
    width = attention_width(network.config) // shape_of(network.config).heads
    return attends(seen.queries[layer], seen.keys[layer], mask, width)


def constant(logits: Tensor, mask: Tensor) -> bool:
    """Whether all rows of ``[B, C]``, or all real tokens of ``[B, L, C]``, have the same logits."""
    rows = logits[mask] if logits.ndim == 3 else logits
    return bool((rows - rows[:1]).abs().max() <= SAME)


def spread(states: Tensor, mask: Tensor) -> float:
    """Return the largest ``1 - cos`` between the mean states of two inputs; states ``[B, L, d]``, mask ``[B, L]``."""
    weights = mask[..., None].double()
    means = F.normalize((states.double() * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1), dim=-1)
    return float(1 - (means @ means.T).min())


def attends(queries: Tensor, keys: Tensor, mask: Tensor, head_width: int) -> bool:
    """Whether some head looks neither at all tokens alike nor at the same single one from everywhere.

    Args:
        queries: ``[B, L, heads · head width]``.
        keys: The same shape.
        mask: True for real tokens, ``[B, L]``.
        head_width: Channels of a head.
    """
    for own, other, real in zip(queries, keys, mask, strict=True):
        query, key = (x[real].float().unflatten(-1, (-1, head_width)).transpose(0, 1) for x in (own, other))
        maps = (query @ key.transpose(1, 2) / head_width**0.5).softmax(dim=-1)
        even = (maps * maps.shape[-1] - 1).abs().amax(dim=(1, 2)) < EVEN
        single = maps.amin(dim=1).amax(dim=-1) > ALL
        if not bool((even | single).all()):
            return True
    return False
