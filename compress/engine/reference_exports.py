"""The reference's own exports: what a user has without compression, and so what a speed claim must be held against.

A small model in ONNX Runtime is faster than its teacher in eager torch for two reasons: it is smaller, and it does not
run in torch. The teacher's own float32 and int8 exports, timed with the rest, tell the two apart.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.engine.provenance import export_made_from
from eval.errors import CompressError, UserError
from eval.files.home import home
from eval.files.typed_json import json_digest
from eval.files.writing import exclusive
from eval.kinds.kind_registry import kind_of
from eval.progress.stages import under_way

if TYPE_CHECKING:
    from compress.export.runtime.answering import Runtime
    from eval.inference import Predictor
    from eval.task import Examples
    from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.engine.reference_exports")

ALWAYS = ("onnx", "onnx-int8")
"""Exports of the reference that are made whatever the recipe exports, of most kinds of task."""


@dataclass(frozen=True)
class ReferenceExports:
    """The reference's own exports.

    Attributes:
        models: The exports by the name that the same export of a compressed model has, such as ``onnx-int8``.
        notes: Why others could not be made, a sentence each.
    """

    models: Mapping[str, Runtime] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def same_engine(self) -> dict[str, str]:
        """The names that reports give them, by the name of the export that each is held against."""
        return {name: model.name for name, model in self.models.items()}


def always_for(kind: str, unchanged: bool = False) -> tuple[str, ...]:
    """Return the exports of the reference that are made whatever the recipe exports.

    Args:
        kind: Kind of task; the target is the one that answers it.
        unchanged: Whether only float32 is wanted, for the model is the reference itself.
    """
    names = ("generator", "generator-int8") if kind_of(kind).writes else ALWAYS
    return names[:1] if unchanged else names


def reference_exports(
    reference: Predictor | None,
    exports: Collection[str] | Mapping[str, str],
    threads: int | None = None,
    calibration: Examples | None = None,
    always: Collection[str] = ALWAYS,
) -> ReferenceExports:
    """Export the reference as it is, in every form that a compressed model is exported to, and ``always``.

    Each is written once, under ``COMPRESS_HOME``, and found again by the content of the reference.

    Args:
        reference: What results are compared with.
        exports: Names of the exports of the recipe that run on this machine, such as ``openvino-int8``; where one says
            less than its target and number format, name -> these.
        threads: Threads of one product.
        calibration: Examples that 8-bit exports take their ranges from, as those of the compressed model do.
        always: Exports that are made whatever the recipe exports.

    Raises:
        CompressError: If the disk refuses.
    """
    from compress.export.runtime.answering import Runtime
    from compress.export.targets.library import ExportError
    from compress.onnx_graph.float_graph import traced_once
    from teachers.taskmodel import TaskModel

    if reference is None:
        return ReferenceExports()
    if not isinstance(reference, TaskModel):
        return ReferenceExports(notes=(f"{reference.name} is no single network, so it has no export of its own.",))
    models, notes = {}, []
    forms = dict(exports) if isinstance(exports, Mapping) else {name: name for name in exports}
    known: dict[str, Runtime] = {}
    with traced_once():
        for name, form in ({name: name for name in always} | forms).items():
            try:
                if form not in known:
                    folder = _exported(reference, form, calibration)
                    known[form] = Runtime(folder, threads, name=f"{reference.name}, {name}", spinning=False)
                models[name] = known[form]
            except (UserError, CompressError, ExportError) as error:
                notes.append(f"No speed is told against {reference.name}'s own {name} export: {error}.")
                logger.warning("%s", notes[-1])
    return ReferenceExports(models, tuple(notes))


def _exported(reference: TaskModel, name: str, calibration: Examples | None) -> Path:
    """Return the folder of an export; its predictions are measured with the rest, so no agreement is asked of it."""
    from compress.export.default_int8 import VERSION
    from compress.export.folder import export
    from teachers.signals.model_teacher import ModelTeacher

    target, int8 = name.removesuffix("-int8"), name.endswith("-int8")
    how: dict[str, Any] = {"int8": int8, "agreement": 0.0, "name": name}
    forms = {"forms": VERSION, "calibration": "" if calibration is None else calibration.digest} if int8 else {}
    made_from = json_digest({"model": ModelTeacher(reference).digest, "target": target, "int8": int8, **forms})
    folder = home() / "reference-exports" / made_from[:32] / name
    if export_made_from(folder) != made_from:
        with exclusive(folder):
            if export_made_from(folder) != made_from:
                with under_way(f"{reference.name}'s own {name}"):
                    export(reference, folder, target, calibration=calibration or (), made_from=made_from, **how)
    return folder


def names_in_results(reference: str, exports: Collection[str], always: Collection[str] = ALWAYS) -> Iterator[str]:
    """Yield what results call the reference's own exports."""
    for name in dict.fromkeys((*always, *exports)):
        yield f"{reference}, {name}"
