"""The export becomes 8-bit; ranges of activations are taken as they come, so no data is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from compress.technique import Inputs, Measure, Outcome, Technique

if TYPE_CHECKING:
    import torch

    from compress.export.int8 import Int8
    from teachers.taskmodel import TaskModel


class DynamicQuantization(Technique):
    """Export linear layers and embeddings in 8 bits, with the ranges of activations taken at run time.

    Weights: ``q = round(w / scale)``, ``scale = max|w| / levels`` for each output, 127 levels a side, or 64 with
    ``reduce_range``. Activations of a token: ``s = max|x| / 127``, ``u = round(x / s) + 128``. Then
    ``y = s * scale * sum((u - 128) * q)``, the sum in 32-bit integers. Rows of an embedding table are int8 with one
    scale a row, and are turned back into float when they are looked up. Normalization, softmax and the products of
    attention stay in float32, and so does any matrix with fewer than 16 rows or columns.

    The torch model stays as it is: the scheme is recorded, and ``export_onnx`` follows it.

    Attributes:
        per_channel: One scale for each output of a linear layer instead of one for the whole matrix.
        reduce_range: Weights of 7 bits (64 levels a side), so that processors without VNNI compute exactly.
        embeddings: Whether embedding tables become 8-bit too; a file above 30% of float32 is the price of leaving
            them.
        activations: ``token``: one symmetric range for each token. ``tensor``: one asymmetric range for the whole
            batch (``s = (max x - min x) / 255``), which is what ONNX Runtime's own ``quantize_dynamic`` writes.
        exclude: Modules that stay in float32, by name: ``classifier``, ``bert.encoder.layer.5``, ``*.output.dense``.

    Needs:
        Nothing.

    Reduces:
        The bytes of the export, to about a quarter. Parameters and the torch model keep their size.

    Limits:
        On x86 with AVX2 or AVX-512 but without VNNI, products of uint8 and int8 are added in pairs in 16 bits and
        saturate: 2 * 255 * 127 = 64,770 > 32,767. ``reduce_range`` keeps them below 2 * 255 * 64 = 32,640, at one bit
        of precision. With ``activations="tensor"`` an answer depends on padding and on the other rows of a batch,
        since all share one range; with ``token`` it does not, and about half of the error goes, for a few percent of
        time. Models whose weights or activations have strong outliers lose more: look at the agreement in
        ``export.json``, and exclude modules. The result cannot be trained further.

    Source:
        Zafrir et al. 2019, arXiv 1910.06188 (dynamic quantization is their baseline DQ); ONNX Runtime documentation,
        "Quantize ONNX models". One range a token is that of Yao et al. 2022, arXiv 2206.01861.
    """

    name: ClassVar[str] = "quantize.dynamic"
    reduces: ClassVar[frozenset[Measure]] = frozenset({"export_bytes"})
    freezes: ClassVar[bool] = True
    takes_any: ClassVar[bool] = True
    source: ClassVar[str] = "Zafrir et al. 2019, arXiv 1910.06188; Yao et al. 2022, arXiv 2206.01861"

    per_channel: bool = True
    reduce_range: bool = True
    embeddings: bool = True
    activations: Literal["token", "tensor"] = "token"
    exclude: tuple[str, ...] = ()

    @property
    def scheme(self) -> Int8:
        """The same settings as ``export_onnx`` takes them."""
        from compress.export.int8 import Int8

        return Int8.model_validate(self.model_dump())

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse patterns that name no module."""
        from compress.export.int8 import unmatched

        del inputs
        modules = [module for module, _ in student.model.named_modules()]
        return [f"{self.name}: {problem}" for problem in unmatched(self.exclude, modules)]

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Record the scheme; the weights stay as they are."""
        del inputs, generator
        structure: dict[str, Any] = {"export": {"int8": self.model_dump(mode="json")}}
        return Outcome(self.restore(student, structure), structure)
