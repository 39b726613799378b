"""Do a model and its reference predict for the same reasons? Their attributions, compared text by text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from eval.attribution.agreement_rows import TOP, AttributionAgreement, agreement_rows
from eval.attribution.aligned_units import Pair, aligned
from eval.comparison import reference_and_compared
from eval.data.loading import Task
from eval.errors import UserError
from eval.examples import Example
from eval.inference import Predictor
from eval.progress.stages import one_by_one
from eval.result import Result
from teachers.attribution.text_attributions import (
    GRADIENTS,
    ROLLOUT,
    Baseline,
    Explained,
    explain,
    predicted_label,
    unexplained,
    usual_baseline,
    why_no_rollout,
)
from teachers.taskmodel import TaskModel

MOST = 100
"""Texts that are explained; of more, as many are drawn."""
MOST_MISSED = 0.5
"""Share of what they explain that integrated gradients may miss; rounded activations have no gradient at all."""


def with_attributions(
    results: Sequence[Result],
    models: Mapping[str, Predictor],
    task: Task,
    split: str,
    seed: int = 13,
    *,
    baseline: Baseline | None = None,
    steps: int | None = None,
    top: int = TOP,
    most: int = MOST,
) -> list[Result]:
    """Return the results, with how alike the first model that was compared and its reference weigh the words of a text.

    Both models explain the label that the reference predicts.

    Args:
        results: What ``measure_together`` returned, the reference first.
        models: All that were measured, by name.
        task: The task with its examples.
        split: Which examples.
        seed: Of the texts that are drawn, of random order and of the intervals.
        baseline: The token that stands for nothing: of padding, or the mask; None takes ``usual_baseline``.
        steps: Points at which gradients are taken, as for ``integrated_gradients``.
        top: Most important tokens of a text.
        most: Texts that are explained; of more, as many are drawn.

    Raises:
        UserError: There is no reference, a model has no gradients, or the kind of task has no score to explain.
    """
    first, (compared, *_) = reference_and_compared(results, models, "attributions")
    candidate, reference = models[compared.name], models[first.name]
    if problems := unexplained(task.spec, [candidate, reference], baseline or "pad"):
        raise UserError(*problems)
    examples = task.splits[split]
    drawn = sorted(random.Random(seed).sample(range(len(examples)), min(most, len(examples))))
    found = attribution_agreement(
        candidate, reference, [examples[place] for place in drawn], seed, baseline=baseline, steps=steps, top=top
    )
    return [one.model_copy(update={"attributions": found}) if one is compared else one for one in results]


def attribution_agreement(
    candidate: Any,
    reference: Any,
    examples: Sequence[Example],
    seed: int = 13,
    *,
    baseline: Baseline | None = None,
    steps: int | None = None,
    top: int = TOP,
) -> AttributionAgreement:
    """Compare the attributions of two models to the tokens of texts, or to their words where tokens differ.

    Args:
        candidate: A ``TaskModel``.
        reference: Another one, of the same task.
        examples: The texts.
        seed: Of random order and of the intervals.
        baseline: The token that stands for nothing: of padding, or the mask; None takes ``usual_baseline``.
        steps: Points at which gradients are taken, as for ``integrated_gradients``.
        top: Most important tokens of a text.
    """
    sides: tuple[TaskModel, TaskModel] = (candidate, reference)
    baseline = baseline or usual_baseline(sides)
    reasons = [why for one in sides if examples and (why := why_no_rollout(one, examples[0]))]
    left_out = [f"Attention rollout is left out: {reason}" for reason in dict.fromkeys(reasons)]
    names = [GRADIENTS, *([] if left_out else [ROLLOUT])]
    explained: list[tuple[Explained, Explained]] = []
    for example in one_by_one(examples, "attributions"):
        label = predicted_label(reference, example)
        first, second = (
            explain(one, example, label, baseline=baseline, steps=steps, rollout=ROLLOUT in names) for one in sides
        )
        explained.append((first, second))
    missed = [_missed(side) for side in zip(*explained, strict=True)]
    for one, share in zip(sides, missed, strict=bool(missed)):
        if share > MOST_MISSED:
            left_out.append(
                f"Integrated gradients are left out: those of {one.name} miss {share:.0%} of the difference that they "
                "explain, as where activations are rounded: take a quantized model before that step"
            )
            names = [name for name in names if name != GRADIENTS]
    words = not all(first.methods[GRADIENTS].same_tokens(second.methods[GRADIENTS]) for first, second in explained)
    methods: dict[str, list[Pair | None]] = {
        name: [
            aligned(first.methods[name], second.methods[name], example, words)
            for (first, second), example in zip(explained, examples, strict=True)
        ]
        for name in names
    }
    groups = [example.get("group") for example in examples] if any("group" in one for one in examples) else None
    return AttributionAgreement(
        rows=agreement_rows(methods, {GRADIENTS: max(missed, default=0.0)}, groups, seed, top),
        by="words" if words else "tokens",
        examples=len(examples),
        top=top,
        baseline=str(getattr(reference.tokenizer, f"{baseline}_token")),
        steps=steps,
        seed=seed,
        left_out=tuple(left_out),
    )


def _missed(explained: Sequence[Explained]) -> float:
    """Return by how much attributions miss what they explain, as a share of it; 0 where there is nothing to explain."""
    whole = sum(abs(one.difference) for one in explained)
    return sum(abs(one.missing) for one in explained) / whole if whole else 0.0
