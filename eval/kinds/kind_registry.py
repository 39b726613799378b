"""The kinds of tasks by name: our own, and those that other packages offer as entry points.

A package offers one in its ``pyproject.toml``::

    [project.entry-points."compress.kinds"]
    grading = "their_package.grading:Grading"

where ``Grading`` is a subclass of ``eval.kinds.kind.Kind`` with ``name = "grading"``. Its file may import numpy, the
standard library, and of this toolkit ``eval``; exports carry a copy of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eval.plugins import Registry, subclass_of

if TYPE_CHECKING:
    from eval.kinds.kind import Kind

OWN: dict[str, str] = {
    "classification": "eval.kinds.classification:Classification",
    "multilabel": "eval.kinds.multilabel:MultiLabel",
    "regression": "eval.kinds.regression:Regression",
    "tagging": "eval.kinds.tagging:Tagging",
    "qa": "eval.kinds.qa:QuestionAnswering",
    "qa-with-null": "eval.kinds.qa_with_null:QuestionAnsweringWithNull",
    "masked-lm": "eval.kinds.language.masked_lm:MaskedLanguage",
    "causal-lm": "eval.kinds.language.causal_lm:CausalLanguage",
    "seq2seq": "eval.kinds.language.seq2seq:SequenceToSequence",
    "embedding": "eval.kinds.embedding:Embedding",
    "multiple-choice": "eval.kinds.multiple_choice:MultipleChoice",
    "retrieval": "eval.kinds.retrieval:Retrieval",
    "reranking": "eval.kinds.reranking:Reranking",
}
"""Our own kinds, each loaded on use."""
REGISTRY: Registry[Kind] = Registry(
    "kind of task", "compress.kinds", OWN, subclass_of("eval.kinds.kind.Kind"), instances=True
)
"""Our own kinds and those of other packages."""


def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds, our own first; nothing is loaded."""
    return REGISTRY.names()


def kind_of(name: str) -> Kind:
    """Return the kind of a name, loaded on its first use.

    Raises:
        UserError: If there is none, two packages claim the name, or the package that offers it is broken.
    """
    return REGISTRY.get(name, "kind")


def own_kinds() -> list[Kind]:
    """Return our own kinds."""
    return [kind_of(name) for name in OWN]


def all_kinds() -> list[Kind]:
    """Return every kind; one of another package that is broken is left out with a warning."""
    return REGISTRY.loadable()
