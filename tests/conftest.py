"""Set before torch is imported: no hub, one thread (tiny models are slower with more), no forks of tokenizers."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture(scope="session")
def forker():
    """A process that has loaded the toolkit and forks for every command."""
    from tests.forking import Forker

    with Forker() as forker:
        yield forker
