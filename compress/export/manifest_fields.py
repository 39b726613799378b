"""What ``export.json`` says of the model that an export was made from, and of how it was written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.export.runtime.manifest import FORMAT, sha256
from eval.cost.machine import machine
from teachers.anatomy.encoder import max_tokens

if TYPE_CHECKING:
    from compress.export.targets.target import Target, Written
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


def manifest_fields(
    model: TaskModel, target: Target, scheme: Int8 | None, name: str, written: Written
) -> dict[str, Any]:
    """Return all fields of a manifest but those that tell of files and of the gate.

    Args:
        model: What was exported.
        target: What to.
        scheme: How it became 8-bit; None for float32.
        name: What reports call the export.
        written: What the target said of the network.
    """
    return {
        "format": FORMAT,
        "target": target.name,
        "name": name,
        "task": model.task.model_dump(mode="json"),
        "scheme": "fp32" if scheme is None else "int8",
        "int8": None if scheme is None else scheme.model_dump(mode="json") | {"rounding": scheme.rounding},
        "quantized": written.quantized,
        "one_token": list(written.one_token),
        "every_token": written.every_token,
        "precision": written.precision,
        "exporter": written.exporter,
        "opset": written.opset,
        "max_tokens": max_tokens(model.model.config),
        "speed": getattr(model.model.config, "speed", None) if target.speed_is_input else None,
        "source": {"name": model.name, "weights": model.digest},
        "machine": machine(),
    }


def known_files(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return size and digest of files of a folder, by their names."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}
