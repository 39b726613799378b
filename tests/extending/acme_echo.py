"""An objective of another package: whether a token stood earlier in the sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.sequence import Drawn


class Echo(PretextObjective):
    """Ask of each token whether it stood within the last few.

    Attributes:
        reach: How many tokens before it count.
    """

    reach: int = Field(default=8, gt=0)

    def ask(self, text: Text) -> Ask:
        """Ask at every place."""
        del text

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            ids = drawn.ids.tolist()
            seen = [token in ids[max(0, place - self.reach) : place] for place, token in enumerate(ids)]
            drawn.targets["acme_echo"] = np.array(seen, dtype=np.int64)

        return ask

    def head(self, network: Any) -> Any:
        """Return a classifier of two classes over tokens."""
        from teachers.pretraining.prediction_heads import TokenHead

        return TokenHead(network, "acme_echo", 2)
