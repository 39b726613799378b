"""One base with the adapters of several tasks as one export: the base once, each task's small matrices beside it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.export.check.gate import TOLERANCE, GateReport, Remembered, compare
from compress.export.check.golden_vectors import FILE as GOLDEN
from compress.export.check.golden_vectors import write_golden_vectors
from compress.export.folder import AGREEMENT, GATE_EXAMPLES, UNSEEN, occupied, spread, used, write_manifest
from compress.export.manifest_fields import known_files, manifest_fields
from compress.export.runtime.answering import Runtime
from compress.export.runtime.bundle import several_page, write_program
from compress.export.runtime.manifest import FORMAT
from compress.export.targets.library import ABOVE
from compress.export.targets.onnx import OnnxTarget
from compress.export.targets.target import Written
from compress.modules.int8_scheme import Int8
from eval.errors import CompressError, UserError
from eval.files.writing import atomic_folder
from eval.kinds.kind_registry import kind_of
from teachers.adapters.installing import merge
from teachers.anatomy.encoder import is_causal
from teachers.finetuning.adapter_folder import with_adapter

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel

NETWORK, TOKENIZER, ENCODER = "model.onnx", "tokenizer.json", "encoder.json"
TARGET = OnnxTarget()
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What a task may be called: it names a folder and an output."""


@dataclass(frozen=True)
class SeveralReport:
    """What was written.

    Attributes:
        folder: Where.
        scheme: ``fp32`` or ``int8``.
        bytes: Size of the network.
        one_bytes: Size of the network of one of the tasks by itself, its adapter merged, in the same form.
        gates: Task -> how far its answers are from those of its own model, which is merged if it can be.
        seconds: How long it took.
    """

    folder: Path
    scheme: str
    bytes: int
    one_bytes: int
    gates: Mapping[str, GateReport]
    seconds: float


def export_adapters(
    base: str | Path,
    adapters: Mapping[str, str | Path],
    folder: str | Path,
    *,
    int8: bool = False,
    examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    tolerance: float = TOLERANCE,
    agreement: float | None = None,
) -> SeveralReport:
    """Write one ONNX graph that answers several tasks over one base, each as its own model does, or nothing.

    The folder holds the network and the tokenizer once, and a folder a task that every command takes for an export of
    its own. Its graph has a further input ``task_ids`` and an output a task (``onnx_graph.tasks_graph``).

    Args:
        base: The folder or hub name of the base that the adapters were trained on.
        adapters: Task -> the folder of its teacher, or of the adapter in it.
        folder: A new or empty folder, or an earlier export.
        int8: Whether the base's weights and products become 8-bit (per-token dynamic quantization); what each task has
            of its own stays in float32.
        examples: Task -> real inputs for its gate; synthetic texts for those that are not named.
        tolerance: For float32, the largest difference of a logit relative to the largest logit.
        agreement: For int8, the least share of equal predictions of each task; by default ``AGREEMENT``, on synthetic
            texts ``UNSEEN``.

    Raises:
        UserError: If the folder holds something else, or the adapters cannot be one export.
        CompressError: If the graph cannot be made, or a task does not answer as its own model.
    """
    start, folder, examples = time.perf_counter(), Path(folder), examples or {}
    models = _loaded(base, adapters, folder)
    scheme = Int8() if int8 else None
    from compress.onnx_graph.tasks_graph import several_tasks_graph

    graph = several_tasks_graph(models, scheme)
    written = Written(
        graph.exporter, graph.float_bytes, graph.opset, graph.quantized, graph.one_token, graph.every_token
    )
    for model in models.values():
        merge(model.model)  # what is compared with is each task's own model
    with atomic_folder(folder, "the export") as beside:
        import onnx

        onnx.save(graph.graph, str(beside / NETWORK))
        first = next(iter(models.values()))
        (beside / TOKENIZER).write_text(first.encoder.source, encoding="utf-8")
        config: Any = first.model.config
        config.save_pretrained(beside)
        gates: dict[str, GateReport] = {}
        for number, (name, model) in enumerate(models.items()):
            given = spread(examples.get(name, ()), GATE_EXAMPLES)
            unseen = UNSEEN if not len(given) else AGREEMENT
            limits = (
                {"tolerance": tolerance}
                if scheme is None
                else {"tolerance": None, "agreement": unseen if agreement is None else agreement}
            )
            fields = manifest_fields(model, TARGET, scheme, name, written)
            fields |= {
                "one_of": {"number": number, "output": name},
                "chosen_on": model.chosen_on | used(model.task.kind, {"export gate": given}),
            }
            gates[name] = _write_task(model, beside / name, fields, given, limits)
        _write_whole(beside, folder.name, models, scheme, written)
        size = (beside / NETWORK).stat().st_size
    one = _bytes_of_one(first, scheme)
    return SeveralReport(folder, "fp32" if scheme is None else "int8", size, one, gates, time.perf_counter() - start)


