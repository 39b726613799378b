"""Memory of a training whose batches have many lengths, by the number of shapes that oneDNN keeps code for.

    python -m benchmarks.kept_shapes [--rounds 2] [--fill]

A network of BERT's kind with random weights, 32 texts of 60 to 256 random token ids a batch, bf16 where the processor
is fast with it. Each variant is a process of its own with one thread, and they alternate. Times are those that the
process had on its core, so other work on the machine lengthens none.
"""

from __future__ import annotations

import random
import resource
from functools import partial
from statistics import median

import torch
from transformers import BertForSequenceClassification

from benchmarks.kept_memory import step_of
from benchmarks.rounds import arguments, tell, timed_in_rounds
from eval.cost.memory import peak_memory
from teachers.few_shapes import SHAPES_KEPT, SHAPES_VARIABLES
from teachers.training.kept_memory import freed_memory_kept

NAME = "kept-shapes"
USUAL = 1024
"""Shapes that oneDNN keeps code for by itself."""
STEPS = 120
CODE = f"""
import os, sys
os.environ |= dict.fromkeys({[names[0] for names in SHAPES_VARIABLES]}, sys.argv[1])
from benchmarks.kept_shapes import train
train()
"""


def train() -> None:
    """Make the optimizer steps of one process, each on texts of another length."""
    torch.set_num_threads(1)
    step, lengths = step_of(BertForSequenceClassification, 4, 256, 1_000, 32), random.Random(1)
    with freed_memory_kept("cpu"):
        for _ in range(STEPS):
            step(lengths.randint(60, 256))


def timed(shapes: int, peaks: list[int]) -> float:
    """Return the seconds that a process had on its core, and add its peak memory in bytes to ``peaks``."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    peaks.append(peak_memory(CODE, str(shapes), timeout=3600).bytes)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def main() -> None:
    """Measure, print and keep."""
    parser = arguments(__doc__ or "")
    parser.set_defaults(rounds=2)
    given = parser.parse_args()
    names = {
        shapes: f"4 x 256, 32 texts of 60 to 256 tokens, code for {shapes:,} shapes" for shapes in (USUAL, SHAPES_KEPT)
    }
    peaks: dict[int, list[int]] = {shapes: [] for shapes in names}
    ways = {name: partial(timed, shapes, peaks[shapes]) for shapes, name in names.items()}
    seconds = timed_in_rounds(ways, given.rounds)
    many, few = seconds.values()
    megabytes = {shapes: median(found) / 2**20 for shapes, found in peaks.items()}
    found = {
        "seconds": seconds,
        "batches": STEPS,
        "ratios": {"few / many": [after / before for before, after in zip(many, few, strict=True)]},
        "others": {
            f"peak memory, code for {shapes:,} shapes, MiB": f"{size:,.0f}" for shapes, size in megabytes.items()
        },
    }
    tell(NAME, found, given.fill)


if __name__ == "__main__":
    main()
