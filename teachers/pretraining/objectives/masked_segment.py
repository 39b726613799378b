"""Masked segment (MASS): one contiguous part of a text is hidden from the encoder, and the decoder writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from eval.encoding import IGNORED
from eval.errors import UserError
from teachers.pretraining.objectives import masking
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.sequence import Array, Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class MaskedSegment(PretextObjective):
    """Hide a segment of a text; the decoder writes it, and sees nothing that the encoder sees.

    ``a b c d e f`` with the segment ``c d e``: the encoder reads ``a b _ _ _ f``, the decoder ``_ c d`` at the places
    of ``c d e`` and masks before them. The loss is the cross-entropy of the segment. A segment of one token is masked
    language modelling, one of all tokens a language model.

    Attributes:
        share: Length of the segment as a share of the tokens, rounded; one at least.
        mask: Share of its tokens that become the mask for the encoder.
        random: Share that becomes a random token; the rest stays as it is.

    Source: Song et al. 2019, arXiv 1905.02450; the shares of replacements are those of its code.
    """

    predicts_words: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    share: float = Field(default=0.5, gt=0, le=1)
    mask: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="after")
    def _whole(self) -> MaskedSegment:
        masking.check_shares(self.mask, self.random)
        return self

    def ask(self, text: Text) -> Ask:
        """Return what hides a segment of a sequence.

        Raises:
            UserError: If the tokenizer has no mask token.
        """
        frame = text.frame
        if frame.mask < 0:
            raise UserError("masked_segment: the tokenizer has no mask token; take tokenizer: {kind: bpe}")

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            first, last = drawn.inside()
            ids = drawn.ids[first:last].copy()
            size = min(len(ids), max(1, round(self.share * len(ids))))
            start = int(chance.integers(len(ids) - size + 1))
            drawn.write("masked_segment", *segment(ids, start, size, frame.mask))
            draw = chance.random(size)
            inside = ids[start : start + size]
            inside = np.where(draw < self.mask + self.random, frame.random(size, chance), inside)
            ids[start : start + size] = np.where(draw < self.mask, frame.mask, inside)
            drawn.becomes(np.concatenate([drawn.ids[:first], ids, drawn.ids[last:]]))

        return ask

    def head(self, network: Any) -> Head:
        """Return the decoder's own output."""
        from teachers.pretraining.prediction_heads import DecoderHead

        del network
        return DecoderHead("masked_segment")


def segment(ids: Array, start: int, size: int, mask: int) -> tuple[Array, Array]:
    """Return what a decoder shall write at each place, ``IGNORED`` before the segment, and what it reads there.

    Args:
        ids: The tokens of the text, ``[L]``.
        start: First token of the segment.
        size: Its tokens.
        mask: Id of the mask token.
    """
    targets = np.concatenate([np.full(start, IGNORED), ids[start : start + size]])
    read = np.concatenate([np.full(start + 1, mask), ids[start : start + size - 1]])
    return targets.astype(np.int64), read.astype(np.int64)