def _loaded(base: str | Path, adapters: Mapping[str, str | Path], folder: Path) -> dict[str, TaskModel]:
    """Return a model a task with its adapter not merged.

    Raises:
        UserError: With every reason why they cannot be one export.
    """
    problems = occupied(folder)
    if len(adapters) < 2:
        problems.append("--adapter: give those of two tasks or more; of one, export its merged model")
    problems += [
        f"--adapter: {name!r} cannot name a task; take letters, digits, - and _"
        for name in adapters
        if not NAME.fullmatch(name)
    ]
    models: dict[str, TaskModel] = {}
    for name, place in adapters.items():
        try:
            models[name] = with_adapter(base, Path(place))
        except UserError as error:
            problems += error.problems
    for name, model in models.items():
        kind = kind_of(model.task.kind)
        if is_causal(model.model) or kind.masks:
            problems.append(f"{name}: several tasks over one base are for encoders with heads; export it by itself")
    if (
        len(
            {
                (model.encoder.source, model.encoder.settings.inputs, model.encoder.settings.pad_side)
                for model in models.values()
            }
        )
        > 1
    ):
        problems.append("--adapter: the tasks read their texts by different tokenizers; train them on one base")
    if problems:
        raise UserError(*problems)
    return models


def _write_task(
    model: TaskModel,
    place: Path,
    fields: dict[str, Any],
    examples: Sequence[Mapping[str, Any]],
    limits: Mapping[str, float | None],
) -> GateReport:
    """Write the folder of a task, once its answers have been compared with those of its own model.

    Raises:
        CompressError: If they are others.
    """
    place.mkdir()
    model.encoder.save(place)
    (place / TOKENIZER).unlink()  # that of all tasks lies above
    files = (f"{ABOVE}{NETWORK}", f"{ABOVE}{TOKENIZER}", ENCODER)
    manifest = {**fields, "files": known_files(place, files)}
    write_manifest(place, manifest)
    exported, reference = Runtime(place), Remembered(model)
    gate = compare(exported, reference, examples, **limits)  # type: ignore[arg-type]
    if not gate.passed:
        raise CompressError(gate.refusal(f"task {place.name}", fields["int8"] is not None))
    write_golden_vectors(place, exported, reference, examples, fields["int8"] is None)
    manifest |= {"gate": gate.to_dict(), "files": known_files(place, (*files, GOLDEN))}
    write_manifest(place, manifest)
    return gate


def _write_whole(
    beside: Path, name: str, models: Mapping[str, TaskModel], scheme: Int8 | None, written: Written
) -> None:
    """Write what tells of all tasks: manifest, program and page."""
    library = OnnxTarget.library
    write_program(beside, TARGET.name, library, *dict.fromkeys(model.task.kind for model in models.values()))
    manifest = {
        "format": FORMAT,
        "target": TARGET.name,
        "name": name,
        "tasks": list(models),
        "scheme": "fp32" if scheme is None else "int8",
        "opset": written.opset,
        "files": known_files(beside, (NETWORK, TOKENIZER)),
    }
    write_manifest(beside, manifest)
    (beside / "README.md").write_text(several_page(manifest, library), encoding="utf-8")


def _bytes_of_one(model: TaskModel, scheme: Int8 | None) -> int:
    """Return the size of the network of one task by itself, in the same form."""
    from compress.onnx_graph.build import onnx_graph

    return int(onnx_graph(model, scheme).graph.ByteSize())
