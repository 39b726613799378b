"""Whether ``reduces`` and ``adds`` hold for files: bytes of the saved folder and of an export, and its products."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compress.artifact.artifact import Artifact
from compress.export import export_onnx
from compress.technique import Measure, Technique
from eval.cost.size import file_bytes, onnx_size
from eval.data.loading import Task

LARGE = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 2000}
"""Large enough that what a graph holds beside its weights does not hide what happens to them."""
SLACK = 0.01
"""A share by which sizes may differ without having become larger or smaller."""


def sizes_on_disk(model: Artifact, task: Task, folder: Path, *, exports: bool = True) -> dict[Measure, int]:
    """Save and export a model, and return its bytes, the bytes of its export, and the export's multiply-accumulates.

    Args:
        model: Any.
        task: Its validation examples compare the export with the model.
        folder: Gets ``saved`` and ``onnx``.
        exports: Whether it can be exported.
    """
    model.save(folder / "saved")
    found: dict[Measure, int] = {"bytes": file_bytes(folder / "saved")}
    if exports:
        report = export_onnx(model, folder / "onnx", examples=task.validation, agreement=0.0)
        found["export_bytes"] = report.bytes
        macs = onnx_size(folder / "onnx" / "model.onnx").macs
        if macs is not None:  # a graph with branches has no one number
            found["macs"] = macs
    return found


def check_claims(technique: type[Technique], before: Mapping[Measure, int], after: Mapping[Measure, int]) -> None:
    """Compare what ``sizes_on_disk`` found before and after a technique with what it claims.

    Raises:
        AssertionError: If a size changed otherwise than the technique says.
    """
    for measure, old in before.items():
        new = after.get(measure)
        if new is None:
            assert measure not in technique.reduces, f"it claims to reduce {measure}, which its export does not tell"
        elif measure in technique.reduces:
            assert new < (1 - SLACK) * old, f"it claims to reduce {measure}, which went from {old} to {new} on disk"
        elif measure not in technique.adds:
            same = (1 - SLACK) * old <= new <= (1 + SLACK) * old
            assert same, f"{measure} went from {old} to {new} on disk, and it does not say so"
