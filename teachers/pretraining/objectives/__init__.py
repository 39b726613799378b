"""The objectives of pretraining that ask about tokens; any of them stand together in one training, with weights.

To add one: a file here with its class and its maths, a field below, and a parity test. What answers stands in
``teachers.pretraining.prediction_heads``, or in a file beside the objective where it is more than a layer. What asks about whole
sequences stands in ``teachers.pretraining.text.sentence_pairs``. Another package adds one by an entry point of the group
``compress.objectives``.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, SerializeAsAny, model_validator

from eval.errors import UserError
from eval.plugins import Registry
from teachers.named_block import NamedBlock, full_form
from teachers.pretraining.objectives.base import PretextObjective
from teachers.pretraining.objectives.capitals import Capitals
from teachers.pretraining.objectives.in_document import InDocument
from teachers.pretraining.objectives.masked_words import MaskedWords
from teachers.pretraining.objectives.replaced_tokens import ReplacedTokens
from teachers.pretraining.objectives.span_boundary import SpanBoundary
from teachers.pretraining.objectives.word_order import WordOrder


def _problem(name: str, thing: Any) -> str:
    if not name.isidentifier():
        return "its name becomes a part of tensor names; write letters, digits and _ alone"
    fits = isinstance(thing, type) and issubclass(thing, PretextObjective)
    return "" if fits else "is no subclass of teachers.pretraining.objectives.base.PretextObjective"


REGISTRY: Registry[type[PretextObjective]] = Registry(
    "objective",
    "compress.objectives",
    {
        "masked_words": MaskedWords,
        "word_order": WordOrder,
        "replaced_tokens": ReplacedTokens,
        "span_boundary": SpanBoundary,
        "capitals": Capitals,
        "in_document": InDocument,
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


class Objectives(NamedBlock):
    """What is asked of each sequence; see the class of each field. Names of packages' objectives are fields too."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[SerializeAsAny[PretextObjective], BeforeValidator(_from_package)]]

    masked_words: MaskedWords | None = None
    word_order: WordOrder | None = None
    replaced_tokens: ReplacedTokens | None = None
    span_boundary: SpanBoundary | None = None
    capitals: Capitals | None = None
    in_document: InDocument | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_names(cls, values: Any) -> Any:
        values = full_form(values)
        if not isinstance(values, dict):
            return values
        return {key: value if key in cls.model_fields else (key, value) for key, value in values.items()}

    @classmethod
    def block_of(cls, name: str) -> type[PretextObjective] | None:
        """Return the class of an objective that is no field; None if there is none."""
        return REGISTRY.get(name) if name in REGISTRY else None

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
