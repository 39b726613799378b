"""Permutation language modelling: tokens are asked for in a random order, each from those before it in that order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from eval.encoding import IGNORED
from teachers.pretraining.objectives import masking
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.corpus import Array
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head

LONGEST = 5
"""Most words of a span."""


class PermutationLM(PretextObjective):
    """Ask for a part of the tokens in a random order, each from its place and from what stands before it in that order.

    ``L = -mean over the targets t of log p(x_t | x_j with order(j) < order(t), place of t)``. The network runs two
    streams at once: the content stream of a token sees the token itself and those before it, the query stream sees
    its place alone and those before it, and it is the query stream that answers. No token is hidden, so a fine-tuned
    network never misses a mask token.

    Only the last ``1 / k`` of an order is asked for, as spans of one to five words. The other tokens are context: in
    the authors' code all of them are seen by all tokens (``context: seen``); in the paper's formula they are ordered
    as well (``context: ordered``). Spans are drawn by place with n-gram lengths in proportion to 1/n, and fill their
    budget (see ``masking.choose_spans``); in the authors' code a target has context on both sides in proportion to its
    length.

    Attributes:
        k: One token in ``k`` is a target. The paper's is 6.
        units: ``span``, or single tokens (``token``).
        context: Whether tokens that are no targets all see each other.
        memory: Tokens before a sequence whose hidden states it attends to as well, without a gradient (Transformer-XL's
            recurrence); for ``sequences: blocks``, of which each goes on where the one before it ends. Their states are
            computed anew from those tokens alone, in an order of their own, so batches may come in any order.

    Source: Yang et al. 2019 (XLNet, 1906.08237); Dai et al. 2019 (Transformer-XL, 1901.02860).
    """

    predicts_words: ClassVar[bool] = True
    permutes: ClassVar[bool] = True

    k: float = Field(default=6.0, gt=1)
    units: Literal["span", "token"] = "span"
    context: Literal["seen", "ordered"] = "seen"
    memory: int = Field(default=0, ge=0)

    def ask(self, text: Text) -> Ask:
        """Choose targets and draw an order; nothing is hidden."""
        del text

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            numbers = [-1 if taken else int(word) for taken, word in zip(drawn.taken, drawn.words, strict=True)]
            targets = np.zeros(len(drawn.ids), dtype=bool)
            for unit in self._chosen(numbers, chance):
                targets[unit] = True
            drawn.targets["plm"] = np.where(targets, drawn.ids, IGNORED)
            drawn.targets["plm_order"] = order_of(targets, drawn.words < 0, self.context, chance)

        return ask

    def head(self, network: Any) -> Head:
        """Return the network's own output layer, over the query stream."""
        from teachers.pretraining.objectives.two_streams import QueryHead

        return QueryHead(network)

    def _chosen(self, numbers: list[int], chance: np.random.Generator) -> masking.Units:
        if self.units == "token":
            units = masking.tokens(numbers)
            return masking.choose(units, masking.budget_of(units, 1 / self.k), chance)
        words = masking.whole_words(numbers)
        return masking.choose_spans(words, masking.budget_of(words, 1 / self.k), chance, masking.ngram_lengths(LONGEST))


def order_of(targets: Array, special: Array, context: str, chance: np.random.Generator) -> Array:
    """Draw a factorization order: for each token its number in it, from 1; 0 for context that every token sees.

    Args:
        targets: Which tokens are asked for, ``[L]``.
        special: Which are special tokens, ``[L]``; they have a number as in the authors' code, so that they may see
            targets and are themselves seen by later tokens alone.
        context: ``seen`` or ``ordered``, see ``PermutationLM``; ``ordered`` gives targets the last numbers.
        chance: The source of chance.
    """
    last = targets if context == "ordered" else np.zeros(len(targets), dtype=bool)
    order = np.empty(len(targets), dtype=np.int64)
    order[np.lexsort((chance.random(len(targets)), last))] = np.arange(1, len(targets) + 1)
    return order if context == "ordered" else np.where(targets | special, order, 0)
