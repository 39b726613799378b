"""A sequence of tokens on its way to the model, and the special tokens that its tokenizer puts around texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from eval.encoding import IGNORED
from eval.errors import UserError
from teachers.pretraining.text.corpus import Corpus

Array = NDArray[Any]
START = -1
"""Stands for the token that a decoder begins with, whatever it is."""


@dataclass
class Drawn:
    """One sequence; objectives change its ids and write down what they ask for.

    Attributes:
        ids: What the model sees, ``[L]``.
        words: Number of the word of each token, -1 for special tokens, ``[L]``.
        types: Token types, ``[L]``.
        places: Place of each token in the corpus, -1 for special tokens, ``[L]``.
        positions: Position of each token, ``[L]``; None if they are counted through.
        label: Its class, where it has one.
        taken: Whether an objective has changed or asked for a token, ``[L]``.
        targets: What is asked for, by name: ``[L]`` each, ``IGNORED`` where nothing is; ``[T]`` where it is written.
        decoder: What a decoder reads, ``[T]``; None of a sequence that nobody writes.
    """

    ids: Array
    words: Array
    types: Array
    places: Array
    label: int = IGNORED
    positions: Array | None = None
    taken: Array = field(init=False)
    targets: dict[str, Array] = field(default_factory=dict)
    decoder: Array | None = None

    def inside(self) -> tuple[int, int]:
        """Return the first token that is not special, and the one after the last such."""
        own = np.flatnonzero(self.words >= 0)
        return (int(own[0]), int(own[-1]) + 1) if len(own) else (0, 0)

    def write(self, name: str, targets: Array, read: Array | None = None) -> None:
        """Ask for tokens that a decoder writes.

        Args:
            name: Of what asks.
            targets: The tokens, ``[T]``; ``IGNORED`` where nothing is asked for.
            read: What the decoder reads at each place; by default the start, then each target but the last.
        """
        self.targets[name] = targets
        self.decoder = np.concatenate([[START], targets[:-1]]) if read is None else read

    def becomes(self, ids: Array) -> None:
        """Let the model see other tokens, of which nothing more can be asked."""
        self.ids, self.types = ids, np.zeros(len(ids), dtype=np.int64)
        self.words = self.places = np.full(len(ids), -1)
        self.taken = np.ones(len(ids), dtype=bool)

    def __post_init__(self) -> None:
        """Nothing is taken yet but special tokens."""
        self.taken = self.words < 0


class Frame:
    """Special tokens around one text or two, as a tokenizer puts them, and its ordinary tokens.

    Args:
        tokenizer: A fast tokenizer of transformers.
        masks: Whether a mask token is needed.

    Attributes:
        mask: Id of the mask token; -1 if there is none.
        pad: Id of padding.
        separator: Ids between two texts that are read as one.
        ordinary: Ids that are no special tokens; random replacements are drawn from them.

    Raises:
        UserError: If the tokenizer has no mask token, or splits a plain word into nothing.
    """

    def __init__(self, tokenizer: Any, masks: bool = True) -> None:
        if (masks and tokenizer.mask_token_id is None) or tokenizer.pad_token_id is None:
            raise UserError("the tokenizer has no mask token or no padding token; pretraining needs both")
        self.mask = -1 if tokenizer.mask_token_id is None else int(tokenizer.mask_token_id)
        self.pad = int(tokenizer.pad_token_id)
        self._one, self._two = _Slots(tokenizer("a")), _Slots(tokenizer("a", "a"))
        self.separator = self._two.special[1][:1]
        if (
            not self.separator and tokenizer.eos_token_id is not None
        ):  # a decoder's, which puts nothing between two texts
            self.separator = [int(tokenizer.eos_token_id)]
        special = set(tokenizer.all_special_ids)
        self.ordinary = np.array([i for i in range(len(tokenizer)) if i not in special], dtype=np.int64)

    @property
    def types(self) -> tuple[int, int]:
        """Token types of the two texts of a pair."""
        first, second = self._two.types
        return first, second

    def room(self, length: int, texts: int = 1) -> int:
        """Return how many ordinary tokens fit into so many tokens.

        Raises:
            UserError: If the tokenizer puts nothing between two texts, and there are several.
        """
        slots = self._one if texts == 1 else self._two
        if texts > 1 and len(slots.types) < 2:
            raise UserError(
                "the tokenizer puts no special token between two texts, so pairs, dialogues and translations cannot be "
                "read with it; take tokenizer: {kind: wordpiece}, or a model whose tokenizer does"
            )
        return length - slots.count - max(0, texts - 2) * len(slots.special[1])

    def random(self, count: int, chance: np.random.Generator) -> Array:
        """Draw ordinary tokens."""
        return self.ordinary[chance.integers(0, len(self.ordinary), count)]

    def draw(
        self,
        corpus: Corpus,
        texts: Sequence[Sequence[int]],
        label: int = IGNORED,
        roles: bool = False,
        bare: bool = False,
        restart: bool = False,
    ) -> Drawn:
        """Return a sequence of one text or several.

        Args:
            corpus: Where the tokens are.
            texts: Places of the tokens of each text; -1 stands for a separator inside of a text.
            label: See ``Drawn``.
            roles: Whether texts are turns of a dialogue: each ends like a second text, and types alternate.
            bare: Whether no special tokens stand around them.
            restart: Whether the tokens of every text have the positions that they would have in it alone.
        """
        slots = _Bare() if bare else self._one if len(texts) == 1 else self._two
        ids: list[Array] = [np.array(slots.special[0], dtype=np.int64)]
        places: list[Array] = [np.full(len(slots.special[0]), -1)]
        types: list[Array] = [np.full(len(slots.special[0]), slots.types[0])]
        first = len(slots.special[0])
        positions: list[Array] = [np.arange(first)]
        for number, text in enumerate(texts):
            own = np.asarray(text, dtype=np.int64)
            inner = np.where(own < 0, self.separator[0], corpus.tokens[np.maximum(own, 0)].astype(np.int64))
            last = number + 1 == len(texts)
            end = slots.special[-1 if last else 1]
            role = number % 2 if roles else min(number, 1)
            ids += [inner, np.array(end, dtype=np.int64)]
            places += [own, np.full(len(end), -1)]
            types += [np.full(len(own) + len(end), slots.types[role])]
            positions.append(np.arange(first, first + len(own) + len(end)))
            if last and slots.last_type is not None:
                types[-1][-1] = slots.last_type
        where = np.concatenate(places)
        found = Drawn(np.concatenate(ids), _words(corpus, where), np.concatenate(types), where, label)
        found.positions = np.concatenate(positions) if restart else None
        return found


class _Slots:
    """What a tokenizer puts before, between and after texts, and the token types of the texts."""

    def __init__(self, encoded: Any) -> None:
        encoding = encoded.encodings[0]
        special: list[list[int]] = [[]]
        self.types: list[int] = []
        inside = False
        for token, is_special, type_id in zip(
            encoding.ids, encoding.special_tokens_mask, encoding.type_ids, strict=True
        ):
            if is_special:
                special[-1].append(token)
            elif not inside:
                special.append([])
                self.types.append(type_id)
            inside = not is_special
        if not self.types:
            raise UserError("the tokenizer makes no token of the letter 'a'; pretraining cannot use it")
        self.special = special
        self.last_type = encoding.type_ids[-1] if encoding.type_ids[-1] not in self.types else None
        """Token type of the last special token where it is no text's, as that of XLNet's classifier token."""
        self.count = sum(map(len, special))


class _Bare:
    """Nothing around a text."""

    special: ClassVar[list[list[int]]] = [[], []]
    types: ClassVar[list[int]] = [0]
    last_type: ClassVar[int | None] = None


def _words(corpus: Corpus, places: Array) -> Array:
    """Number the words of a sequence; a new one begins after every special token and wherever the corpus says so."""
    inside = places >= 0
    begins = inside & ((corpus.flags[np.maximum(places, 0)] & 1) > 0)
    begins[1:] |= inside[1:] & (~inside[:-1] | (places[1:] != places[:-1] + 1))
    begins[:1] |= inside[:1]
    return np.where(inside, np.cumsum(begins) - 1, -1)
