"""A technique says by traits of a model what it can follow, never by the names of other techniques."""

import pytest

from compress.registry import get, names
from compress.traits import GENERAL, TRAITS


@pytest.mark.parametrize("name", names())
def test_a_technique_speaks_of_traits_and_says_what_to_do(name):
    technique = get(name)
    assert set(technique.requires) | technique.removes <= set(TRAITS) - set(GENERAL)
    assert all("put it before" in reason or "take " in reason for reason in technique.requires.values())
    assert not any(hasattr(technique, gone) for gone in ("not_after", "zeros", "remakes"))
