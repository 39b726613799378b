"""An optimizer step is the same however its batch is cut: into pieces, and between processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compress.registry import get, names
from teachers.losses.catalogue import LossBlock
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.text.sentence_pairs import PAIRS
from tests.conformance.updates import BY_FORWARD_PASS, gradients

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
LARGEST = 1e-6
"""Relative to the norm of all gradients."""
FEW = 1
"""Kinds of task for each objective that are compared first, in turn, so that a fault is told in a minute."""


@pytest.fixture(scope="module", params=[FEW, 0], ids=["few", "all"])
def few(request):
    return request.param


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return where the processes of the tests themselves keep what they make."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("COMPRESS_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def whole(few, home):
    return gradients(1, few=few)


def differences(one, other):
    """Return the cases whose gradients differ, with how much."""
    assert one.keys() == other.keys()
    found = {name: np.linalg.norm(one[name] - other[name]) / np.linalg.norm(one[name]) for name in one}
    return {name: value for name, value in found.items() if not value <= LARGEST}


def test_every_objective_is_compared(whole):
    trained = [name for name in names() if get(name).trains and name not in BY_FORWARD_PASS]
    losses = [f"loss: {name}" for name in LossBlock.model_fields]
    pretraining = [f"pretraining: {name}" for name in (*Objectives.model_fields, *PAIRS)]
    for objective in (*trained, *losses, *pretraining, "auxiliary_lm"):
        assert any(case.startswith(objective) for case in whole), f"{objective} is compared on no task"
    assert all(np.linalg.norm(gradient) > 0 for gradient in whole.values())


def test_pieces_of_a_batch_give_its_update(whole, few):
    assert differences(whole, gradients(4, few=few)) == {}


def test_two_processes_give_the_update_of_one(whole, few, home, tmp_path):
    file, only = tmp_path / "gradients.npz", "distill.logits on" if few else ""
    if (home / "tokenizers").is_dir():  # training unigrams anew gives other scores in every process
        shutil.copytree(home / "tokenizers", tmp_path / "home" / "tokenizers")
    done = subprocess.run(
        [*TWO, "-m", "tests.conformance.updates", str(file), only, str(few)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COMPRESS_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(file) as found:
        assert differences({name: own for name, own in whole.items() if only in name}, dict(found)) == {}
