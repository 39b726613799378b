"""Weights of 4 or 8 bits in packed storage, without training; products stay in floating point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from compress.technique import Inputs, Measure, Outcome, Technique
from compress.traits import Trait

if TYPE_CHECKING:
    import torch
    from torch import nn

    from teachers.taskmodel import TaskModel

SMALLEST = 16
"""Matrices with fewer rows or columns stay in float: token types and the last layer of a classifier save nothing."""
BITS = {"int4": 4, "int8": 8}


class WeightQuantization(Technique):
    """Round the weights of linear layers and embedding tables to 4 or 8 bits, block by block, and pack them.

    ``q = round(w / scale)`` with ``scale = max|w| / (2^(bits - 1) - 1)`` over the ``block_size`` inputs of a block, so
    int4 is -7 to 7 and int8 -127 to 127, and 0 stays 0. The network multiplies by ``q · scale``; activations are not
    rounded. A folder holds one bit for each weight and the codes that are not 0, where that takes fewer bytes, such as
    after a step that prunes. In ONNX a linear layer of 4 bits becomes ONNX Runtime's MatMulNBits, with the same codes
    and scales; one of 8 bits is unpacked when the file is loaded, which is faster. A table is looked up packed.

    Attributes:
        format: ``int4`` or ``int8``.
        block_size: Inputs that share a scale, a power of two; a weight takes ``bits + 32 / block_size`` bits.
        ranges: Type in which the scales are saved; with ``float16`` it is ``bits + 16 / block_size``. In ONNX they are
            float32.
        embeddings: Whether embedding tables are packed too, and heads that share the weights of one.
        exclude: Modules that stay in float, by name: ``classifier``, ``bert.encoder.layer.5``, ``*.output.dense``.

    Needs:
        Nothing.

    Reduces:
        The bytes of the saved model and of its export. Parameters and multiply-accumulates stay.

    Limits:
        It saves bytes, not time. Weight-only codes pay where memory is the bottleneck: models of billions of weights
        at batch 1. A model of MiniLM's size in ONNX Runtime 1.31, batch 1, one thread of an x86 CPU with AVX-512: int4
        has 0.90 to 0.93 of the speed of float32; int8, unpacked to float32 in memory, has 0.97 to 1.03. In PyTorch the
        weights are unpacked at every use, which is slower than before. Not checked on a GPU. Matrices with fewer than
        16 rows or columns stay in float. The result cannot be trained further.

    Source:
        ONNX Runtime documentation, "Quantize ONNX models"; blocks with a scale each are those of Dettmers et al. 2022,
        arXiv 2208.07339, and Dettmers et al. 2023, arXiv 2305.14314.
    """

    name: ClassVar[str] = "quantize.weights"
    version: ClassVar[int] = 2
    reduces: ClassVar[frozenset[Measure]] = frozenset({"bytes", "export_bytes"})
    freezes: ClassVar[bool] = True
    takes_any: ClassVar[bool] = True
    both_stacks: ClassVar[bool] = True
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard", "linear_layers", "float_embeddings"})
    source: ClassVar[str] = "ONNX Runtime documentation; Dettmers et al. 2023, arXiv 2305.14314"

    format: Literal["int4", "int8"] = "int4"
    block_size: Literal[16, 32, 64, 128, 256] = 32
    ranges: Literal["float32", "float16"] = "float32"
    embeddings: bool = True
    exclude: tuple[str, ...] = Field(default=())

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse patterns that name no module, and a family whose code reads the weights of a layer."""
        from compress.modules.int8_scheme import unmatched
        from teachers.anatomy.encoder import family_of

        del inputs
        modules = [module for module, _ in student.model.named_modules()]
        found = [f"{self.name}: {problem}" for problem in unmatched(self.exclude, modules)]
        if family_of(student.model).reads_weights:
            name = family_of(student.model).model_type
            found.append(f"{self.name}: standard code of {name} reads a layer's weights, which packed codes are not")
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Round and pack; nothing is learned."""
        from torch import nn

        from compress.modules.packed import PackedEmbedding, PackedLinear

        del inputs, generator
        network: Any = student.model
        packing: dict[str, Any] = {
            "bits": BITS[self.format],
            "width": self.block_size,
            "symmetric": True,
            "ranges": self.ranges,
        }
        facts = {"linear": 0, "tables": 0}
        made: dict[int, PackedEmbedding | PackedLinear] = {}
        of_weight: dict[int, PackedEmbedding | PackedLinear] = {}
        every: list[tuple[str, Any]] = list(network.named_modules(remove_duplicate=False))
        tables = [(path, module) for path, module in every if isinstance(module, nn.Embedding)]
        left = {id(module.weight) for path, module in tables if not self._packs(path, module)}
        for path, module in every:
            if not self._packs(path, module) or id(module.weight) in left:
                continue
            if id(module) not in made:
                table = isinstance(module, nn.Embedding)
                facts["tables" if table else "linear"] += 1
                kind: Any = PackedEmbedding if table else PackedLinear
                made[id(module)] = kind.of(module, tied=of_weight.get(id(module.weight)), **packing)
                of_weight.setdefault(id(module.weight), made[id(module)])
            network.set_submodule(path, made[id(module)])
        return Outcome(student, facts)

    def _packs(self, path: str, module: nn.Module) -> bool:
        from torch import nn

        from compress.modules.int8_scheme import is_excluded
        from compress.modules.masked import LINEAR, TABLE

        table = type(module) in TABLE or (isinstance(module, nn.Embedding) and hasattr(module, "embed_scale"))
        if not (type(module) in LINEAR or (table and self.embeddings)):
            return False
        return min(module.weight.shape) >= SMALLEST and not is_excluded(path, self.exclude)  # type: ignore[arg-type]
