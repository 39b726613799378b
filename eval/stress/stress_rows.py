"""What perturbed texts come to: scores of two models, their paired difference, agreement, from their answers alone."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import Answer
from eval.proof.paired_difference import PairedDifference
from eval.proof.paired_predictions import PairedScores, paired_scores
from eval.proof.paired_statistics import Interval, Number, agreement
from eval.stress.perturbing import rules_for

if TYPE_CHECKING:
    from eval.task import TaskSpec

MOST = 1000
"""Examples that are perturbed; of more, as many are drawn."""
CLEAN = "clean"
"""Names the row of texts as they are."""


@dataclass(frozen=True)
class Stressed:
    """What came of one rule.

    Attributes:
        rule: Its name; ``clean`` for the same examples as they are.
        examples: How many were answered.
        changed: How many of them the rule changed.
        score: The model's, by the primary metric; None where a rule may turn the truth.
        reference: The reference's.
        difference: The model's minus the reference's, with its paired 95% interval.
        further: That difference minus the one on clean texts, with its paired 95% interval.
        agreement: How alike the two models answer (see ``eval.proof.paired_statistics.agreement``).
    """

    rule: str
    examples: int
    changed: int
    score: Number | None = None
    reference: Number | None = None
    difference: Interval | None = None
    further: Interval | None = None
    agreement: Mapping[str, Number] | None = None


@dataclass(frozen=True)
class Perturbed:
    """The answers of both models to one example that a rule changed.

    Attributes:
        rule: Name of the rule.
        example: Number of the example in its split, from 0.
        gold: The fields that hold its truth, after the rule.
        candidate: The model's answer.
        reference: The reference's.
    """

    rule: str
    example: int
    gold: dict[str, Any]
    candidate: dict[str, Any]
    reference: dict[str, Any]


def drawn(examples: int, seed: int) -> list[int]:
    """Return the numbers of the examples that are perturbed, of so many, ascending."""
    return sorted(random.Random(seed).sample(range(examples), min(MOST, examples)))


def stress_rows(
    spec: TaskSpec,
    gold: Sequence[Mapping[str, Any]],
    answers: tuple[Sequence[Answer], Sequence[Answer]],
    groups: Sequence[str | None] | None,
    perturbed: Sequence[Perturbed],
    seed: int = 13,
) -> tuple[Stressed, ...]:
    """Return a row for the clean texts, and one for each rule that fits the task.

    Texts that a rule does not change keep the answers that they had.

    Args:
        spec: What is asked; its kind, labels and metric are read.
        gold: The truth of each example.
        answers: What the model, and its reference, answered to the examples as they are.
        groups: The group of each example, if they have any.
        perturbed: What both answered where a rule changed a text.
        seed: Of the examples that are drawn, and of the resampling.

    Raises:
        ValueError: An answer is of a rule or an example that was not asked.
    """
    places = drawn(len(gold), seed)
    own = None if groups is None else [groups[place] for place in places]
    by_rule: dict[str, dict[int, Perturbed]] = defaultdict(dict)
    for each in perturbed:
        by_rule[each.rule][each.example] = each
    rules = rules_for(spec)
    strange = sorted(by_rule.keys() - {rule.name for rule in rules})
    if strange or any(not known.keys() <= set(places) for known in by_rule.values()):
        raise ValueError(f"answers to perturbed texts that were not asked: {', '.join(strange) or 'other examples'}")

    def scored(sides: tuple[list[Answer], list[Answer]], truths: Sequence[Mapping[str, Any]]) -> PairedScores:
        return paired_scores(spec, [sides], [dict(truth) for truth in truths], own, seed)

    before = ([answers[0][place] for place in places], [answers[1][place] for place in places])
    clean = [gold[place] for place in places]
    base = scored(before, clean)
    rows = [_row(CLEAN, spec, before, 0, base)]
    for rule in rules:
        known = by_rule[rule.name]
        ours = [known[p].candidate if p in known else one for p, one in zip(places, before[0], strict=True)]
        theirs = [known[p].reference if p in known else one for p, one in zip(places, before[1], strict=True)]
        truths = [known[p].gold if p in known else one for p, one in zip(places, clean, strict=True)]
        now = scored((ours, theirs), truths) if rule.keeps_truth else None
        rows.append(_row(rule.name, spec, (ours, theirs), len(known), now, base))
    return tuple(rows)


def _row(
    name: str,
    spec: TaskSpec,
    answers: tuple[Sequence[Answer], Sequence[Answer]],
    changed: int,
    now: PairedScores | None,
    clean: PairedScores | None = None,
) -> Stressed:
    alike = agreement(spec.kind, answers[0], answers[1])
    if now is None:
        return Stressed(name, len(answers[0]), changed, agreement=alike)
    score, reference = map(float, now.scores[0])
    further = None if clean is None else change_of(clean, now).interval()
    return Stressed(
        name, len(answers[0]), changed, score, reference, now.difference.interval(), further, agreement=alike
    )


def change_of(before: PairedScores, now: PairedScores) -> PairedDifference:
    """Return a paired difference minus an earlier one of the same examples, from what each unit contributes to both.

    Args:
        before: Candidate and reference on texts as they are.
        now: The same two on the same examples, perturbed.
    """
    candidate, reference = now.parts - before.parts
    value = now.difference.value - before.difference.value
    return PairedDifference.of(np.asarray(candidate), np.asarray(reference), [value], binary=False)
