"""Prefix language modelling (UniLM): hidden tokens of one encoder, under masks that let it read, or write a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from eval.encoding import IGNORED
from teachers.pretraining.objectives import masking
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.corpus import Array
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head

Direction = Literal["bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left"]
DIRECTIONS: tuple[Direction, ...] = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
TYPES = 6
"""Token types of a network that is told the direction by them."""


class PrefixLM(PretextObjective):
    """Hide tokens and ask for them; of each sequence chance chooses which tokens see which.

    Bidirectional: all see all. Sequence to sequence: the tokens of the source see the source, those of the target the
    source and the target up to themselves. Left to right: a token sees itself and those before it. Right to left:
    itself and those after it. A hidden token is asked for at its own place, as in masked language modelling, so that
    one network with one head learns all four. Source and target are the two segments of a sequence, the separator
    between them part of the source; a sequence of one text is divided at a random place.

    UniLM's next sentence prediction goes with the bidirectional direction: a task with ``pair: next_sentence`` and no
    other direction, beside tasks of the others. Special tokens are never hidden.

    Attributes:
        bidirectional: Chance of this direction; the four are taken in proportion to each other.
        sequence_to_sequence: Likewise.
        left_to_right: Likewise.
        right_to_left: Likewise.
        types: Whether token types tell the direction, as in the paper: 0 and 1 of the two segments, 2 left to right, 3
            right to left, 4 and 5 of source and target. The network then needs ``options: {type_vocab_size: 6}``.
        rate: Share of the tokens that is hidden.
        several: Share of the draws that hide two or three tokens together; the others hide one.
        mask: Share of the hidden tokens that becomes the mask token.
        random: Share that becomes a random token; the rest stays.

    Source: Dong et al. 2019 (UniLM, 1905.03197).
    """

    changes: ClassVar[bool] = True
    predicts_words: ClassVar[bool] = True
    directed: ClassVar[bool] = True

    bidirectional: float = Field(default=1 / 3, ge=0)
    sequence_to_sequence: float = Field(default=1 / 3, ge=0)
    left_to_right: float = Field(default=1 / 6, ge=0)
    right_to_left: float = Field(default=1 / 6, ge=0)
    types: bool = False
    rate: float = Field(default=0.15, gt=0, lt=1)
    several: float = Field(default=0.2, ge=0, le=1)
    mask: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="after")
    def _whole(self) -> PrefixLM:
        masking.check_shares(self.mask, self.random)
        if not any(getattr(self, name) for name in DIRECTIONS):
            raise ValueError(f"one of {', '.join(DIRECTIONS)} must be above 0")
        return self

    @property
    def sees_all(self) -> bool:
        """Whether every sequence is bidirectional, so that its first token sees all of it."""
        return not any(getattr(self, name) for name in DIRECTIONS if name != "bidirectional")

    def ask(self, text: Text) -> Ask:
        """Hide ``rate`` of each sequence, and write down which tokens see which."""
        frame = text.frame
        lengths = np.array([1 - self.several, self.several / 2, self.several / 2])
        chances = np.array([getattr(self, name) for name in DIRECTIONS])
        how = masking.Replacement(self.mask, self.random)

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            units = masking.tokens(np.where(drawn.taken, -1, drawn.words).tolist())
            chosen = masking.choose_spans(units, masking.budget_of(units, self.rate), chance, lengths)
            drawn.ids, labels = masking.hide(
                drawn.ids, chosen, frame.mask, lambda count: frame.random(count, chance), chance, how
            )
            direction = DIRECTIONS[int(chance.choice(len(DIRECTIONS), p=chances / chances.sum()))]
            begins = target_begins(drawn, chance)
            drawn.targets["prefix_lm"] = labels
            drawn.targets["prefix_lm_steps"] = steps_of(direction, len(drawn.ids), begins)
            drawn.taken = drawn.taken | (labels != IGNORED)
            if self.types:
                drawn.types = types_of(direction, drawn.types, begins)

        return ask

    def head(self, network: Any) -> Head:
        """Return the network's own masked-language head, under the masks."""
        from teachers.pretraining.objectives.directed_head import DirectedHead

        return DirectedHead(network, "prefix_lm")


def target_begins(drawn: Drawn, chance: np.random.Generator) -> int:
    """Return the first token of the target: that of the second segment, or of one text a random token but its first."""
    first, last = drawn.inside()
    special = np.flatnonzero(drawn.words[first:last] < 0)
    if len(special):
        after = np.flatnonzero(drawn.words[first + special[0] :] >= 0)
        return first + int(special[0]) + int(after[0])
    return int(chance.integers(first + 1, last)) if last - first > 1 else first


def steps_of(direction: Direction, length: int, begins: int) -> Array:
    """Return the step of each token, ``[length]``: a token sees those of its own step and of earlier ones.

    Args:
        direction: Which tokens see which.
        length: Tokens.
        begins: First token of the target.

    Examples:
        >>> steps_of("sequence_to_sequence", 4, 2).tolist()
        [0, 0, 1, 2]
    """
    places = np.arange(length)
    if direction == "bidirectional":
        return np.zeros(length, dtype=np.int64)
    if direction == "sequence_to_sequence":
        return np.maximum(places - begins + 1, 0)
    return places if direction == "left_to_right" else places[::-1].copy()


def types_of(direction: Direction, types: Array, begins: int) -> Array:
    """Return the token types that tell the direction, ``[L]``.

    Args:
        direction: Which tokens see which.
        types: Those of the segments.
        begins: First token of the target.
    """
    if direction == "bidirectional":
        return types
    if direction == "sequence_to_sequence":
        return np.where(np.arange(len(types)) < begins, 4, 5)
    return np.full_like(types, 2 if direction == "left_to_right" else 3)
