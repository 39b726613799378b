"""How one model wants its inputs: the settings in ``encoder.json``, checked when they are read.

Of the toolkit it imports no more than what an export carries a copy of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from eval.kinds.kind_registry import kind_names

CHOICES = {
    "truncation": ("longest_first", "only_first", "only_second"),
    "truncation_side": ("left", "right"),
    "inputs": ("input_ids", "attention_mask", "token_type_ids", "branch_ids", "mention_ids"),
    "pad_side": ("left", "right"),
}
"""Values that settings may have."""
AS_END = -1
"""A begin_id that is the end_id."""
LEAST = {"max_length": 4, "begin_id": AS_END}
"""Least values, where it is not 0."""
NUMBERS = ("thresholds",)
"""Lists of numbers; all others are of texts."""
OF_SOME = ("begin_id", "end_id", "start_id", "target_length", "beams", "length_penalty", "triples", "branches")
"""Settings that only kinds have which write text, and models that read knowledge."""
HIGHEST = 2**31
"""Above every number of the settings."""


@dataclass(frozen=True)
class EncoderSettings:
    """All that is needed, beside ``tokenizer.json``, to turn an example into the inputs of one model.

    Attributes:
        kind: Task kind, one of ``eval.kinds.kind_registry.kind_names``.
        labels: Class names or tags by id.
        pair: Whether the network reads two texts at once: pairs, or a text with one of its choices.
        max_length: Most tokens of an input, special tokens counted.
        stride: Tokens shared by neighbouring windows of a long input (qa, tagging).
        truncation: longest_first, only_first or only_second (of the two).
        truncation_side: left or right.
        inputs: Names of the arrays the model takes, among input_ids, attention_mask, token_type_ids, branch_ids,
            mention_ids.
        pad_id: Token id that fills short rows.
        pad_type_id: Token type of the padding.
        pad_side: left or right.
        thresholds: From where on something is answered: for multilabel the probability of each label, for qa-with-null
            by how much the null score may exceed that of the best span; empty for the usual ones of the kind.
        prompt: Text that is put before each text.
        query_prompt: What is put before queries in its place; None for the same.
        document_prompt: Likewise before documents.
        begin_id: For causal-lm, the token id that begins a text; ``AS_END`` for ``end_id``.
        end_id: For causal-lm, the token id that stands between texts; for seq2seq, the one that ends what is written.
        start_id: For seq2seq, the token id that the decoder begins with.
        target_length: For seq2seq, most tokens that are written.
        beams: For seq2seq, beginnings that are kept while a text is written; 1 takes the likeliest token each time.
        length_penalty: For seq2seq, the power of its length that the score of a text is divided by, with beams.
        triples: Facts that are put beside the words they are about (``eval.knowledge``): subject, relation and
            object of each with tabs between them.
        branches: Most facts for each mention.
    """

    kind: str
    labels: tuple[str, ...] = ()
    pair: bool = False
    max_length: int = 128
    stride: int = 32
    truncation: str = "longest_first"
    truncation_side: str = "right"
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    pad_id: int = 0
    pad_type_id: int = 0
    pad_side: str = "right"
    thresholds: tuple[float, ...] = ()
    prompt: str = ""
    query_prompt: str | None = None
    document_prompt: str | None = None
    begin_id: int = AS_END
    end_id: int = 0
    start_id: int = 0
    target_length: int = 0
    beams: int = 0
    length_penalty: float = 0.0
    triples: tuple[str, ...] = ()
    branches: int = 0

    @property
    def beginning(self) -> int:
        """The token id that begins a text of causal-lm."""
        return self.end_id if self.begin_id == AS_END else self.begin_id

    @property
    def has_prompts(self) -> bool:
        """Whether anything is put before texts."""
        return bool(self.prompt or self.query_prompt or self.document_prompt)

    def prompt_of(self, role: str) -> str:
        """Return what is put before a text.

        Args:
            role: ``query``, ``document``, or empty where nobody knows what it is.
        """
        own = {"query": self.query_prompt, "document": self.document_prompt}.get(role)
        return self.prompt if own is None else own

    def prompted(self, role: str) -> EncoderSettings:
        """Return the settings for texts that all are queries, or all documents."""
        return replace(self, prompt=self.prompt_of(role), query_prompt=None, document_prompt=None)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EncoderSettings:
        """Build settings from JSON values; lists become tuples.

        Raises:
            ValueError: If fields are unknown, missing, or of another type; all of them at once.
        """
        texts = [each.name for each in fields(cls) if each.name == "kind" or each.default is None]
        kinds = {each.name: str if each.name in texts else type(each.default) for each in fields(cls)}
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        problems = [f"{str(name)[:60]} is unknown" for name in found if name not in kinds]
        problems += [] if "kind" in found else ["kind is missing"]
        problems += [
            f"{name} must be {_wanted(name, kind)}"
            for name, kind in kinds.items()
            if name in found and not _fits(found[name], name, kind)
        ]
        if problems:
            raise ValueError(", ".join(problems))
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; what only some models have is left out while it says nothing."""
        usual = {each.name: each.default for each in fields(self)}
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and not (name in OF_SOME and value == usual[name])
        }


def _fits(value: Any, name: str, kind: type) -> bool:
    """Whether a value is one that a field of the settings may have."""
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    if type(value) is not kind:
        return False
    if name in NUMBERS and isinstance(value, tuple):
        return all(type(number) in (int, float) and math.isfinite(number) for number in value)
    if isinstance(value, int) and kind is int:
        return LEAST.get(name, 0) <= value < HIGHEST
    texts: Any = value if kind is tuple else (value,) if kind is str else ()
    return all(isinstance(text, str) and text in (_choices(name) or (text,)) for text in texts)


def _wanted(name: str, kind: type) -> str:
    if kind is int:
        return f"a whole number of {LEAST.get(name, 0)} or more, below {HIGHEST:,}"
    words = {bool: "true or false", str: "one", tuple: "a list", float: "a number"}[kind]
    if kind in (bool, float):
        return words
    some = ("numbers",) if name in NUMBERS else _choices(name) or ("texts",)
    return f"{words} of {', '.join(some)}"


def _choices(name: str) -> tuple[str, ...]:
    """Return the values that a setting may have; nothing where it may have any."""
    return kind_names() if name == "kind" else CHOICES.get(name, ())
