"""ERNIE 2.0's token-document relation: tokens are asked whether they stand elsewhere in their document too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.encoding import IGNORED
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.corpus import Array
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class InDocument(PretextObjective):
    """Ask of each token whether it stands in other segments of its document too.

    The segment of a token is all that the sequence holds of its document; a sequence may hold segments of several.

    Source: Sun et al. 2020 (ERNIE 2.0, 1907.12412), token-document relation.
    """

    def ask(self, text: Text) -> Ask:
        """Ask at every token that is neither special nor hidden."""
        corpus = text.corpus

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            labels = np.full_like(drawn.ids, IGNORED)
            document_of = np.where(drawn.places >= 0, corpus.documents_of(drawn.places), -1)
            for document in np.unique(document_of[document_of >= 0]).tolist():
                segment = document_of == document
                own = np.bincount(corpus.tokens[drawn.places[segment]])
                whole = np.bincount(corpus.tokens_of(document), minlength=len(own))
                others = np.flatnonzero(whole[: len(own)] > own).tolist()
                able = np.flatnonzero(segment & ~drawn.taken)
                labels[able] = in_document(drawn.ids.tolist(), others, able.tolist())[able]
            drawn.targets["in_document"] = labels

        return ask

    def head(self, network: Any) -> Head:
        """Return a classifier of two classes over tokens."""
        from teachers.pretraining.prediction_heads import TokenHead

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
