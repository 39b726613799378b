"""What a rule changes of an example: the texts that its kind names, and the tags of their words."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from eval.examples import Example
from eval.kinds.kind_registry import kind_of
from eval.stress.rules import OUTSIDE, RULES, Rule, Word, text_of, words_of

if TYPE_CHECKING:
    from eval.task import TaskSpec


def rules_for(spec: TaskSpec) -> list[Rule]:
    """Return the rules that a task can be put under: words are inserted only where there is a tag for them."""
    tagged = kind_of(spec.kind).words
    return [rule for rule in RULES if not (rule.inserts and tagged and OUTSIDE not in spec.labels)]


def perturbed(rule: Rule, example: Example, spec: TaskSpec, seed: int, place: int) -> Example:
    """Return an example with perturbed texts; the very same example where the rule finds nothing to change.

    Args:
        rule: What is done.
        example: With its truth, which stays, but for tags, which follow their words.
        spec: What is asked of it.
        seed: Of all chance.
        place: Number of the example, so that each has chance of its own.
    """
    kind, chance = kind_of(spec.kind), Random(f"{seed} {rule.name} {place}")
    fields = kind.perturbed(example)
    chosen = {"all": fields, "first": fields[:1], "last": fields[-1:]}[rule.texts]
    changes: dict[str, object] = {}
    for name in chosen:
        if kind.words:
            before = [Word(*word) for word in zip(example[name], example[kind.gold[-1]], strict=True)]
        else:
            before = words_of(example[name])
        after = rule.change(before, chance) if before else []
        if after == before:
            continue
        if kind.words:
            changes |= {name: [word.text for word in after], kind.gold[-1]: [word.tag for word in after]}
        else:
            changes[name] = text_of(after)
    if changes and kind.searches:
        changes["asked"] = example["text"]
    return {**example, **changes} if changes else example
