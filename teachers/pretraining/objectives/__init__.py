"""The objectives of pretraining that ask about tokens; any of them stand together in one training, with weights.

To add one: a file here with its class and its maths, a field below, and a parity test. The heads stand in
``teachers.pretraining.prediction_heads``, or in a file beside the objective where they are more than a layer. What asks
about whole sequences stands in ``teachers.pretraining.text.sentence_pairs``. Another package adds one by an entry point
of the group ``compress.objectives``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, SerializeAsAny, model_validator

from eval.errors import UserError
from eval.plugins import Registry
from teachers.named_block import NamedBlock, full_form
from teachers.pretraining.objectives.capitals import Capitals
from teachers.pretraining.objectives.denoising import Denoising
from teachers.pretraining.objectives.in_document import InDocument
from teachers.pretraining.objectives.masked_segment import MaskedSegment
from teachers.pretraining.objectives.mlm import MaskedLM
from teachers.pretraining.objectives.next_word import NextWord
from teachers.pretraining.objectives.plm import PermutationLM
from teachers.pretraining.objectives.prefix_lm import PrefixLM
from teachers.pretraining.objectives.pretext_objective import PretextObjective
from teachers.pretraining.objectives.rtd import ReplacedTokenDetection
from teachers.pretraining.objectives.span_boundary import SpanBoundary
from teachers.pretraining.objectives.span_corruption import SpanCorruption
from teachers.pretraining.objectives.word_structural import WordStructural
from teachers.renamed import RenamedFields


def _problem(name: str, thing: Any) -> str:
    if not name.isidentifier():
        return "its name becomes a part of tensor names; write letters, digits and _ alone"
    fits = isinstance(thing, type) and issubclass(thing, PretextObjective)
    return "" if fits else "is no subclass of teachers.pretraining.objectives.pretext_objective.PretextObjective"


REGISTRY: Registry[type[PretextObjective]] = Registry(
    "objective",
    "compress.objectives",
    {
        "mlm": MaskedLM,
        "word_structural": WordStructural,
        "rtd": ReplacedTokenDetection,
        "span_boundary": SpanBoundary,
        "capitals": Capitals,
        "in_document": InDocument,
        "next_word": NextWord,
        "plm": PermutationLM,
        "prefix_lm": PrefixLM,
        "span_corruption": SpanCorruption,
        "denoising": Denoising,
        "masked_segment": MaskedSegment,
    },
    _problem,
)
"""Our own objectives, each a field of ``Objectives`` as well, and those of other packages."""


def _from_package(named: tuple[str, Any]) -> PretextObjective:
    name, value = named
    try:
        kind = REGISTRY.get(name)
    except UserError as error:
        raise ValueError(str(error)) from error
    return kind.model_validate(value)


class Objectives(RenamedFields, NamedBlock):
    """What is asked of each sequence; see the class of each field. Names of packages' objectives are fields too.

    Attributes:
        mlm: Masked language modelling (BERT; whole words, spans, n-grams and phrases as well).
        word_structural: The order of shuffled trigrams (StructBERT).
        rtd: Replaced token detection (ELECTRA).
        span_boundary: The tokens of a masked span from those at its ends (SpanBERT).
        capitals: Whether a word begins with a capital (ERNIE 2.0).
        in_document: Whether a word stands in the document elsewhere (ERNIE 2.0).
        next_word: The token after each (GPT, GPT-2, Transformer-XL); of decoders, and alone.
        plm: Permutation language modelling (XLNet); of networks with two streams, and alone.
        prefix_lm: Hidden tokens under four masks, of which one makes an encoder read a source and write a target
            (UniLM); alone.
        span_corruption: Spans that were taken out (T5); of an encoder with a decoder, and alone, as the next two.
        denoising: The whole text, of which spans are missing and sentences shuffled (BART).
        masked_segment: A segment that the encoder does not see (MASS).
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[SerializeAsAny[PretextObjective], BeforeValidator(_from_package)]]
    renamed: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"masked_words": "mlm", "replaced_tokens": "rtd", "word_order": "word_structural"}
    )

    mlm: MaskedLM | None = None
    word_structural: WordStructural | None = None
    rtd: ReplacedTokenDetection | None = None
    span_boundary: SpanBoundary | None = None
    capitals: Capitals | None = None
    in_document: InDocument | None = None
    next_word: NextWord | None = None
    plm: PermutationLM | None = None
    prefix_lm: PrefixLM | None = None
    span_corruption: SpanCorruption | None = None
    denoising: Denoising | None = None
    masked_segment: MaskedSegment | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_names(cls, values: Any) -> Any:
        values = full_form(values)
        if not isinstance(values, dict):
            return values
        known = {*cls.model_fields, *cls.renamed}
        return {key: value if key in known else (key, value) for key, value in values.items()}

    @classmethod
    def block_of(cls, name: str) -> type[PretextObjective] | None:
        """Return the class of an objective that is no field; None if there is none."""
        return REGISTRY.get(name) if name in REGISTRY else None

    @model_validator(mode="after")
    def _fitting(self) -> Objectives:
        masks = self.mlm
        if self.span_boundary is not None and (masks is None or masks.units != "span"):
            raise ValueError("span_boundary needs mlm with 'units: span', whose spans it asks for")
        if self.rtd is not None and len(self.given) > 1:
            raise ValueError("rtd fills the sequences itself; leave the other objectives out")
        if self.next_word is not None and len(self.given) > 1:
            raise ValueError("next_word is for networks that see no later token; leave the other objectives out")
        if self.plm is not None and len(self.given) > 1:
            raise ValueError("plm answers from a stream of its own; leave the other objectives out")
        if self.prefix_lm is not None and len(self.given) > 1:
            raise ValueError("prefix_lm hides tokens itself, and not all of them see each other; leave the others out")
        writing = [name for name, own in self.given.items() if own.writes]
        if writing and len(self.given) > 1:
            raise ValueError(f"{writing[0]} is what a decoder writes of a sequence; leave the other objectives out")
        return self

    @property
    def given(self) -> dict[str, PretextObjective]:
        """The objectives by name; those that change sequences come first."""
        found = {name: own for name, own in self if own is not None}
        return dict(sorted(found.items(), key=lambda item: not item[1].changes))
