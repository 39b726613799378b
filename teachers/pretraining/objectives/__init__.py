"""The objectives of pretraining that ask about tokens; any of them stand together in one training, with weights.

To add one: a file here with its class and its maths, a field below, and a parity test. The heads stand in
``teachers.pretraining.prediction_heads``, or in a file beside the objective where they are more than a layer. What asks
about whole sequences stands in ``teachers.pretraining.text.sentence_pairs``.
"""

from __future__ import annotations

from pydantic import model_validator

from teachers.named_block import NamedBlock
from teachers.pretraining.objectives.base import PretextObjective
from teachers.pretraining.objectives.capitals import Capitals
from teachers.pretraining.objectives.in_document import InDocument
from teachers.pretraining.objectives.masked_words import MaskedWords
from teachers.pretraining.objectives.replaced_tokens import ReplacedTokens
from teachers.pretraining.objectives.span_boundary import SpanBoundary
from teachers.pretraining.objectives.word_order import WordOrder


class Objectives(NamedBlock):
    """What is asked of each sequence; see the class of each field."""

    masked_words: MaskedWords | None = None
    word_order: WordOrder | None = None
    replaced_tokens: ReplacedTokens | None = None
    span_boundary: SpanBoundary | None = None
    capitals: Capitals | None = None
    in_document: InDocument | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Objectives:
        masks = self.masked_words
        if self.span_boundary is not None and (masks is None or masks.units != "span"):
            raise ValueError("span_boundary needs masked_words with 'units: span', whose spans it asks for")
        if self.replaced_tokens is not None and len(self.given) > 1:
            raise ValueError("replaced_tokens fills the sequences itself; leave the other objectives out")
        return self

    @property
    def given(self) -> dict[str, PretextObjective]:
        """The objectives by name; those that change sequences come first."""
        found = {name: own for name, own in self if own is not None}
        return dict(sorted(found.items(), key=lambda item: not item[1].changes))
