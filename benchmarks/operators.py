"""Time of an ONNX export by operator, at 16 x 128 tokens.

python -m benchmarks.operators EXPORT [--threads 2] [--runs 20]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime

ROWS, TOKENS = 16, 128


def spent(file: Path, threads: int, runs: int) -> Counter[str]:
    """Return the milliseconds of one batch by ONNX Runtime operator, after its own fusions."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_profiling = True
    ids = np.random.default_rng(13).integers(1000, 20000, (ROWS, TOKENS))
    given = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        taken = {value.name for value in session.get_inputs()}
        for _ in range(runs):
            session.run(None, {name: array for name, array in given.items() if name in taken})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            found[event["args"]["op_name"]] += event["dur"] / 1000 / runs
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("export", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    given = parser.parse_args()
    found = spent(given.export / "model.onnx", given.threads, given.runs)
    print("| operator | ms per batch | share |\n|---|---|---|")
    for name, milliseconds in found.most_common():
        if milliseconds >= 0.01 * found.total():
            print(f"| {name} | {milliseconds:.1f} | {milliseconds / found.total():.0%} |")
    print(f"| all | {found.total():.1f} | 100% |")


if __name__ == "__main__":
    main()
