"""Set before torch is imported: no hub, one thread (tiny models are slower with more), no forks of tokenizers."""

import gc
import os
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from filelock import FileLock


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage while modules and tests are collected, which all stay: it took a third of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """What makes a folder once for all workers: give it a name and what fills the folder; tests change only copies."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def make(name, fill):
        folder, done = root / "shared" / name, root / "shared" / f"{name}.done"
        done.parent.mkdir(exist_ok=True)
        with FileLock(done.with_suffix(".lock")):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # what could not be filled before
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def forker():
    """A process that has loaded the toolkit and forks for every command."""
    from tests.forking import Forker

    with Forker() as forker:
        yield forker
