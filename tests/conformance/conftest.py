"""What the conformance tests share."""

import pytest


@pytest.fixture(scope="module")
def signals(tmp_path_factory):
    return tmp_path_factory.mktemp("signals")
