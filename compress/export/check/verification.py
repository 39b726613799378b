"""The same inputs through every runtime that is installed, against the answers that an export carries with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, Field

from compress.export.check.gate import BATCH, TOLERANCE, compare
from compress.export.check.golden_vectors import FILE, FORMAT, GoldenVector, GoldenVectors
from compress.export.runtime.answering import Runtime
from compress.export.runtime.manifest import MANIFEST, library_for, read_manifest, wrong_file
from compress.export.targets.library import ExportError, Library
from eval.differences import Seen
from eval.encoding import Array, Feature, Inputs, TextEncoder
from eval.errors import UserError
from eval.files.typed_json import read_typed, typed
from eval.one_line import first_line

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel

Engine = Callable[[Inputs], Array]
"""Inputs -> logits ``[rows, C]`` or ``[rows, length, C]``."""


class Gated(BaseModel):
    """What of the gate in a manifest decides how the export is compared again."""

    limit: float | None
    agreement_needed: float = Field(ge=0, le=1)


@dataclass(frozen=True)
class Verified:
    """What one runtime gave.

    Attributes:
        runtime: Its name.
        version: Its version; None if it is not installed.
        rows: Inputs that were compared.
        largest: Largest difference of a logit from that of the export.
        limit: The largest that is allowed.
        agreement: Share of predictions that are those of the export; ties within twice the limit count.
        torch: Share that are those of the torch model.
        batch: Largest difference of a row in a batch of mixed lengths from the same row alone.
        problems: What is wrong, one sentence each; why it was not run, if it was not.
        remark: How it ran otherwise than the export states, where that is right.
    """

    runtime: str
    version: str | None
    rows: int = 0
    largest: float = 0.0
    limit: float = 0.0
    agreement: float = 0.0
    torch: float = 0.0
    batch: float = 0.0
    problems: tuple[str, ...] = ()
    remark: str = ""

    @property
    def ran(self) -> bool:
        """Whether it answered at all."""
        return self.rows > 0

    @property
    def passed(self) -> bool:
        """Whether it answers as the export must."""
        return self.ran and not self.problems


def verify(folder: str | Path) -> list[Verified]:
    """Run an export's golden test vectors, ``conformance.json``, through every runtime.

    Args:
        folder: What ``export_onnx`` wrote.

    Returns:
        One result a runtime, those that are not installed included.

    Raises:
        UserError: If the export has no such file, or one of another format.
        ExportError: If the export is damaged.
    """
    library = library_for(Path(folder), read_manifest(Path(folder)))
    export = Runtime(folder, engine=_Deferred(library, Path(folder)))
    beside = export.manifest.get("beside", {})
    changed = [problem for name in beside for problem in wrong_file(export.folder, name, beside[name])]
    if changed:
        raise ExportError(f"{folder}: damaged export: {'; '.join(changed)}; copy or export it again")
    if library.is_onnx and (wrong := _for_every_token(export)):
        raise ExportError(f"{folder}: computes {', '.join(wrong)} for every token, not for one as {MANIFEST} says")
    known = _read(export.folder)
    if not library.is_onnx:
        return [_in_its_precision(_verified(library.name, library.package, _own, export, known), export)]
    return [_verified(name, package, engine, export, known) for name, (package, engine) in ENGINES.items()]


def against_model(folder: str | Path, model: TaskModel, examples: Sequence[Mapping[str, Any]] = ()) -> Verified:
    """Compare an export with its torch model once more, as when it was written.

    Args:
        folder: The export.
        model: What it was made from.
        examples: Real ones; without any, synthetic texts.

    Raises:
        UserError: If the export was made from another model.
        ExportError: If the export is damaged.
    """
    import torch

    export = Runtime(folder, spinning=False)
    if export.manifest.get("source", {}).get("weights") != model.digest:
        raise UserError(
            f"{folder}: was made from other weights than those of {model.name}; give the model it came from"
        )
    cure = "copy or export it again"
    written: Gated = typed(export.manifest.get("gate"), Gated, f"{export.folder}/export.json: gate", cure)
    exact = written.limit is not None
    limits = {"tolerance": TOLERANCE} if exact else {"tolerance": None, "agreement": written.agreement_needed}
    gate = compare(export, model, examples, **limits)
    return Verified(
        "torch model",
        torch.__version__,
        rows=max(gate.examples, 1),
        largest=gate.max_abs_difference,
        limit=gate.limit or np.inf,
        agreement=gate.agreement,
        torch=gate.agreement,
        batch=gate.batch_difference,
        problems=gate.problems,
    )


def _read(folder: Path) -> GoldenVectors:
    if not (folder / FILE).is_file():
        raise UserError(f"{folder}: has no {FILE}; it was written by an earlier version, so export it again")
    return read_typed(folder / FILE, GoldenVectors, "copy or export it again", FORMAT)


def _verified(
    name: str, package: str, load: Callable[[Runtime], Engine], export: Runtime, known: GoldenVectors
) -> Verified:
    if find_spec(package) is None:
        return Verified(name, None, problems=(f"not installed; pip install {package}",))
    version = metadata.version(package)
    try:
        return _compared(Verified(name, version, limit=known.limit), load(export), export, known.rows)
    except Exception as error:  # every runtime has its own kinds
        return Verified(name, version, problems=(f"cannot run it: {first_line(error)}",))


def _in_its_precision(found: Verified, export: Runtime) -> Verified:
    """Return a result with a problem if the library computes in another precision than the manifest states."""
    stated = export.manifest.get("precision")
    if not found.ran or stated is None:
        return found
    ran: Any = export.engine.open()  # type: ignore[attr-defined]
    if ran.stated != stated:
        return replace(found, problems=(*found.problems, f"the network says {ran.stated}, export.json {stated}"))
    return replace(found, remark="" if ran.precision == stated else f"in float32, for {stated} does not run here")


def _compared(blank: Verified, engine: Engine, export: Runtime, rows: Sequence[GoldenVector]) -> Verified:
    encoder, limit = export.encoder, blank.limit
    close, model = Seen(encoder.settings), Seen(encoder.settings)
    features: list[Feature] = []
    alone: list[Array] = []
    for row in rows:
        found = encoder.encode([row.example])
        if row.window >= len(found) or found[row.window].ids != row.inputs["input_ids"]:
            close.problems.append("the tokenizer gives other tokens than where the export was written")
            continue
        feature = found[row.window]
        features.append(feature)
        alone.append(engine(encoder.collate([feature]))[0])
        for seen, expected in ((close, row.logits), (model, row.torch)):
            logits = np.array([expected], np.float32)
            seen.add([feature], encoder, logits, alone[-1][None, ..., : logits.shape[-1]], decide=True)
    batch = _in_batches(engine, encoder, features, alone)
    agreement = close.agreement(2 * limit)
    problems = list(dict.fromkeys(close.problems))
    if not rows:
        problems.append(f"{FILE} holds no inputs, so nothing was compared; export it again")
    if not close.largest <= limit:
        problems.append(f"logits differ by up to {close.largest:.3g}, allowed is {limit:.3g}")
    if agreement < 1:
        problems.append(f"{agreement:.2%} of the predictions are those of the export")
    if not batch <= limit and not _shares_ranges(export):
        problems.append(f"a row in a batch differs from itself alone by up to {batch:.3g}, allowed is {limit:.3g}")
    return replace(
        blank,
        rows=len(features),
        largest=close.largest,
        agreement=agreement,
        torch=model.agreement(2 * limit),
        batch=batch,
        problems=tuple(problems),
    )


def _in_batches(engine: Engine, encoder: TextEncoder, features: Sequence[Feature], alone: Sequence[Array]) -> float:
    """Return the largest difference of a row in a batch of mixed lengths from itself alone."""
    largest = 0.0
    for start in range(0, len(features), BATCH):
        some = features[start : start + BATCH]
        for feature, together, one in zip(some, engine(encoder.collate(some)), alone[start:], strict=False):
            largest = max(largest, float(np.abs(encoder.unpadded(feature, together) - one).max(initial=0)))
    return largest


def _for_every_token(export: Runtime) -> list[str]:
    """Return what the manifest says is computed for one token alone and the graph computes for all."""
    said = export.manifest.get("one_token") or ()
    if not said:
        return []
    try:
        import onnx

        from compress.onnx_graph.one_token import grows_with_tokens

        return grows_with_tokens(onnx.load(str(export.folder / export.weight_files[0])), said)
    except ImportError:  # nothing here can look; the runtimes say themselves that they are missing
        return []


def _shares_ranges(export: Runtime) -> bool:
    """Whether the rows of a batch share one range of activations, so that they depend on each other by design."""
    return (export.manifest.get("int8") or {}).get("activations") == "tensor"


class _Deferred:
    """An export's own library, which opens the network when it is asked first: it may be missing, and others run it."""

    session = None

    def __init__(self, library: Library, folder: Path) -> None:
        self.open = cache(partial(library.open, folder, threads=1, spinning=False))

    def run(self, inputs: Inputs) -> dict[str, Array]:
        return self.open().run(inputs)


def _own(export: Runtime) -> Engine:
    return export.forward


def _reference(export: Runtime) -> Engine:
    from compress.export.check.arithmetic import ReferenceEngine

    return Runtime(export.folder, engine=ReferenceEngine(export.folder / export.weight_files[0])).forward


def _openvino(export: Runtime) -> Engine:
    from compress.export.targets.openvino import OpenVinoEngine

    engine = OpenVinoEngine(export.folder / export.weight_files[0], threads=1, spinning=False)
    return Runtime(export.folder, engine=engine).forward


ENGINES: dict[str, tuple[str, Callable[[Runtime], Engine]]] = {
    "ONNX Runtime": ("onnxruntime", _own),
    "onnx's reference": ("onnx", _reference),
    "OpenVINO": ("openvino", _openvino),
}
"""Runtimes of an ONNX file: name -> the package it comes in, and what makes it answer."""
