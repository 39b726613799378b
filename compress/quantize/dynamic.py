"""int8 for CPU at export: weights once, activations as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from compress.technique import Inputs, Measure, Outcome, Technique

if TYPE_CHECKING:
    import torch

    from teachers.taskmodel import TaskModel


class DynamicQuantization(Technique):
    """Ask every later export for int8: no calibration, no training, the torch weights stay as they are.

    ``q = round(w / scale)`` with ``scale = max|w| / levels`` for weights, once; activations are rounded to 8 bits at
    run time, with the range of the very values that are multiplied. Products are summed in integers and scaled back.

    Attributes:
        per_channel: One scale for each output channel instead of one for a matrix.
        reduce_range: 7-bit weights (64 levels a side). CPUs with AVX2 and without VNNI add two products of 8 bits in 16
            bits, which saturates with 127 levels; with 64 it cannot, and the answers are those of exact integers.
        embeddings: Whether embedding tables become 8-bit too; they are half of a small model.
        activations: One range for each token, so that an answer does not depend on padding and batch mates, or one for
            the whole tensor.
        exclude: Modules that stay in float, by name or pattern such as ``*.layer.0``.

    Needs:
        Nothing.

    Reduces:
        Bytes of the export, to about a quarter of float32.

    Limits:
        Nothing gets smaller in torch: saved weights stay float32. Faster on CPUs with VNNI, AMX or ARM dot products;
        with AVX2 alone the gain is smaller. Nothing can be trained after this step.

    Source:
        Zafrir et al. 2019, arXiv 1910.06188 (as the baseline there); ONNX Runtime's documentation on quantization.
    """

    name: ClassVar[str] = "quantize.dynamic"
    reduces: ClassVar[frozenset[Measure]] = frozenset({"export_bytes"})
    freezes: ClassVar[bool] = True
    source: ClassVar[str] = "Zafrir et al. 2019, arXiv 1910.06188"

    per_channel: bool = True
    reduce_range: bool = True
    embeddings: bool = True
    activations: Literal["token", "tensor"] = "token"
    exclude: tuple[str, ...] = ()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse patterns that name nothing."""
        from compress.export.int8 import unmatched

        del inputs
        modules = [name for name, _ in student.model.named_modules()]
        return [f"{self.name}: {problem}" for problem in unmatched(self.exclude, modules)]

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Note the scheme for the exporter."""
        del inputs, generator
        return Outcome(student, structure={"export": {"int8": self.model_dump(mode="json")}})
