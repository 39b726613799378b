"""StructBERT's word objective: runs of tokens are shuffled, and asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from eval.encoding import IGNORED
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.corpus import Array
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class WordStructural(PretextObjective):
    """Shuffle runs of three tokens and ask which stood where.

    Attributes:
        rate: Share of the tokens in shuffled runs.
        size: Tokens of a run.

    Source: Wang et al. 2019 (StructBERT, 1908.04577).
    """

    changes: ClassVar[bool] = True
    predicts_words: ClassVar[bool] = True

    rate: float = Field(default=0.05, gt=0, lt=1)
    size: int = Field(default=3, ge=2)

    def ask(self, text: Text) -> Ask:
        """Shuffle among the tokens that no other objective has taken."""
        del text

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            able = np.flatnonzero(~drawn.taken).tolist()
            drawn.ids, labels = shuffle_trigrams(drawn.ids, able, self.rate, chance, self.size)
            drawn.targets["word_structural"] = labels
            drawn.taken = drawn.taken | (labels != IGNORED)

        return ask

    def head(self, network: Any) -> Head:
        """Return the network's own masked-language head."""
        from teachers.pretraining.prediction_heads import WordHead

        return WordHead(network, "word_structural")


def shuffle_trigrams(
    ids: Array, able: Sequence[int], rate: float, chance: np.random.Generator, size: int = 3
) -> tuple[Array, Array]:
    """Shuffle runs of tokens; the model has to say which token stood at each place (StructBERT's word objective).

    Args:
        ids: Token ids ``[L]``; they are left as they are.
        able: Places that may be shuffled: neither special nor hidden by another objective.
        rate: Share of these places in shuffled runs, 0.05 in the paper.
        chance: The source of chance.
        size: Tokens of a run.

    Returns:
        The changed ids, and the labels: the ids before in shuffled runs, ``IGNORED`` elsewhere; both ``[L]``.
    """
    changed, labels = ids.copy(), np.full_like(ids, IGNORED)
    free = set(able)
    wanted = int(np.ceil(rate * len(able) / size)) if len(able) >= size else 0
    for start in chance.permutation(list(able)):
        run = list(range(int(start), int(start) + size))
        if wanted < 1:
            break
        if not free.issuperset(run):
            continue
        order = chance.permutation(size)
        while (order == np.arange(size)).all():
            order = chance.permutation(size)
        labels[run] = ids[run]
        changed[run] = ids[run][order]
        free -= set(run)
        wanted -= 1
    return changed, labels
