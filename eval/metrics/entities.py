"""Entities in BIO tags, as conlleval counts them."""

from __future__ import annotations

from collections.abc import Sequence


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the entities of a sentence: type, first word and last word.

    An entity begins at a ``B-`` or ``S-`` tag, and at any other tag of a type that follows ``O``, ``E-``, ``S-`` or
    another type; so what a model predicts need not be a correct sequence. seqeval's default mode finds the same.

    Args:
        tags: ``O`` or ``B-``, ``I-``, ``E-``, ``S-`` with a type, one a word.

    Examples:
        >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC"]))
        [('LOC', 3, 3), ('PER', 0, 1)]

    Source:
        Tjong Kim Sang & De Meulder 2003, arXiv cs/0306050 (conlleval).
    """
    found: set[tuple[str, int, int]] = set()
    prefix_before, type_before, first = "O", "", -1
    for place, tag in enumerate([*tags, "O"]):
        if tag == "O" == prefix_before:
            continue
        prefix, _, type_ = tag.partition("-")
        begins = prefix != "O" and (prefix in "BS" or prefix_before in "EOS" or type_ != type_before)
        if prefix_before != "O" and (begins or prefix == "O"):
            found.add((type_before, first, place - 1))
        if begins:
            first = place
        prefix_before, type_before = prefix, type_
    return found
