"""How big a model is: parameters, non-zeros, bytes, and multiply-accumulates of one input of a stated length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.errors import UserError

if TYPE_CHECKING:
    import onnx
    import torch

MACS_LENGTH = 128
"""Tokens of the one input whose multiply-accumulates are reported."""
MODEL_FILES = ("*.safetensors", "*.onnx", "*.onnx.data", "*.onnx_data", "*.ort", "openvino_model.*", "*.pte")
"""What holds the weights in a folder."""
UNKNOWN_TOKEN = 2
"""A token id that every vocabulary has and that is padding in none of the usual ones."""


@dataclass(frozen=True)
class Size:
    """The size of a model.

    Attributes:
        parameters: Weights, shared ones counted once; a stored int8 code is one weight.
        nonzero: Those of them that are not 0.
        bytes: Bytes of all tensors that a save would write, scales and other buffers included.
        macs: Multiply-accumulates of matrix products and convolutions for batch 1 x ``macs_length`` tokens; None where
            they could not be counted. Adding, norms, activations and look-ups are left out, as is usual.
        macs_length: Tokens of that input.
    """

    parameters: int
    nonzero: int
    bytes: int
    macs: int | None = None
    macs_length: int = MACS_LENGTH

    def __add__(self, other: Size) -> Size:
        """Return the size of two networks that belong together."""
        macs = None if self.macs is None or other.macs is None else self.macs + other.macs
        parts = (self.parameters + other.parameters, self.nonzero + other.nonzero, self.bytes + other.bytes)
        return Size(*parts, macs, self.macs_length)


def model_size(module: torch.nn.Module, macs_length: int | None = MACS_LENGTH) -> Size:
    """Return the size of a torch model that takes ``input_ids``; it may stand on the meta device.

    Args:
        module: A transformers model. Of its parts, one that packs several weights into a byte says how many it has in
            ``weight_count() -> (all, not zero)``, and one whose tensors are saved without their zeros names them in
            ``sparse_tensors``; if such a tensor holds packed weights, ``saved_bytes(name)`` says what it takes.
        macs_length: Tokens of the input whose multiply-accumulates are counted; None leaves them out.

    Note:
        On the meta device there are no values, so ``nonzero`` equals ``parameters`` there.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     vocab_size=100, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
        ... )
        >>> model_size(BertModel(config), macs_length=16).parameters
        6200
    """
    import torch

    if _is_bitsandbytes(module):
        stored_bytes = sum(t.numel() * t.element_size() for t in module.state_dict().values())
        floats = [p for p in module.parameters() if p.is_floating_point()]
        zeros = sum(p.numel() - int(torch.count_nonzero(p)) for p in floats)
        plain = model_size(_unquantized(module), macs_length)
        return replace(plain, nonzero=plain.parameters - zeros, bytes=stored_bytes)
    tied: dict[Any, Any] = {tuple(map(id, p.buffers())): p for p in module.modules() if hasattr(p, "weight_count")}
    packing = list(tied.values())
    counted: list[tuple[int, int]] = [part.weight_count() for part in packing]
    packed = {id(buffer) for part in packing for buffer in part.buffers()}
    thinned: list[Any] = [part for part in module.modules() if hasattr(part, "sparse_tensors")]
    sparse: dict[int, int | None] = {
        id(getattr(part, name)): part.saved_bytes(name) if hasattr(part, "saved_bytes") else None
        for part in thinned
        for name in part.sparse_tensors
    }
    weights: list[torch.Tensor] = list(module.parameters())
    buffers = list(_persistent_buffers(module))
    # Quantized layers keep their weights as integer codes in buffers.
    weights += [b for b in buffers if b.dtype in (torch.int8, torch.uint8) and id(b) not in packed]
    stored = {id(tensor): tensor for tensor in [*weights, *buffers]}
    nonzero = sum(tensor.numel() if tensor.is_meta else int(torch.count_nonzero(tensor)) for tensor in weights)
    return Size(
        parameters=sum(tensor.numel() for tensor in weights) + sum(all_of for all_of, _ in counted),
        nonzero=nonzero + sum(kept for _, kept in counted),
        bytes=sum(
            (sparse[key] or sparse_bytes(t)) if key in sparse else t.numel() * t.element_size()
            for key, t in stored.items()
        ),
        macs=None if macs_length is None else macs(module, length=macs_length),
        macs_length=macs_length or MACS_LENGTH,
    )


def _is_bitsandbytes(module: Any) -> bool:
    return any(type(part).__module__.startswith("bitsandbytes") for part in module.modules())


def _unquantized(module: Any) -> torch.nn.Module:
    """Return a network of the same shape with plain layers and random weights."""
    import copy

    import torch

    config = copy.deepcopy(module.config)
    del config.quantization_config
    with torch.random.fork_rng():
        made: torch.nn.Module = type(module)._from_config(config).eval()
    return made


def sparse_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor as one bit for each number and the numbers that are not 0, or dense if less."""
    import torch

    dense = tensor.numel() * tensor.element_size()
    if tensor.is_meta:
        return dense
    return min(dense, -(-tensor.numel() // 8) + int(torch.count_nonzero(tensor)) * tensor.element_size())


def _persistent_buffers(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield buffer


def device_of(module: torch.nn.Module) -> torch.device:
    """Return where a network is; one whose tables are all packed has buffers and no parameters."""
    return next(itertools.chain(module.parameters(), module.buffers())).device


def macs(module: torch.nn.Module, batch: int = 1, length: int = MACS_LENGTH) -> int:
    """Count the multiply-accumulates of one forward pass by watching it run; on the meta device nothing is computed.

    Args:
        module: A model that takes ``input_ids``.
        batch: Rows of the input.
        length: Tokens of each row; no padding. Of a network with a decoder, also the tokens that are written.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from eval.cost.product_count import ProductCount

    device = device_of(module)
    counter = ProductCount()
    training = module.training
    module.eval()
    # The standard head for multiple choice reads [examples, choices, tokens].
    writes = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))
    shape = (batch, 1, length) if type(module).__name__.endswith("ForMultipleChoice") else (batch, length)
    try:
        # The fused attention kernel of the CPU is not counted by torch, the plain one is: two matrix products.
        # With gradients on, torch itself takes most composite operators apart.
        with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            ids = torch.full(shape, UNKNOWN_TOKEN, device=device)
            module(input_ids=ids, **(_to_write(ids) if writes else {}))
    finally:
        module.train(training)
    return counter.flops // 2


def _to_write(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what a decoder reads; with its mask made, for standard code would look into its own."""
    import torch

    rows, length = ids.shape
    seen = torch.ones(rows, 1, length, length, dtype=torch.bool, device=ids.device).tril()
    return {"decoder_input_ids": ids, "decoder_attention_mask": seen}


def file_bytes(folder: str | Path, patterns: tuple[str, ...] = MODEL_FILES) -> int:
    """Return the bytes of the files in ``folder`` itself that hold weights: safetensors and the files of exports."""
    files = {path for pattern in patterns for path in Path(folder).glob(pattern) if path.is_file()}
    return sum(path.stat().st_size for path in files)


def folder_bytes(folder: str | Path) -> int:
    """Return the bytes of all files in and below ``folder``: what a user downloads."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def onnx_size(path: str | Path, macs_length: int | None = MACS_LENGTH) -> Size:
    """Return the size of an ONNX file from the initializers of its graph, without running it.

    Initializers of floating and narrow integer types count as parameters; int64 and bool ones (shapes, axes) only as
    bytes. The multiply-accumulates follow from inferred shapes; they are None if a shape stays open or a product hides
    in an operator that is not known here.

    Args:
        path: The ``.onnx`` file; external data is found beside it.
        macs_length: Tokens of the input whose multiply-accumulates are counted; None leaves them out.

    Raises:
        UserError: There is no such file.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, numpy_helper

    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such ONNX file")
    model = onnx.load(str(path))
    parameters = nonzero = stored = 0
    for graph in _graphs(model.graph):
        for tensor in graph.initializer:
            values = numpy_helper.to_array(tensor)
            packed = tensor.data_type in (TensorProto.INT4, TensorProto.UINT4)
            stored += (values.size + 1) // 2 if packed else values.nbytes
            if tensor.data_type not in (TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING):
                parameters += values.size
                nonzero += int(np.count_nonzero(values))
    if macs_length is None:
        return Size(parameters, nonzero, stored)
    from eval.cost.onnx_macs import onnx_macs

    return Size(parameters, nonzero, stored, onnx_macs(model, macs_length), macs_length)


def _graphs(graph: onnx.GraphProto) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(inner)
