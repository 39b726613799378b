"""A model whose documents are searched in an index of another form than float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.examples import Array, Example
from eval.ranking.document_set import documents_of
from eval.ranking.index_fields import NAMED, IndexSize
from eval.ranking.vector_index import IndexForm


@dataclass(frozen=True)
class Indexed:
    """A predictor that answers as another one does, and whose documents are ranked by an index.

    Measured beside the model itself, or against it, it says what the index costs, query by query. It is not timed: the
    model reads a query in the same time.

    Args:
        model: The model (``eval.inference.Predictor``), of a kind of task that searches by vectors.
        index: How the documents' vectors are held.
    """

    model: Any
    index: IndexForm
    timed: bool = False

    @property
    def name(self) -> str:
        """That of the model and of the form."""
        return indexed_name(self.model.name, self.index)

    def __getattr__(self, name: str) -> Any:
        """Return whatever else the model has: encoder, forward, folder, size, on what it was chosen."""
        if name.startswith("__") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)


def indexed_name(model: str, form: IndexForm) -> str:
    """Return what a model is called whose documents are held in a form.

    Examples:
        >>> from eval.ranking.vector_index import IndexForm
        >>> indexed_name("onnx", IndexForm(vectors="int8"))
        'onnx, index int8'
    """
    return f"{model}{NAMED}{form.title}"


def index_size(model: Any, examples: Sequence[Example], outputs: Sequence[Array]) -> IndexSize | None:
    """Return what the index of a model takes, if its documents are held in one.

    Args:
        model: The model.
        examples: Queries, with the ``corpus`` of each.
        outputs: Their vectors, ``[1, d]`` each.
    """
    form: IndexForm | None = getattr(model, "index", None)
    if form is None or not len(examples):
        return None
    return form.fields.size(documents_of(examples), int(outputs[0].shape[-1]))


def indexed(models: Sequence[Any], forms: Sequence[IndexForm]) -> list[Any]:
    """Return each of the models once with every form of an index."""
    return [Indexed(model, form) for model in models for form in forms]
