"""What an objective is: it *asks*, and its *head* answers.

Asking changes a sequence and writes down what belongs to which of its places; the head answers from the hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from teachers.pretraining.text.corpus import Corpus
from teachers.pretraining.text.sequence import Drawn, Frame

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


Ask = Callable[[Drawn, np.random.Generator], None]
"""Changes a sequence, in place, and adds its targets."""


@dataclass(frozen=True)
class Text:
    """What objectives read beside a sequence.

    Attributes:
        corpus: Where sequences come from.
        frame: Special and ordinary tokens.
        tokenizer: A fast tokenizer of transformers.
    """

    corpus: Corpus
    frame: Frame
    tokenizer: Any


class PretextObjective(BaseModel):
    """Base of the objectives.

    Attributes:
        weight: What its loss is multiplied by.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    changes: ClassVar[bool] = False
    """Whether it changes what the model sees; such objectives ask first, and the others see what they have taken."""
    predicts_words: ClassVar[bool] = False
    """Whether its answers are words, so that the network needs a masked-language head."""

    causal: ClassVar[bool] = False
    """Whether it needs a network in which a token sees none of those after it; others need one that sees them."""
    permutes: ClassVar[bool] = False
    """Whether it needs a network with two streams, and answers from the second."""

    directed: ClassVar[bool] = False
    """Whether it tells the network which tokens see which; so the network must take a mask for every two of them."""

    writes: ClassVar[bool] = False
    """Whether a decoder writes the answers, beside an encoder that reads the sequence."""

    weight: float = Field(default=1.0, gt=0)

    @property
    def remembers(self) -> int:
        """Tokens before a sequence whose hidden states are its memory."""
        return int(getattr(self, "memory", 0))

    def ask(self, text: Text) -> Ask:
        """Return what asks, prepared for a corpus.

        Raises:
            UserError: If there is nothing to ask about in it.
        """
        raise NotImplementedError

    def head(self, network: Any) -> Head:
        """Return what answers, for this network."""
        raise NotImplementedError
