"""Examples and their changed copies, with a note of where each copy came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from compress.augment.rule import Rule
from compress.augment.sentence import Sentence
from eval.errors import UserError
from eval.task import Example

TEXTS = (("text",), ("text_a", "text_b"), ("tokens",))
"""Fields that hold what is changed: one of these forms."""
ORIGIN = ("source", "rule", "copy", "seed")
"""Fields that only a copy has; whatever reads examples of a task leaves them out."""


def augment(examples: Sequence[Example], rule: Rule, copies: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield every example as it is, each followed by its changed copies.

    A copy whose texts stood anywhere before, or are those of any original, is left out; so there may be fewer copies
    than were asked for. The draws of an example depend on the seed, its place and the texts of all examples.

    Args:
        examples: Of classification, regression or tagging; labels are optional.
        rule: How texts are changed. If it does not keep labels, copies have none; tags of words are always kept.
        copies: Draws for each example.
        seed: The source of all chance.

    Yields:
        Examples; a copy also has ``source`` (the index of its original), ``rule``, ``copy`` (from 1) and ``seed``.

    Raises:
        UserError: If an example is of another form, or the rule cannot work on the data.
    """
    fields = [_fields(example) for example in examples]
    sentences = [sentence for example in examples for sentence in sentences_of(example)]
    draw = rule.fit(sentences)
    seen = {_texts(example, own) for example, own in zip(examples, fields, strict=True)}
    first = 0
    for source, (example, own) in enumerate(zip(examples, fields, strict=True)):
        yield dict(example)
        chance = Random(f"{seed} {source}")
        written = {*own, "tags"} if rule.keeps_label else {*own, "tags", "label", "labels"}
        kept = {key: value for key, value in example.items() if key not in written}
        for copy in range(1, copies + 1):
            members = rule.members(copy) if len(own) > 1 else (0,)
            changed = dict(kept)
            for member, name in enumerate(own):
                place = first + member
                changed |= _values(name, draw(place, chance) if member in members else sentences[place])
            texts = _texts(changed, own)
            if texts not in seen:
                seen.add(texts)
                yield changed | dict(zip(ORIGIN, (source, rule.name, copy, seed), strict=True))
        first += len(own)


def sentences_of(example: Example) -> list[Sentence]:
    """Return the text of an example, both of a pair, or its tokens with their tags, if there are any.

    Raises:
        UserError: If it has none of these.
    """
    fields = _fields(example)
    if fields == ("tokens",):
        return [Sentence.of_tokens(example["tokens"], example.get("tags"))]
    return [Sentence.of_text(example[name]) for name in fields]


def _fields(example: Example) -> tuple[str, ...]:
    for names in TEXTS:
        if all(name in example for name in names):
            return names
    if "context" in example:
        raise UserError(
            "qa examples are not augmented: their answers are places in the context, which changed words would move"
        )
    there = ", ".join(map(repr, example)) or "no fields"
    raise UserError(f"an example must have text, text_a and text_b, or tokens; there are {there}")


def _values(name: str, sentence: Sentence) -> dict[str, Any]:
    if name != "tokens":
        return {name: sentence.text}
    tags = {} if sentence.tags is None else {"tags": list(sentence.tags)}
    return {name: list(sentence.words)} | tags


def _texts(example: Mapping[str, Any], fields: Sequence[str]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value := example[name], list) else value for name in fields)
