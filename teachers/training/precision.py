"""A training in bf16 or fp16: how much faster it is, and float32 wherever the network is scored, saved or exported."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from eval.cost.machine import bf16_is_fast


def bf16_speedup(features: Iterable[str], rows: int = 512, width: int = 768, rounds: int = 9) -> float | None:
    """Return how many times as fast this processor multiplies matrices in bf16 as in float32, timed alternately.

    Args:
        features: Those of the processor; without instructions for bf16 nothing is timed.
        rows: Rows of the first matrix, the tokens of a batch.
        width: Of a layer; the product is that of a feed-forward part, four times as wide.
        rounds: Of which the median ratio counts; the first is left out.

    Returns:
        The ratio, or None without such instructions.
    """
    if not bf16_is_fast(features):
        return None
    types = (torch.float32, torch.bfloat16)
    factors = [(torch.ones(rows, width, dtype=each), torch.ones(width, 4 * width, dtype=each)) for each in types]
    ratios = []
    for _ in range(rounds + 1):
        fp32, bf16 = (seconds_of_product(*pair) for pair in factors)
        ratios.append(fp32 / bf16)
    return statistics.median(ratios[1:])


def seconds_of_product(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return how long the product of two matrices takes, once."""
    started = time.perf_counter()
    left @ right
    return time.perf_counter() - started


@contextlib.contextmanager
def differentiable_attention(networks: Iterable[nn.Module], precision: str, device: str) -> Iterator[None]:
    """Compute attention in plain products while networks are trained in bf16 on a CPU.

    There the gradient of torch's fused attention takes up to ten times as long in bf16 as in float32, half of a step.

    Args:
        networks: Those that are trained; where transformers cannot change their attention, it stays.
        precision: ``no``, ``bf16`` or ``fp16``.
        device: Kind of the device, such as ``cpu``.
    """
    slow = precision == "bf16" and device == "cpu"
    fused = [one for one in networks if slow and isinstance(one, PreTrainedModel) and _attention(one) == "sdpa"]
    for network in fused:
        network.set_attn_implementation("eager")
    try:
        yield
    finally:
        for network in fused:
            network.set_attn_implementation("sdpa")


def _attention(network: PreTrainedModel) -> str:
    return str(network.config._attn_implementation)


@contextlib.contextmanager
def in_float32(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Run modules that accelerate prepared for mixed precision as they were before."""
    prepared = [vars(part) for part in parts if "_original_forward" in vars(part)]
    own = [values["forward"] for values in prepared]
    for values in prepared:
        values["forward"] = values["_original_forward"]
    try:
        yield
    finally:
        for values, forward in zip(prepared, own, strict=True):
            values["forward"] = forward


def back_to_float32(parts: Iterable[nn.Module]) -> None:
    """Take away what accelerate gave modules for mixed precision, of which nobody knows later."""
    for part in parts:
        original = vars(part).pop("_original_forward", None)
        if original is not None:
            del part.forward
            if getattr(original, "__func__", None) is not type(part).forward:
                vars(part)["forward"] = original
