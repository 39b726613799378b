"""How much of a machine's measured matrix rate a training reaches (model FLOPs utilisation)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from teachers.anatomy.encoder import base_encoder
from teachers.training.processes import how_many

SIZE = 1024
"""Rows and columns of the matrices whose product is timed; on a GPU eight times as many."""
SECONDS = 0.5


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return floating-point operations a second of large matrix products, the best of several."""
    size = SIZE * (8 if device.type == "cuda" else 1)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best


def speed_of(network: Any, history: Sequence[Mapping[str, Any]], length: int) -> dict[str, float]:
    """Return tokens a second of all processes of a training, and the share of the matrix rate that its products are.

    Three times the encoder's forward products are counted, nothing for heads and embeddings.

    Args:
        network: The network.
        history: What the loop wrote down.
        length: Tokens of a sequence.
    """
    from eval.cost.size import model_size

    rates = [entry["tokens_per_second"] for entry in history]
    tokens_per_second = sorted(rates)[len(rates) // 2]
    macs = model_size(base_encoder(network), length).macs or 0
    on_gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if on_gpu and torch.cuda.is_bf16_supported() else torch.float32
    rate = matrix_rate(torch.device("cuda" if on_gpu else "cpu"), dtype)
    used = 3 * 2 * macs / length * tokens_per_second
    return {"tokens_per_second": tokens_per_second, "matrix_flops": rate, "utilisation": used / (rate * how_many())}
