"""A model as an ONNX folder that writes text: a graph with a cache of keys and values, and maybe one for the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compress.export.targets.library import Library
from compress.export.targets.onnx import OnnxEngine, write_onnx
from compress.export.targets.target import Target, Written
from eval.encoding import Array, Inputs
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    from compress.export.targets.target_options import GeneratorBlock, TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


class CachedEngine(OnnxEngine):
    """ONNX Runtime on the processor, over a graph with inputs ``past…`` and outputs ``present…``.

    If ``encoder.onnx`` stands beside it, that reads a source first, and the graph takes what it gives.
    """

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        super().__init__(file, threads, spinning)
        given = self.session.get_inputs()
        self.widths = {one.name: one.shape[2] for one in given if one.name.startswith("past.")}
        source = file.with_name("encoder.onnx")
        self.reader = self.opened(source, threads, spinning) if source.is_file() else None

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the logits of whole texts, by name."""
        if self.reader is None:
            return {"logits": self.step(inputs, {})[0]}
        return {"logits": self.step({"input_ids": inputs["decoder_input_ids"]}, self.read(inputs))[0]}

    def read(self, inputs: Inputs) -> Inputs:
        """Return the past of a text that is still to be written, given its source; empty if there is none to read.

        Args:
            inputs: ``input_ids`` and ``attention_mask`` of the source.
        """
        if self.reader is None:
            return {}
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        names = [output.name for output in self.reader.get_outputs()]
        read = dict(zip(names, self.reader.run(None, source), strict=True))
        return {"attention_mask": source["attention_mask"], **read, **self._nothing(len(source["input_ids"]))}

    def step(self, inputs: Inputs, past: Inputs) -> tuple[Array, Inputs]:
        """Return the logits of new tokens ``[rows, tokens, V]``, and the past of those that follow.

        Args:
            inputs: The new tokens.
            past: What ``read`` or an earlier call returned; empty at the beginning where there is no source.
        """
        before = past or self._nothing(len(inputs["input_ids"]))
        logits, *present = self.session.run(self.outputs, {**inputs, **before})
        return logits, {**before, **dict(zip(self.widths, present, strict=True))}

    def _nothing(self, rows: int) -> Inputs:
        return {name: np.zeros((rows, 0, width), dtype=np.float32) for name, width in self.widths.items()}


class GeneratorTarget(Target):
    """The ONNX graph of a decoder in ``model.onnx``, with a cache, so that each new token costs one token.

    Of a model with an encoder, ``encoder.onnx`` beside it reads the source once, for all layers of the decoder.
    """

    name = "generator"
    summary = "ONNX with a cache of keys and values, to write text with ONNX Runtime."
    needs = ("onnx", "onnxruntime")
    library = Library("ONNX Runtime", "onnxruntime", ("model.onnx",), CachedEngine, "encoder.onnx")
    writes = True
    tuned = True
    try_it = "python {out}/predict.py {text}"

    def trial(self, kind: str) -> str:
        """Return the command that has a text continued, or a source answered."""
        return self.try_it.replace("{text}", "--generate 40 {text}") if kind_of(kind).causal else self.try_it

    def options(self) -> type[GeneratorBlock]:
        """Return the options of every target, and how texts are searched for."""
        from compress.export.targets.target_options import GeneratorBlock

        return GeneratorBlock

    def asked_of(self, model: TaskModel, options: TargetBlock) -> TaskModel:
        """Return the model with the beams and the length penalty that are asked for."""
        asked = {name: value for name, value in options.own().items() if value is not None}
        return replace(model, task=model.task.model_copy(update=asked)) if asked else model

    def refused(self, model: TaskModel, options: TargetBlock) -> list[str]:
        """Refuse what writes no text, beams of what has none, and a decoder whose cache is none of keys and values."""
        from teachers.anatomy.encoder import family_of

        kind = kind_of(model.task.kind)
        if kind.causal and (asked := options.own()):
            return [
                f"{model.name}: {' and '.join(asked)}: of seq2seq alone; {model.task.kind} takes one token at a time"
            ]
        if not (kind.causal or kind.writes):
            return [f"{model.name}: {self.name} writes text, and {kind.named} model writes none"]
        if family_of(model.model).two_streams:
            return [
                f"{model.name}: xlnet remembers hidden states, no keys and values; take onnx in place of {self.name}"
            ]
        return []

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write ``model.onnx``, and ``encoder.onnx`` of a model with one."""
        del options
        if not kind_of(model.task.kind).writes:
            return write_onnx(model, beside / "model.onnx", scheme, cache=True)
        import onnx

        from compress.onnx_graph.build import writer_graphs

        made, read = writer_graphs(model, scheme)
        for graph, name in ((made, "model.onnx"), (read, "encoder.onnx")):
            onnx.save(graph.graph, str(beside / name))
        quantized = made.quantized
        if quantized is not None and read.quantized is not None:
            quantized = {key: value + read.quantized[key] for key, value in quantized.items()}
        size = made.float_bytes + read.float_bytes
        return Written(made.exporter, size, made.opset, quantized, (), made.every_token)
