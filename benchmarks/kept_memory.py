"""What an optimizer step costs where the memory that it frees stays with the process, and where it does not.

    python -m benchmarks.kept_memory [--rounds 12] [--fill]

Networks of BERT's kind with random weights, random token ids, bf16 where the processor is fast with it. Variants
alternate. Times are those that the process had on its core, so other work on the machine lengthens none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from benchmarks.rounds import arguments, tell, timed_in_rounds
from eval.cost.machine import bf16_is_fast, cpu_features
from teachers.training.kept_memory import freed_memory_kept

STEPS = 4
"""Optimizer steps of a round, after one that is not timed."""
SHAPES = {
    "classification, 6 x 384, 32 sentences of 24 tokens": ((BertForSequenceClassification, 6, 384, 30_522, 32), 24),
    "masked language model, 4 x 256, 8,000 words, 16 of 128": ((BertForMaskedLM, 4, 256, 8_000, 16), 128),
    "masked language model, 6 x 384, 30,522 words, 16 of 128": ((BertForMaskedLM, 6, 384, 30_522, 16), 128),
}


def step_of(kind: Any, layers: int, width: int, words: int, batch: int) -> Callable[[int], None]:
    """Return what makes one optimizer step of a network with random weights, on ``batch`` texts of so many tokens."""
    config = BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        num_labels=2,
    )
    network = kind(config).train()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-6, fused=True)
    bf16 = bf16_is_fast(cpu_features())

    def step(length: int) -> None:
        ids = torch.randint(0, words, (batch, length))
        labels = ids if kind is BertForMaskedLM else ids[:, 0] % 2
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = network(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def timed(step: Callable[[], None], kept: bool) -> float:
    """Return the seconds that the process had on a core for the steps of a round."""
    with freed_memory_kept("cpu") if kept else nullcontext():
        step()
        began = time.process_time()
        for _ in range(STEPS):
            step()
        return time.process_time() - began


def main() -> None:
    """Measure, print and keep."""
    given = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for name, (shape, length) in SHAPES.items():
        step = partial(step_of(*shape), length)
        ways = {f"{name}, {how}": partial(timed, step, how == "kept") for how in ("given back", "kept")}
        own = timed_in_rounds(ways, given.rounds)
        back, kept = own.values()
        ratios[f"kept / given back: {name}"] = [after / before for before, after in zip(back, kept, strict=True)]
        seconds |= own
    tell("kept-memory", {"seconds": seconds, "batches": STEPS, "ratios": ratios}, given.fill)


if __name__ == "__main__":
    main()
