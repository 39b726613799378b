"""An export folder: written beside its place, compared with the model, and only then put there; for every target."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.export.bundle import predict_program, readme
from compress.export.conformance import FILE as CONFORMANCE
from compress.export.conformance import write_conformance
from compress.export.engines import MODEL_FILES, ExportError
from compress.export.gate import TOLERANCE, GateReport, compare
from compress.export.int8 import Int8, scheme_of, unmatched
from compress.export.runtime import FILES, FORMAT, MANIFEST, Runtime, sha256, with_digest
from compress.modules.fake_quant import rounds
from eval.cost.machine import machine
from eval.errors import CompressError, UserError
from eval.files.writing import whole_folder
from teachers.taskmodel import TaskModel

AGREEMENT = 0.97
"""Least share of decisions that an int8 export must share with its model."""
GATE_EXAMPLES = 256
"""Most examples the gate looks at; evenly spread over those given."""
BESIDE = ("config.json", "predict.py")
"""Files that no answer of ``Runtime`` depends on; ``compress verify`` checks them too. The README may be edited."""
ADJUSTABLE = ("onnx", "ort")
"""Targets in which an input of the graph may be left out, as ``speed`` is; OpenVINO fixes it."""
LARGEST = 2 * 1024**3 - 1024**2
"""Bytes that fit in one ONNX file, through which most targets go."""


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        folder: Where.
        scheme: ``fp32`` or ``int8``.
        exporter: What wrote the network: ``tracer``, ``dynamo`` or ``executorch``.
        bytes: Size of the network's files.
        float_bytes: What it would be in float32.
        quantized: For int8, how many linear layers and tables became 8-bit, and what stayed in float.
        gate: How far the export is from the model.
        seconds: How long it took.
        notes: What is still to be done before it can be used, a sentence each.
    """

    folder: Path
    scheme: str
    exporter: str
    bytes: int
    float_bytes: int
    quantized: Mapping[str, Any]
    gate: GateReport
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """What a writer says of the network that it wrote.

    Attributes:
        exporter: What made the graph.
        float_bytes: What the network would be in float32.
        opset: Version of the ONNX operators, if it went through ONNX.
        quantized: For int8, what became 8-bit.
    """

    exporter: str
    float_bytes: int
    opset: int | None = None
    quantized: Mapping[str, Any] | None = None


def write_export(
    model: TaskModel,
    folder: str | Path,
    *,
    target: str,
    write: Callable[[TaskModel, Path, Int8 | None], Written],
    int8: bool | Int8 | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    name: str | None = None,
    tolerance: float = TOLERANCE,
    agreement: float = AGREEMENT,
    made_from: str | None = None,
) -> ExportReport:
    """Write an export that its ``Runtime`` answers from as the model does, or nothing.

    Everything is written beside ``folder`` and renamed once the gate has passed; until then, and after a refusal,
    what stood there is untouched.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        target: A key of ``engines.MODEL_FILES``.
        write: Writes those files of the model into a folder, in 8 bits if it gets a scheme.
        int8: 8-bit or not; True takes the scheme in the artifact's lineage or the default one, None is True only if
            the lineage holds one.
        examples: Real inputs for the gate; without any it makes up texts.
        name: What reports call the export; by default the model's name.
        tolerance: For float32, the largest difference of a logit relative to the largest logit.
        agreement: For int8, and for a network that rounds activations itself, the least share of equal decisions.
        made_from: Digest of all that decides the export, which its manifest keeps.

    Raises:
        UserError: If the folder holds something else, a pattern names no module, the model is too large, or the target
            cannot express it or is not installed.
        CompressError: If the model cannot be exported, the disk refuses, or the export does not answer as the model.
    """
    start = time.perf_counter()
    folder = Path(folder)
    scheme = _scheme(model, int8)
    _check(model, folder, scheme)
    with whole_folder(folder, "the export") as beside:
        written = write(model, beside, scheme)
        manifest = _write_rest(model, beside, target, scheme, name or model.name, written)
        manifest["source"]["made_from"] = made_from
        exact = scheme is None and not rounds(model.model)
        limits = {"tolerance": tolerance} if exact else {"tolerance": None, "agreement": agreement}
        try:
            export = Runtime(beside)
            gate = compare(export, model, _spread(examples), **limits)
            if not gate.passed:
                raise CompressError(_refusal(model.name, gate, scheme))
            write_conformance(beside, export, model, examples, exact)
        except ExportError as error:
            raise CompressError(f"{model.name}: the export does not run: {error}; nothing was written") from error
        manifest |= {"gate": gate.to_dict(), "files": manifest["files"] | {CONFORMANCE: _known(beside / CONFORMANCE)}}
        write_manifest(beside, manifest)
        (beside / "README.md").write_text(readme(manifest), encoding="utf-8")
    size = sum(manifest["files"][file]["bytes"] for file in MODEL_FILES[target])
    seconds = time.perf_counter() - start
    quantized = written.quantized or {}
    return ExportReport(
        folder, manifest["scheme"], written.exporter, size, written.float_bytes, quantized, gate, seconds
    )


