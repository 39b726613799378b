"""ELECTRA: a small generator fills hidden places, and of every token is asked whether it was replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from teachers.pretraining.objectives.mlm import MaskedLM
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class ReplacedTokenDetection(PretextObjective):
    """Let a small generator fill hidden places, and ask of every token whether it was replaced; alone in its training.

    Attributes:
        rate: Share of the tokens that the generator fills.
        kept: Share of these that the generator sees as they are; none become random tokens. 0.15 is the authors' code.
        generator: Width of the generator's layers, as a part of the network's.
        discriminator_weight: What the discriminator's loss is multiplied by.

    Source: Clark et al. 2020 (ELECTRA, 2003.10555).
    """

    changes: ClassVar[bool] = True

    rate: float = Field(default=0.15, gt=0, lt=1)
    kept: float = Field(default=0.15, ge=0, lt=1)
    generator: float = Field(default=0.25, gt=0, le=1)
    discriminator_weight: float = Field(default=50.0, gt=0)

    def ask(self, text: Text) -> Ask:
        """Hide what the generator fills."""
        hide = MaskedLM(rate=self.rate, mask=1 - self.kept, random=0.0).ask(text)

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            hide(drawn, chance)
            drawn.targets["generator"] = drawn.targets.pop("mlm")
            drawn.targets["generator_seed"] = np.full_like(drawn.ids, chance.integers(2**62))

        return ask

    def head(self, network: Any) -> Head:
        """Return the generator and the discriminator's head."""
        from teachers.pretraining.objectives.discriminator import Discriminator

        return Discriminator(network, self.generator, self.discriminator_weight)
