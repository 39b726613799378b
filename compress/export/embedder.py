"""An embedder opened from its folder to find documents: a model of ours, of sentence-transformers, or an export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compress.export.runtime.manifest import MANIFEST
from eval.errors import UserError
from eval.inference import Predictor
from eval.kinds.kind_registry import kind_of

SEARCHES = "retrieval"
"""The kind of task that an embedder is opened for."""


def open_embedder(folder: str) -> Predictor:
    """Open the embedder of a folder, to rank documents (``eval.data.loading.load_task``).

    Args:
        folder: A model folder, one of sentence-transformers, or an export.

    Returns:
        A model of kind retrieval.

    Raises:
        UserError: There is no such folder, it is damaged, or its model gives no vectors.
    """
    if not Path(folder).is_dir():
        raise UserError(
            f"first_stage: there is no folder {folder}; name that of an embedder (a model, a folder of "
            "sentence-transformers or an export), or leave it out for bm25"
        )
    try:
        return _exported(folder) if (Path(folder) / MANIFEST).is_file() else _model(folder)
    except UserError as error:
        raise UserError(*(f"first_stage: {problem}" for problem in error.problems)) from error


def _exported(folder: str) -> Predictor:
    from compress.export.runtime.answering import Runtime
    from compress.export.targets.library import ExportError

    try:
        model = Runtime(folder, spinning=False)
    except ExportError as error:
        raise UserError(*str(error).splitlines()) from error
    _refuse_others(folder, model.encoder.settings.kind)
    model.encoder = model.encoder.of_kind(SEARCHES)
    return model


def _model(folder: str) -> Predictor:
    from compress.artifact.artifact import load_model

    model = load_model(folder)
    _refuse_others(folder, model.task.kind)
    metric = kind_of(SEARCHES).metric
    return replace(model, task=model.task.model_copy(update={"kind": SEARCHES, "metric": metric, "labels": ()}))


def _refuse_others(folder: str, kind: str) -> None:
    """Refuse a model that gives no vectors of texts."""
    if kind not in (SEARCHES, *kind_of(SEARCHES).alike):
        raise UserError(f"{folder}: is a model for {kind}, which gives no vectors; name the folder of an embedder")
