"""A model whose documents are searched in an index of another form than float32."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.examples import Array, Example
from eval.ranking.document_set import documents_of
from eval.ranking.index_fields import NAMED, IndexSize
from eval.ranking.vector_index import IndexForm

MOST_HELD = 512 * 1024**2
"""Bytes of vectors up to which documents are read once for all forms of an index."""


class Documents:
    """The vectors that one model gives documents, which several forms of its index share: texts are read once.

    Args:
        most: Bytes of vectors that are held; what comes after them is read each time.
    """

    def __init__(self, most: int = MOST_HELD) -> None:
        self._left = most
        self._held: dict[str, Sequence[Array]] = {}

    def vectors(
        self, texts: Sequence[Example], read: Callable[[Sequence[Example]], Sequence[Array]]
    ) -> Sequence[Array]:
        """Return the vectors of texts, ``[1, d]`` each; ``read`` gives those that are not held."""
        values = json.dumps(list(texts), ensure_ascii=False).encode("utf-8", "surrogatepass")
        name = hashlib.sha256(values).hexdigest()
        if name in self._held:
            return self._held[name]
        found = read(texts)
        size = sum(rows.nbytes for rows in found)
        if size <= self._left:
            self._held[name] = found
            self._left -= size
        return found


@dataclass(frozen=True)
class Indexed:
    """A predictor that answers as another one does, and whose documents are ranked by an index.

    Measured beside the model itself, or against it, it says what the index costs, query by query. It is not timed: the
    model reads a query in the same time.

    Args:
        model: The model (``eval.inference.Predictor``), of a kind of task that searches by vectors.
        index: How the documents' vectors are held.
        held: Vectors of documents that other forms share; None shares none.
    """

    model: Any
    index: IndexForm
    timed: bool = False
    held: Documents | None = field(default=None, repr=False, compare=False)

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
    return form.size(documents_of(examples), int(outputs[0].shape[-1]))


def indexed(models: Sequence[Any], forms: Sequence[IndexForm]) -> list[Any]:
    """Return each of the models once with every form of an index; a model reads the documents once for all forms."""
    shared = [(model, Documents()) for model in models]
    return [Indexed(model, form, held=held) for model, held in shared for form in forms]
