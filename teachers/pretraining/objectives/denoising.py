"""Denoising (BART): sentences are shuffled, spans become one mask each, and the decoder writes the whole original."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from eval.errors import UserError
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.sequence import Array, Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class Denoising(PretextObjective):
    """Let the decoder write a text of which the encoder sees less, in another order of sentences.

    Text infilling: spans whose lengths are drawn from a Poisson distribution are each replaced by one mask token; a
    span of no token inserts one, so that a mask does not tell how many tokens are missing. Sentence permutation: the
    sentences of a sequence stand in random order. The loss is the cross-entropy of the whole original.

    Attributes:
        rate: Share of the tokens that spans cover, rounded.
        mean: Mean of the Poisson distribution of their lengths.
        permute: Whether sentences are shuffled first.

    Source: Lewis et al. 2020, arXiv 1910.13461.
    """

    predicts_words: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    rate: float = Field(default=0.3, ge=0, lt=1)
    mean: float = Field(default=3.0, gt=0)
    permute: bool = True

    def ask(self, text: Text) -> Ask:
        """Return what makes noise of a sequence, between its special tokens.

        Raises:
            UserError: If the tokenizer has no mask token.
        """
        mask, starts = text.frame.mask, text.corpus.sentence_starts
        if mask < 0:
            raise UserError("denoising: the tokenizer has no mask token; take tokenizer: {kind: bpe}, or one of BART")

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            drawn.write("denoising", drawn.ids.copy())
            first, last = drawn.inside()
            ids = drawn.ids[first:last]
            if self.permute:
                ids = permuted(ids, begins_at(drawn.places[first:last], starts), chance)
            seen = infilled(ids, infill_spans(len(ids), self.rate, self.mean, chance), mask)
            drawn.becomes(np.concatenate([drawn.ids[:first], seen, drawn.ids[last:]]))

        return ask

    def head(self, network: Any) -> Head:
        """Return the decoder's own output."""
        from teachers.pretraining.prediction_heads import DecoderHead

        del network
        return DecoderHead("denoising")


def begins_at(places: Array, starts: Array) -> Array:
    """Return whether one of ``starts``, which are in ascending order, is at each place ``[L]``.

    Examples:
        >>> import numpy as np
        >>> begins_at(np.array([3, 4, 5, -1, 9]), np.array([0, 4, 9])).tolist()
        [False, True, False, False, True]
    """
    after = np.minimum(np.searchsorted(starts, places), len(starts) - 1)
    found: Array = starts[after] == places
    return found


def permuted(ids: Array, begins: Array, chance: np.random.Generator) -> Array:
    """Return the sentences of a text in random order.

    Args:
        ids: The tokens, ``[L]``.
        begins: Whether a sentence begins at each, ``[L]``; the first token begins one in any case.
        chance: The source of chance.
    """
    sentences = np.split(ids, np.flatnonzero(begins[1:]) + 1)
    order = chance.permutation(len(sentences))
    return np.concatenate([sentences[number] for number in order])


def infill_spans(length: int, rate: float, mean: float, chance: np.random.Generator) -> list[tuple[int, int]]:
    """Draw spans, each as its first token and the one after its last; those of no token stand between two tokens.

    Lengths are drawn until they cover ``round(rate · length)`` tokens, the last one cut to fit; between two spans there
    is a kept token at least.

    Args:
        length: Tokens of the text.
        rate: Share that spans cover.
        mean: Mean of the Poisson distribution.
        chance: The source of chance.
    """
    left, lengths = round(rate * length), list[int]()
    kept = length - left
    while left > 0 and len(lengths) <= kept:
        lengths.append(min(int(chance.poisson(mean)), left))
        left -= lengths[-1]
    places = np.sort(chance.choice(kept + 1, len(lengths), replace=False)).tolist() if lengths else []
    found, before = list[tuple[int, int]](), 0
    for place, size in zip(places, lengths, strict=True):
        found.append((place + before, place + before + size))
        before += size
    return found


def infilled(ids: Array, spans: list[tuple[int, int]], mask: int) -> Array:
    """Return a text with one mask in the place of each span.

    Args:
        ids: The tokens, ``[L]``.
        spans: In order, without overlaps.
        mask: Id of the mask token.

    Examples:
        >>> import numpy as np
        >>> infilled(np.array([1, 2, 3, 4, 5]), [(1, 3), (4, 4)], 0).tolist()
        [1, 0, 4, 0, 5]
    """
    seen: list[int] = []
    before = 0
    for start, end in spans:
        seen += [*ids[before:start].tolist(), mask]
        before = end
    return np.array([*seen, *ids[before:].tolist()], dtype=np.int64)
