"""This project's exports, written by the public ``export`` and run by the public ``Runtime``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engines.engine import Engine, Files, Run
from benchmarks.engines.openvino import OPENVINO

if TYPE_CHECKING:
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


class Ours(Engine):
    """What ``compress export MODEL --to onnx --fp32`` writes."""

    name = "ours, float32"
    packages: tuple[str, ...] = ("onnxruntime",)
    target = "onnx"

    def prepare(self, files: Files, place: Path) -> None:
        """Export the model."""
        from compress import load
        from compress.export import export

        model = load(files.model)
        scheme = self.scheme(model, files)
        known = {"examples": files.texts("gate"), "calibration": files.texts("calibration")}
        export(model, place / "export", self.target, int8=scheme, **known)

    def scheme(self, model: TaskModel, files: Files) -> bool | Int8:
        """Return what is exported in 8 bits, and how."""
        return False

    def load(self, files: Files, place: Path, threads: int) -> Run:
        """Open the export; idle threads do not spin, as other engines run then."""
        from compress.export.runtime.answering import Runtime

        export = Runtime(place / "export", threads, spinning=False)
        return lambda inputs: export.forward(dict(inputs))


class OursInt8(Ours):
    """What ``--int8`` gives with ``--data`` and without a further word."""

    name = "ours, int8"

    def scheme(self, model: TaskModel, files: Files) -> bool | Int8:
        """The default."""
        return True


class OursPerTensor(Ours):
    """Per-tensor dynamic quantization."""

    name = "ours, int8, per-tensor"

    def scheme(self, model: TaskModel, files: Files) -> bool | Int8:
        """One range for a batch."""
        from compress.modules.int8_scheme import Int8

        return Int8(activations="tensor")


class OursOpenVino(Ours):
    """``--to openvino --fp32``."""

    name = "ours, OpenVINO"
    target = "openvino"
    environment = OPENVINO
    packages = ("openvino",)


class OursOpenVinoInt8(OursOpenVino, OursInt8):
    """``--to openvino --int8``."""

    name = "ours, OpenVINO, int8"
