"""Whether saved results load in a fresh process and give the same outputs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.artifact.artifact import Artifact, load
from compress.testing.case import Case
from eval.inference import predict

TOLERANCE = 1e-6
"""Largest difference of an output between the two processes."""
_PROGRAM = """
import json, sys
import numpy as np
from pathlib import Path
from compress import load
from eval.inference import predict
root, examples = Path(sys.argv[1]), json.loads(sys.argv[2])
found = {name: np.stack(predict(load(root / name), given).logits) for name, given in examples.items()}
np.savez(root / "outputs.npz", **found)
"""


def save_case(case: Case, folder: Path) -> None:
    """Save a result.

    Raises:
        AssertionError: If what is loaded has another lineage than what was saved.
    """
    assert load(case.result.save(folder)).lineage == case.result.lineage, "the lineage is not the one that was saved"


def outputs_of(result: Artifact, case: Case) -> np.ndarray:
    """Return the outputs for a few examples, ``[4, outputs]``."""
    return np.stack(predict(result, _examples(case)).logits)


def outputs_in_a_fresh_process(root: Path, cases: Mapping[str, Case]) -> dict[str, np.ndarray]:
    """Load saved results in a new Python process.

    Args:
        root: The folder that holds them, each under its key.
        cases: Key -> what was saved there.

    Returns:
        Key -> what ``outputs_of`` returns here.

    Raises:
        AssertionError: If that process fails; its message is the end of what it printed.
    """
    examples = {name: _examples(case) for name, case in cases.items()}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(root), json.dumps(examples)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, f"the saved folder does not load in a fresh process: {ran.stderr.strip()[-2000:]}"
    with np.load(root / "outputs.npz") as file:
        return dict(file)


def reload_in_a_fresh_process(cases: Sequence[Case], root: Path) -> None:
    """Saved results load in a fresh process, which knows installed packages alone, and give the same outputs."""
    known = {case.family: case for case in cases}
    for family, case in known.items():
        save_case(case, root / family)
    for family, found in outputs_in_a_fresh_process(root, known).items():
        difference = float(np.abs(outputs_of(known[family].result, known[family]) - found).max())
        same = difference <= TOLERANCE
        assert same, f"{family}: loaded in a fresh process, its outputs differ by {difference:.2g}"


def _examples(case: Case) -> list[dict[str, Any]]:
    return [{"text": example["text"]} for example in case.task.validation[:4]]
