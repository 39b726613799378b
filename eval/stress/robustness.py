"""Models and their reference answer perturbed texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval.errors import UserError
from eval.examples import Example
from eval.inference import Predictor, completed, predict
from eval.kinds.kind_registry import kind_of
from eval.predictions import Kept
from eval.progress.stages import one_by_one
from eval.stress.perturbing import perturbed, rules_for
from eval.stress.stress_rows import Perturbed, Stressed, drawn, stress_rows
from eval.task import TaskSpec


def stressed(
    spec: TaskSpec,
    examples: Sequence[Example],
    models: Sequence[tuple[Predictor, Kept]],
    reference: tuple[Predictor, Kept],
    seed: int = 13,
) -> list[tuple[tuple[Stressed, ...], tuple[Perturbed, ...]]]:
    """Put models and their reference under every rule that fits the task; the reference answers once.

    Args:
        spec: What is asked.
        examples: With their truths.
        models: Each with what it answered to the examples as they are.
        reference: Likewise.
        seed: Of the rules, and of the examples that are drawn.

    Returns:
        For each model a row for the clean texts and one for each rule, and the answers behind them.

    Raises:
        UserError: The kind of task has no answers to compare.
    """
    kind = kind_of(spec.kind)
    if kind.masks or kind.causal:
        raise UserError(f"stress: a {spec.kind} model gives no answers to compare; measure what is fine-tuned from it")
    answered: list[list[Perturbed]] = [[] for _ in models]
    for rule, changed in perturbations(spec, examples, seed):
        texts = list(changed.values())
        gold = [{field: text[field] for field in kind.gold if field in text} for text in texts]
        theirs = answers_to(reference[0], texts)
        for (model, _), found in zip(models, answered, strict=True):
            found += map(Perturbed, [rule] * len(texts), changed, gold, answers_to(model, texts), theirs)
    gold = [{field: example[field] for field in kind.gold if field in example} for example in examples]
    groups = reference[1].groups
    return [
        (stress_rows(spec, gold, (kept.answers, reference[1].answers), groups, found, seed), tuple(found))
        for (_, kept), found in zip(models, answered, strict=True)
    ]


def perturbations(spec: TaskSpec, examples: Sequence[Example], seed: int) -> Iterator[tuple[str, dict[int, Example]]]:
    """Yield each rule that fits the task, with number -> perturbed text of the examples that it changes."""
    places = drawn(len(examples), seed)
    for rule in one_by_one(rules_for(spec), "perturbed texts"):
        texts = {place: perturbed(rule, examples[place], spec, seed, place) for place in places}
        yield rule.name, {place: text for place, text in texts.items() if text is not examples[place]}


def answers_to(model: Predictor, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Return a model's answers, one an example."""
    if not examples:
        return []
    answers: Sequence[Mapping[str, Any]] = completed(model, examples, predict(model, examples)).answers
    return [dict(answer) for answer in answers]