def _write_rest(
    model: TaskModel, beside: Path, target: str, scheme: Int8 | None, name: str, written: Written
) -> dict[str, Any]:
    """Write all but the page that needs the gate's figures; return the manifest."""
    model.encoder.save(beside)
    config: Any = model.model.config
    config.save_pretrained(beside)
    (beside / "predict.py").write_text(predict_program(target, model.task.kind), encoding="utf-8")
    names = (*MODEL_FILES[target], *FILES)
    files = {file: _known(beside / file) for file in names}
    manifest = {
        "format": FORMAT,
        "target": target,
        "name": name,
        "task": model.task.model_dump(mode="json"),
        "scheme": "fp32" if scheme is None else "int8",
        "int8": None if scheme is None else scheme.model_dump(mode="json"),
        "quantized": written.quantized,
        "exporter": written.exporter,
        "opset": written.opset,
        "speed": getattr(model.model.config, "speed", None) if target in ADJUSTABLE else None,
        "source": {"name": model.name, "weights": model.digest},
        "files": files,
        "beside": {file: _known(beside / file) for file in BESIDE},
        "machine": machine(),
    }
    write_manifest(beside, manifest)
    return manifest


def _known(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def _scheme(model: TaskModel, int8: bool | Int8 | None) -> Int8 | None:
    if isinstance(int8, Int8):
        return int8
    recorded = scheme_of(getattr(model, "lineage", ()))
    if int8 is None:
        return recorded
    return (recorded or Int8()) if int8 else None


def occupied(folder: Path) -> list[str]:
    """Return the reason why nothing may be written in the place of ``folder``, if there is one."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MANIFEST).is_file())):
        return [f"{folder}: is there already and no export; choose another folder or remove it"]
    return []


def _check(model: TaskModel, folder: Path, scheme: Int8 | None) -> None:
    problems = [*occupied(folder), *model_problems(model, scheme)]
    if problems:
        raise UserError(*problems)


def model_problems(model: TaskModel, scheme: Int8 | None) -> list[str]:
    """Return why a model cannot be exported to anything; nothing is computed."""
    problems = []
    if scheme is not None:
        problems += unmatched(scheme.exclude, [module for module, _ in model.model.named_modules()])
    if getattr(model.model.config, "quantization_config", None) is not None:
        problems.append(
            f"{model.name}: bitsandbytes runs in torch alone; export the model from before that step, or take "
            "quantize.weights, whose codes ONNX Runtime reads"
        )
    weights = 4 * sum(parameter.numel() for parameter in model.model.parameters())
    if weights > LARGEST:
        problems.append(f"{model.name}: {weights / 1e9:.1f} GB of weights; one ONNX file holds at most 2 GB")
    return problems


def _spread(examples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    count = min(len(examples), GATE_EXAMPLES)
    return [examples[index * len(examples) // count] for index in range(count)]


def _refusal(name: str, gate: GateReport, scheme: Int8 | None) -> str:
    advice = "" if scheme is None else "; exclude the modules that need float32, or lower agreement if that is enough"
    found = "; ".join(gate.problems)
    return f"{name}: the export does not answer as the model does: {found}{advice}; nothing was written"


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write ``export.json``, with its own digest."""
    write_json(folder / MANIFEST, with_digest(manifest))


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write values as a JSON file of an export."""
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
