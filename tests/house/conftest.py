"""What the house tests share."""

import pytest

from tests.house.test_house import tree


@pytest.fixture(scope="package", autouse=True)
def trees():
    """Forget the parsed code of all files after these tests; the tests that follow need it no more."""
    yield
    tree.cache_clear()
