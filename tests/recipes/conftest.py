"""A tiny run of everything, made once, which is then interrupted."""

import pytest

from tests.undrawn import undrawn
from tests.whole_run import WholeRun, make

__all__ = ["undrawn", "whole"]


@pytest.fixture(scope="session")
def whole(made_once, forker):
    """The run without interruption."""
    return WholeRun.made_in(made_once("whole", lambda folder: make(folder, forker)), forker)
