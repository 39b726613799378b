"""PyTorch: eager and compiled, in float32, bfloat16 and int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.engines.engine import Array, Engine, Files, Inputs, Run, without_bf16
from benchmarks.engines.environment import Environment


class Eager(Engine):
    """Torch in eager mode, the reference: what predictions are compared with."""

    name = "torch, eager"
    packages: tuple[str, ...] = ("torch", "transformers")

    def load(self, files: Files, place: Path, threads: int) -> Run:
        """Load the model and change it as the variant asks."""
        import torch
        from transformers import AutoModelForSequenceClassification

        torch.set_num_threads(threads)
        network = self.changed(AutoModelForSequenceClassification.from_pretrained(files.model).eval(), files)

        def run(inputs: Inputs) -> Array:
            with torch.inference_mode():
                found = network(**{name: torch.from_numpy(array) for name, array in inputs.items()})
            logits: Array = getattr(found, "logits", found).float().numpy()
            return logits

        return run

    def changed(self, network: Any, files: Files) -> Any:
        """Return what is called in the place of the model."""
        return network

    def network(self, files: Files, place: Path) -> Path | None:
        """The model's own weights."""
        return files.model


class Compiled(Eager):
    """``torch.compile``."""

    name = "torch, compiled"

    def changed(self, network: Any, files: Files) -> Any:
        """Compile it, once for all lengths."""
        import torch

        return torch.compile(network, dynamic=True)


class EagerBf16(Eager):
    """Weights and products in bfloat16."""

    name = "torch, bf16"

    def absent(self) -> str:
        """Where products in bfloat16 are made of float32."""
        return without_bf16()

    def changed(self, network: Any, files: Files) -> Any:
        """Convert the weights."""
        import torch

        return network.to(torch.bfloat16)


class CompiledBf16(EagerBf16):
    """Both."""

    name = "torch, compiled, bf16"

    def changed(self, network: Any, files: Files) -> Any:
        """Convert and compile."""
        import torch

        return torch.compile(super().changed(network, files), dynamic=True)


class DynamicInt8(Eager):
    """``quantize_dynamic``: linear layers in int8, embeddings in float32."""

    name = "torch, dynamic int8"
    saturates = True

    def changed(self, network: Any, files: Files) -> Any:
        """Quantize the linear layers."""
        import torch
        from torch.ao.quantization import quantize_dynamic

        return quantize_dynamic(network, {torch.nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]

    def network(self, files: Files, place: Path) -> Path | None:
        """Nothing is written."""
        return None


class CompiledInt8(Eager):
    """Torch's path for x86: ``torch.export``, torchao's quantizer for Inductor, ``torch.compile``.

    With ranges found at run time, as its tutorial advises for BERT, and 7 bits where there is no VNNI.
    """

    name = "torch, compiled, int8"
    environment = Environment("torchao", ("torchao==0.18.0",))
    packages = ("torch", "torchao", "transformers")

    def changed(self, network: Any, files: Files) -> Any:
        """Export, quantize and compile the model."""
        import torch
        from torch._inductor import config
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        from eval.cost.machine import cpu_features, int8_is_fast

        config.freezing = True
        inputs = {name: torch.from_numpy(array) for name, array in files.batches("calibration")[0].items()}
        free = {name: {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO} for name in inputs}
        with torch.no_grad():
            graph = torch.export.export(network, (), inputs, dynamic_shapes=free).module()
            scheme = x86.get_default_x86_inductor_quantization_config(
                is_dynamic=True, reduce_range=not int8_is_fast(cpu_features())
            )
            prepared = prepare_pt2e(graph, x86.X86InductorQuantizer().set_global(scheme))
            prepared(**inputs)
            return torch.compile(convert_pt2e(prepared), dynamic=True)

    def network(self, files: Files, place: Path) -> Path | None:
        """Nothing is written."""
        return None
