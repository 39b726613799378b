"""ERNIE 2.0's token-document relation: tokens are asked whether they stand elsewhere in their document too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.encoding import IGNORED
from teachers.pretraining.corpus import Array
from teachers.pretraining.drawn import Drawn
from teachers.pretraining.objectives.objective import Ask, PretextObjective, Text

if TYPE_CHECKING:
    from teachers.pretraining.heads import Head


class InDocument(PretextObjective):
    """Ask of each token whether it stands elsewhere in its document too.

    Source: Sun et al. 2020 (ERNIE 2.0, 1907.12412), token-document relation.
    """

    def ask(self, text: Text) -> Ask:
        """Ask at every token that is neither special nor hidden."""
        tokens_of = text.document_tokens

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            inside = drawn.places[drawn.places >= 0]
            own = np.bincount(text.corpus.tokens[inside])
            whole = np.bincount(tokens_of(drawn.document), minlength=len(own))
            others = np.flatnonzero(whole[: len(own)] > own).tolist()
            able = np.flatnonzero(~drawn.taken).tolist()
            drawn.targets["in_document"] = in_document(drawn.ids.tolist(), others, able)

        return ask

    def head(self, network: Any) -> Head:
        """Return a classifier of two classes over tokens."""
        from teachers.pretraining.heads import TokenHead

        return TokenHead(network, "in_document", 2)


def in_document(ids: Sequence[int], others: Sequence[int], able: Sequence[int]) -> Array:
    """Return for each token whether it stands elsewhere in its document too (1) or not (0), or ``IGNORED``; ``[L]``.

    Args:
        ids: Tokens of the segment, ``[L]``.
        others: Tokens of the document's other segments.
        able: Places that are asked for.
    """
    labels, known = np.full(len(ids), IGNORED), set(others)
    for place in able:
        labels[place] = int(ids[place] in known)
    return labels
