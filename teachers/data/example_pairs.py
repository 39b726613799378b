"""Which examples of an embedding task are learned from: pairs of texts that have a label, or that match."""

from __future__ import annotations

from collections.abc import Sequence

from eval.errors import UserError
from eval.examples import Example
from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec


def labelled_pairs(spec: TaskSpec, examples: Examples) -> Examples:
    """Return the pairs that have a label.

    Raises:
        UserError: If the task has no vectors, no pair has a label, or all have the same.
    """
    refuse_other_kinds(spec)
    found = [pair for pair in kind_of(spec.kind).text_pairs(examples) if "label" in pair]
    if not found:
        raise UserError(
            "an embedding task has no labels to learn from unless its examples are pairs (text_a, text_b) with a "
            f"number as label, and none of the {len(examples)} examples of {examples.name} is; name loss: contrastive "
            "for pairs that match, or train with a teacher's vectors: distill.embedding"
        )
    if len({example["label"] for example in found}) == 1:
        raise UserError(
            f"all {len(found)} pairs of {examples.name} have the label {found[0]['label']:g}, which tells no pair from "
            "another; if they match, name loss: contrastive"
        )
    return Examples(found, examples.name, examples.skipped)


def matching_pairs(spec: TaskSpec, examples: Examples) -> Examples:
    """Return the pairs that match, as ``matching`` says.

    Raises:
        UserError: If the task has no vectors, or there are not two such pairs.
    """
    refuse_other_kinds(spec)
    pairs = kind_of(spec.kind).text_pairs(examples)
    found = [pair for pair, matches in zip(pairs, matching(spec, pairs), strict=True) if matches]
    if len(found) < 2:
        raise UserError(
            "loss: contrastive: needs two or more pairs (text_a, text_b) that match, and "
            f"{examples.name} has {len(found)}"
        )
    return Examples(found, examples.name, examples.skipped)


def matching(spec: TaskSpec, examples: Sequence[Example]) -> list[bool]:
    """Return which examples are pairs that match.

    Of judged documents those with a grade above 0; else those with the largest label, or all pairs if none has a label.
    """
    if kind_of(spec.kind).searches:
        return ["text_a" in example and example.get("label", 0) > 0 for example in examples]
    best = max(pair_labels(examples), default=None)
    return ["text_a" in example and example.get("label") == best for example in examples]


def refuse_other_kinds(spec: TaskSpec) -> None:
    """Refuse a task whose answers are no vectors.

    Raises:
        UserError: If it is one.
    """
    if not kind_of(spec.kind).vectors:
        raise UserError(
            f"loss: regression, margin and contrastive compare vectors of texts, and the task is {spec.kind}; "
            "write kind: embedding, or leave the loss out"
        )


def refuse_degrees(pairs: Examples) -> None:
    """Refuse labels that say more than whether a pair matches.

    Raises:
        UserError: If there are more than two.
    """
    if (count := len(pair_labels(pairs))) > 2:
        raise UserError(
            f"loss: margin: is for pairs that match or do not, and {pairs.name} has {count} different labels; name "
            "loss: regression"
        )


def pair_labels(examples: Sequence[Example]) -> set[float]:
    """Return the different labels of pairs."""
    return {example["label"] for example in examples if "text_a" in example and "label" in example}
