"""Weights of 8 or 4 bits by bitsandbytes, for torch on GPU and CPU; the result is a standard folder of transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from compress.technique import Inputs, Measure, Outcome, Technique
from compress.traits import Trait

if TYPE_CHECKING:
    import torch

    from teachers.taskmodel import TaskModel

MULTIPLE = 32
"""Outputs of a layer that bitsandbytes' 4-bit kernels for CPUs take are a multiple of this."""


class BitsAndBytes(Technique):
    """Store the linear layers of the encoder as bitsandbytes does: LLM.int8, NF4 or FP4.

    ``int8`` is LLM.int8: ``q = round(127 · w / max|w|)`` for each output; inputs are rounded in the same way for each
    token, except channels with any ``|x| >= threshold``, which are multiplied in 16 bits. ``nf4`` and ``fp4`` keep for
    every block of 64 weights its largest and for each weight the nearest of 16 levels (of a normal distribution, or a
    4-bit float); products are in float32. Embeddings, norms and the head stay as they are.

    Attributes:
        format: ``int8``, ``nf4`` or ``fp4``.
        threshold: From where on a channel is an outlier (``int8``). Default 6, as in the paper.
        double: Whether the largest weights of blocks are stored in 8 bits themselves (``nf4`` and ``fp4``).
        skip: Further modules that stay in float, by the end of their name.

    Needs:
        Nothing; the package bitsandbytes: pip install 'nlp-compress[bitsandbytes]'.

    Reduces:
        The bytes of the saved model. Embedding tables stay in float32, so a small model shrinks by less than half.

    Limits:
        For torch alone: there is no ONNX export of it; ``quantize.weights`` packs for ONNX. It saves memory and no time
        on a CPU, where bitsandbytes multiplies inputs as they are by the rounded weights, outliers included. On a GPU
        outliers of ``int8`` are found in the whole batch, so an answer depends a little on its batch mates. The network
        must be one that standard transformers holds. Layers whose outputs are no multiple of 32 stay in float. The
        result cannot be trained further.

    Source:
        Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv 2208.07339; Dettmers, Pagnoni, Holtzman, Zettlemoyer 2023,
        arXiv 2305.14314.
    """

    name: ClassVar[str] = "quantize.bitsandbytes"
    reduces: ClassVar[frozenset[Measure]] = frozenset({"bytes"})
    freezes: ClassVar[bool] = True
    last: ClassVar[bool] = True
    requires: ClassVar[Mapping[Trait, str]] = {
        "standard": "standard transformers does not hold what that makes; take quantize.weights in its place",
    }
    source: ClassVar[str] = "Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv 2208.07339; arXiv 2305.14314"

    format: Literal["int8", "nf4", "fp4"] = "nf4"
    threshold: float = Field(default=6.0, gt=0)
    double: bool = True
    skip: tuple[str, ...] = ()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse where the package is missing, and networks that standard classes cannot hold."""
        from importlib.util import find_spec

        from compress.artifact.structure import structure_of

        del inputs
        found = []
        if find_spec("bitsandbytes") is None:
            found.append("needs the package bitsandbytes: pip install 'nlp-compress[bitsandbytes]'")
        if structure_of(student.model):
            found.append("works on networks that standard transformers holds; take quantize.weights, or put it before")
        return [f"{self.name}: {problem}" for problem in found]

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Save the network, and let transformers read it with the wanted format."""
        from dataclasses import replace

        import torch

        from eval.errors import UserError
        from teachers.taskmodel import load_taskmodel, quiet

        if problems := self.check(student, inputs):  # an earlier step may have changed the model
            raise UserError(*problems)
        del generator
        left_out = self.left_out(student.model)
        with tempfile.TemporaryDirectory() as folder:
            with quiet():
                student.model.save_pretrained(folder)
                student.tokenizer.save_pretrained(folder)
            settings = {"quantization_config": self.settings(left_out), "dtype": torch.float32}
            packed = load_taskmodel(
                folder,
                student.task,
                read=lambda auto, config: auto.from_pretrained(
                    folder, config=config, use_safetensors=True, trust_remote_code=False, **settings
                ),
            ).model
        facts = {"packed": count_packed(packed), "left_in_float": left_out}
        return Outcome(replace(student, model=packed), facts)

    def left_out(self, network: Any) -> list[str]:
        """Return the linear layers that stay in float: those of the head, of unfit size, and those of ``skip``."""
        from torch import nn

        from teachers.anatomy.encoder import head_parts

        head = set(head_parts(network).values())
        return [
            path
            for path, part in network.named_modules()
            if isinstance(part, nn.Linear)
            and (part in head or part.out_features % MULTIPLE or any(path.endswith(end) for end in self.skip))
        ]

    def settings(self, left_out: list[str]) -> Any:
        """Return the settings as transformers takes them."""
        import torch
        from transformers import BitsAndBytesConfig

        if self.format == "int8":
            return BitsAndBytesConfig(
                load_in_8bit=True, llm_int8_threshold=self.threshold, llm_int8_skip_modules=left_out
            )
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=self.format,
            bnb_4bit_use_double_quant=self.double,
            bnb_4bit_compute_dtype=torch.float32,
            llm_int8_skip_modules=left_out,
        )


def count_packed(network: Any) -> int:
    """Return how many linear layers bitsandbytes holds."""
    return sum(type(part).__module__.startswith("bitsandbytes") for part in network.modules())
