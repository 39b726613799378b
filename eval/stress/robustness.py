"""How a model and its reference answer perturbed texts: scores, their paired difference, agreement."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.errors import UserError
from eval.examples import Answer, Example
from eval.inference import Predictor, completed, predict
from eval.kinds.kind_registry import kind_of
from eval.predictions import Kept
from eval.progress.stages import one_by_one
from eval.proof.paired_difference import PairedDifference
from eval.proof.paired_predictions import PairedScores, paired_scores
from eval.proof.paired_statistics import Interval, Number, agreement
from eval.stress.perturbing import perturbed, rules_for
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


def stressed(
    spec: TaskSpec,
    examples: Sequence[Example],
    models: tuple[Predictor, Predictor],
    kept: tuple[Kept, Kept],
    seed: int = 13,
) -> tuple[Stressed, ...]:
    """Put a model and its reference under every rule that fits the task.

    Texts that a rule does not change keep the answers that they had.

    Args:
        spec: What is asked.
        examples: With their truths.
        models: The model, then its reference.
        kept: What each answered to the examples as they are.
        seed: Of the rules, and of the examples that are drawn.

    Returns:
        A row for the clean texts, and one for each rule.

    Raises:
        UserError: The kind of task has no answers to compare.
    """
    kind = kind_of(spec.kind)
    if kind.masks or kind.causal:
        raise UserError(f"stress: a {spec.kind} model gives no answers to compare; measure what is fine-tuned from it")
    places = sorted(random.Random(seed).sample(range(len(examples)), min(MOST, len(examples))))
    clean = [examples[place] for place in places]
    groups = kept[0].groups and [kept[0].groups[place] for place in places]
    before = [[side.answers[place] for place in places] for side in kept]

    def scored(answers: Sequence[Sequence[Answer]], asked: Sequence[Example]) -> PairedScores:
        gold = [{field: example[field] for field in kind.gold if field in example} for example in asked]
        return paired_scores(spec, [(answers[0], answers[1])], gold, groups, seed)

    base = scored(before, clean)
    rows = [_row(CLEAN, spec, before, 0, base)]
    for rule in one_by_one(rules_for(spec), "perturbed texts"):
        texts = [perturbed(rule, example, spec, seed, place) for place, example in zip(places, clean, strict=True)]
        changed = [row for row, (one, other) in enumerate(zip(texts, clean, strict=True)) if one is not other]
        answers = [list(side) for side in before]
        if changed:
            for model, side in zip(models, answers, strict=True):
                asked = [texts[row] for row in changed]
                new = completed(model, asked, predict(model, asked)).answers
                for row, answer in zip(changed, new, strict=True):
                    side[row] = dict(answer)
        now = scored(answers, texts) if rule.keeps_truth else None
        rows.append(_row(rule.name, spec, answers, len(changed), now, base))
    return tuple(rows)


def _row(
    name: str,
    spec: TaskSpec,
    answers: Sequence[Sequence[Answer]],
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
