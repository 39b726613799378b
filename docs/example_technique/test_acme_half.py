"""The checks that every technique passes, over one of another package."""

from acme_half import Half

from compress.testing import check_technique


def test_it_keeps_the_rules_of_a_technique() -> None:
    """The class says what it needs, so the checks that fit are chosen by themselves."""
    assert "claims_of_files_hold" in check_technique(Half(parts=("layers", "pooler")))
