"""Span corruption (T5): spans are taken out, a sentinel stands for each, and the decoder writes what was taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from eval.errors import UserError
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.sequence import Array, Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head

SENTINEL = "<extra_id_{}>"


class SpanCorruption(PretextObjective):
    """Take spans out of a text; the decoder writes each after its sentinel, and a last sentinel after all.

    ``a b c d e f g`` with the spans ``b c`` and ``f`` becomes ``a <0> d e <1> g`` and ``<0> b c <1> f <2>``, then the
    end of the text. The loss is the cross-entropy of all that the decoder writes.

    Attributes:
        rate: Share of the tokens that is taken, rounded; one at least.
        mean: Mean length of a span; there are ``rate · tokens / mean`` of them, rounded.

    Source: Raffel et al. 2020, arXiv 1910.10683.
    """

    predicts_words: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    rate: float = Field(default=0.15, gt=0, lt=1)
    mean: float = Field(default=3.0, ge=1)

    def ask(self, text: Text) -> Ask:
        """Return what corrupts a sequence between its special tokens.

        Raises:
            UserError: If the tokenizer has no sentinels.
        """
        sentinels = sentinels_of(text.tokenizer)
        if len(sentinels) < 2:
            raise UserError(
                "span_corruption: the tokenizer has no sentinels (<extra_id_0>, <extra_id_1> …); take tokenizer: "
                "{kind: t5}, or one of T5"
            )
        end = text.tokenizer.eos_token_id

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            first, last = drawn.inside()
            ids = drawn.ids[first:last]
            spans = noise_spans(len(ids), self.rate, self.mean, chance)[: len(sentinels) - 1]
            seen, taken = corrupted(ids, spans, sentinels)
            drawn.write("span_corruption", np.append(taken, [] if end is None else [end]).astype(np.int64))
            drawn.becomes(np.concatenate([drawn.ids[:first], seen, drawn.ids[last:]]))

        return ask

    def head(self, network: Any) -> Head:
        """Return the decoder's own output."""
        from teachers.pretraining.prediction_heads import DecoderHead

        del network
        return DecoderHead("span_corruption")


def sentinels_of(tokenizer: Any) -> list[int]:
    """Return the ids of a tokenizer's sentinels, in order."""
    known, found = tokenizer.get_vocab(), list[int]()
    while (name := SENTINEL.format(len(found))) in known:
        found.append(int(known[name]))
    return found


def noise_spans(length: int, rate: float, mean: float, chance: np.random.Generator) -> list[tuple[int, int]]:
    """Draw spans, each as its first token and the one after its last, with at least one kept token before each.

    ``round(rate · length)`` tokens are noise, in ``round(noise / mean)`` spans; the lengths of spans, and of what is
    kept between them, are random partitions, as in T5's code.

    Args:
        length: Tokens of the text.
        rate: Share that is noise.
        mean: Mean length of a span.
        chance: The source of chance.
    """
    if length < 2:
        return []
    noise = min(max(round(rate * length), 1), length - 1)
    count = min(max(round(noise / mean), 1), noise, length - noise)
    kept, taken = _partition(length - noise, count, chance), _partition(noise, count, chance)
    ends = np.cumsum(np.stack([kept, taken], axis=1).reshape(-1)).tolist()
    return list(zip(ends[::2], ends[1::2], strict=True))


def _partition(total: int, parts: int, chance: np.random.Generator) -> Array:
    """Return random numbers of 1 or more with this sum."""
    cuts = np.sort(chance.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def corrupted(ids: Array, spans: list[tuple[int, int]], sentinels: list[int]) -> tuple[Array, Array]:
    """Return a text with a sentinel for each span, and what was taken: each span after its sentinel, and a last one.

    Args:
        ids: The tokens, ``[L]``.
        spans: In order, without overlaps.
        sentinels: Ids, one more than spans.
    """
    seen: list[int] = []
    taken: list[int] = []
    before = 0
    for sentinel, (start, end) in zip(sentinels, spans, strict=False):
        seen += [*ids[before:start].tolist(), sentinel]
        taken += [sentinel, *ids[start:end].tolist()]
        before = end
    seen += ids[before:].tolist()
    return np.array(seen, dtype=np.int64), np.array([*taken, sentinels[len(spans)]], dtype=np.int64)
