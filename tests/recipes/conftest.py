"""A tiny run of everything, made once, which is then interrupted."""

import pytest

from tests.whole_run import WholeRun


@pytest.fixture(scope="session")
def whole(tmp_path_factory, forker):
    """The run without interruption."""
    return WholeRun.of(tmp_path_factory.mktemp("whole"), forker)
