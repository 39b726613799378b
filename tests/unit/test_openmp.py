"""How torch's threads wait: briefly, unless the user says otherwise."""

import subprocess
import sys
from pathlib import Path

import pytest

from eval.cost.openmp import BRIEF, WAITING, described, told, wait_briefly

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in WAITING:
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)


def test_it_is_set_before_torch_is_loaded_and_never_after(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    wait_briefly()
    assert told() == {}
    assert described().startswith("as OpenMP likes: threads that wait spin for milliseconds")
    monkeypatch.delitem(sys.modules, "torch")
    wait_briefly()
    assert told() == BRIEF
    assert described() == "GOMP_SPINCOUNT=2000, KMP_BLOCKTIME=1 (set by compress: threads that wait soon sleep)"


@pytest.mark.parametrize("name", WAITING)
def test_what_the_user_set_is_the_last_word(name, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv(name, "7")
    wait_briefly()
    assert told() == {name: "7"}
    assert described() == f"{name}=7 (as you set it)"


def test_libgomp_reads_what_the_command_line_sets():
    code = (
        "import os; os.environ['OMP_DISPLAY_ENV'] = 'verbose'\n"
        "from compress.cli import main; main(['--version'])\n"
        "import torch; print(torch.__config__.parallel_info())"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in run.stderr:
        pytest.skip("torch here runs on another OpenMP than libgomp")
    assert f"GOMP_SPINCOUNT = '{BRIEF['GOMP_SPINCOUNT']}'" in run.stderr
