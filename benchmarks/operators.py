"""Time of an ONNX export by operator.

    python -m benchmarks.operators EXPORT [--rows 16] [--tokens 128] [--threads 2] [--runs 20]

What runs in a branch counts there, and not again as the branch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

BRANCHES = ("If", "Loop")
"""Operators whose time is that of those inside."""


def spent(export: Path, shape: tuple[int, int], threads: int, runs: int) -> Counter[str]:
    """Return the milliseconds of one batch by ONNX Runtime operator, after its own fusions.

    Args:
        export: A folder with ``model.onnx``.
        shape: Rows and tokens.
        threads: Of one product.
        runs: Batches to take the mean of.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_profiling = True
    tokens = Tokenizer.from_file(str(export / "tokenizer.json")).get_vocab_size()
    ids = np.random.default_rng(13).integers(tokens // 30, tokens, shape)
    given = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(export / "model.onnx"), options, providers=["CPUExecutionProvider"])
        taken = {value.name for value in session.get_inputs()}
        for _ in range(runs):
            session.run(None, {name: array for name, array in given.items() if name in taken})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found: Counter[str] = Counter()
    for event in events:
        if (
            event.get("cat") == "Node"
            and event["name"].endswith("_kernel_time")
            and event["args"]["op_name"] not in BRANCHES
        ):
            found[event["args"]["op_name"]] += event["dur"] / 1000 / runs
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("export", type=Path)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    given = parser.parse_args()
    found = spent(given.export, (given.rows, given.tokens), given.threads, given.runs)
    print("| operator | ms per batch | share |\n|---|---|---|")
    for name, milliseconds in found.most_common():
        if milliseconds >= 0.01 * found.total():
            print(f"| {name} | {milliseconds:.1f} | {milliseconds / found.total():.0%} |")
    print(f"| all | {found.total():.1f} | 100% |")


if __name__ == "__main__":
    main()
