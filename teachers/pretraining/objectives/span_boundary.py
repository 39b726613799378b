"""SpanBERT's boundary objective: hidden tokens are asked for by the tokens around their span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class SpanBoundary(PretextObjective):
    """Ask for each token of a hidden span by the tokens around the span; needs mlm with units span.

    Source: Joshi et al. 2020 (1907.10529).
    """

    predicts_words: ClassVar[bool] = True

    def ask(self, text: Text) -> Ask:
        """Ask for nothing more: what mlm hides is asked for a second time."""
        del text

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            drawn.targets["span_boundary"] = drawn.targets["mlm"]

        return ask

    def head(self, network: Any) -> Head:
        """Return two dense layers over both ends of a span, and the decoder of the network's own words."""
        from teachers.pretraining.objectives.span_boundary_head import SpanBoundaryHead

        return SpanBoundaryHead(network)
