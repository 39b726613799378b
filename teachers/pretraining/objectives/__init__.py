"""The objectives of pretraining that ask about tokens; any of them stand together in one training, with weights.

To add one: a file here with its class and its maths, a field below, and a parity test. The heads stand in
``teachers.pretraining.prediction_heads``, or in a file beside the objective where they are more than a layer. What asks
about whole sequences stands in ``teachers.pretraining.text.sentence_pairs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from pydantic import model_validator

from teachers.named_block import NamedBlock
from teachers.pretraining.objectives.base import PretextObjective
from teachers.pretraining.objectives.capitals import Capitals
from teachers.pretraining.objectives.in_document import InDocument
from teachers.pretraining.objectives.mlm import MaskedLM
from teachers.pretraining.objectives.rtd import ReplacedTokenDetection
from teachers.pretraining.objectives.span_boundary import SpanBoundary
from teachers.pretraining.objectives.word_structural import WordStructural
from teachers.renamed import RenamedFields


class Objectives(RenamedFields, NamedBlock):
    """What is asked of each sequence; see the class of each field.

    Attributes:
        mlm: Masked language modelling (BERT; whole words, spans, n-grams and phrases as well).
        word_structural: The order of shuffled trigrams (StructBERT).
        rtd: Replaced token detection (ELECTRA).
        span_boundary: The tokens of a masked span from those at its ends (SpanBERT).
        capitals: Whether a word begins with a capital (ERNIE 2.0).
        in_document: Whether a word stands in the document elsewhere (ERNIE 2.0).
    """

    renamed: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"masked_words": "mlm", "replaced_tokens": "rtd", "word_order": "word_structural"}
    )

    mlm: MaskedLM | None = None
    word_structural: WordStructural | None = None
    rtd: ReplacedTokenDetection | None = None
    span_boundary: SpanBoundary | None = None
    capitals: Capitals | None = None
    in_document: InDocument | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Objectives:
        masks = self.mlm
        if self.span_boundary is not None and (masks is None or masks.units != "span"):
            raise ValueError("span_boundary needs mlm with 'units: span', whose spans it asks for")
        if self.rtd is not None and len(self.given) > 1:
            raise ValueError("rtd fills the sequences itself; leave the other objectives out")
        return self

    @property
    def given(self) -> dict[str, PretextObjective]:
        """The objectives by name; those that change sequences come first."""
        found = {name: own for name, own in self if own is not None}
        return dict(sorted(found.items(), key=lambda item: not item[1].changes))
