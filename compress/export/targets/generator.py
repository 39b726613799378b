"""A decoder as an ONNX folder that writes text: a graph with a cache of keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compress.export.targets.library import Library
from compress.export.targets.onnx import OnnxEngine, write_onnx
from compress.export.targets.target import Target, Written
from eval.encoding import Array, Inputs
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    from compress.export.targets.target_options import TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


class CachedEngine(OnnxEngine):
    """ONNX Runtime on the processor, over a graph with inputs ``past…`` and outputs ``present…``."""

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        super().__init__(file, threads, spinning)
        given = self.session.get_inputs()
        self.widths = {one.name: one.shape[2] for one in given if one.name.startswith("past.")}

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the logits of whole texts, by name."""
        return {"logits": self.step(inputs, {})[0]}

    def step(self, inputs: Inputs, past: Inputs) -> tuple[Array, Inputs]:
        """Return the logits of new tokens ``[rows, tokens, V]``, and the past of those that follow.

        Args:
            inputs: The new tokens.
            past: What an earlier call returned; empty at the beginning.
        """
        rows = len(inputs["input_ids"])
        empty = {name: np.zeros((rows, 0, width), dtype=np.float32) for name, width in self.widths.items()}
        logits, *present = self.session.run(None, {**inputs, **(past or empty)})
        return logits, dict(zip(self.widths, present, strict=True))


class GeneratorTarget(Target):
    """The ONNX graph of a decoder in ``model.onnx``, with a cache, so that each new token costs one token."""

    name = "generator"
    summary = "ONNX with a cache of keys and values, to write text with ONNX Runtime."
    needs = ("onnx", "onnxruntime")
    library = Library("ONNX Runtime", "onnxruntime", ("model.onnx",), CachedEngine)
    try_it = "python {out}/predict.py --generate 40 {text}"

    def refused(self, model: TaskModel, options: TargetBlock) -> list[str]:
        """Refuse what does not predict the next token, and a decoder whose cache is none of keys and values."""
        from teachers.anatomy.encoder import family_of

        del options
        kind = kind_of(model.task.kind)
        if not kind.causal:
            return [f"{model.name}: {self.name} writes text, and {kind.named} model writes none"]
        if family_of(model.model).two_streams:
            return [
                f"{model.name}: xlnet remembers hidden states, no keys and values; take onnx in place of {self.name}"
            ]
        return []

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write ``model.onnx``."""
        del options
        return write_onnx(model, beside / "model.onnx", scheme, cache=True)
