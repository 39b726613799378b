"""Next word: every token is asked for where the one before it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from eval.encoding import IGNORED
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class NextWord(PretextObjective):
    """Ask at each token for the next one, of a network that sees none of those after it.

    With ``sequences: blocks``, which is the default of a task that asks for this alone, all documents are one stream
    with an end-of-text token between them, cut into blocks of the full length.

    Attributes:
        memory: Tokens before a block whose hidden states it attends to as well, without a gradient: the recurrence of
            Transformer-XL, of which transformers 5 has no class; XLNet with ``attn_type: uni`` is that network but for
            its adaptive softmax. The states are computed anew from those tokens alone, where Transformer-XL keeps those
            of the optimizer step before; so batches come in any order, and a run resumes exactly.

    Source: Radford et al. 2018 (GPT); Radford et al. 2019 (GPT-2); Dai et al. 2019 (Transformer-XL, 1901.02860).
    """

    predicts_words: ClassVar[bool] = True
    causal: ClassVar[bool] = True

    memory: int = Field(default=0, ge=0)

    def ask(self, text: Text) -> Ask:
        """Ask for the token after each, whatever it is; for none after the last."""
        del text

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            drawn.targets["next_word"] = np.append(drawn.ids[1:], IGNORED)

        return ask

    def head(self, network: Any) -> Head:
        """Return the network's own output layer."""
        from teachers.pretraining.prediction_heads import RecurrentHead

        return RecurrentHead(network, "next_word")
