"""The float32 graph of a model as its exports start from it, traced once for all forms of an export."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compress.onnx_graph.rewrites import Model
    from teachers.taskmodel import TaskModel


@dataclass(frozen=True)
class FloatGraph:
    """A traced model.

    Attributes:
        graph: Tidy, in float32; the caller may change it.
        exporter: What traced it: ``tracer`` or ``dynamo``.
        one_token: Products that are computed for the one token that the head reads; see ``narrow_to_one_token``.
    """

    graph: Model
    exporter: str
    one_token: tuple[str, ...]


_KEPT: ContextVar[dict[object, tuple[TaskModel, FloatGraph]] | None] = ContextVar("traced models", default=None)


@contextmanager
def traced_once() -> Iterator[None]:
    """Trace each model once for as long as this lasts; nobody may change its weights meanwhile. It may be nested."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def float_graph(model: TaskModel, opset: int | None = None) -> FloatGraph:
    """Return the graph of a model without early exits; inside of ``traced_once`` a copy of what was traced before.

    Args:
        model: What is exported; it is left as it was.
        opset: Version of the ONNX operators; by default ``tracing.OPSET``.

    Raises:
        CompressError: If no exporter can.
    """
    kept = _KEPT.get()
    if kept is None:
        return _traced(model, opset)
    key = (id(model.model), id(model.tokenizer), id(model.task), opset)
    if key not in kept:
        kept[key] = (model, _traced(model, opset))  # which is held, so that no other one gets its id
    found = kept[key][1]
    return replace(found, graph=copy.deepcopy(found.graph))


def _traced(model: TaskModel, opset: int | None) -> FloatGraph:
    from compress.onnx_graph.one_token import narrow_to_one_token
    from compress.onnx_graph.tracing import OPSET, trace

    graph, exporter = trace(model, opset or OPSET)
    return FloatGraph(graph, exporter, tuple(narrow_to_one_token(graph)))
