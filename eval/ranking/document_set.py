"""The documents of a retrieval task, as one value that examples can hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any


class Corpus(str):
    """Documents with their ids; as a text it is the SHA-256 over them.

    Every query holds it in its field ``corpus``. Whatever writes, compares or digests an example sees the digest, so a
    query on other documents is another example, and no file repeats the documents.

    Args:
        ids: An id for each document; all are different.
        texts: The documents, with their titles in front.

    Examples:
        >>> corpus = Corpus(["a", "b"], ["a warm film", "a dull film"])
        >>> corpus.text_of("b"), len(corpus.texts), len(corpus)
        ('a dull film', 2, 64)
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __new__(cls, ids: Sequence[str], texts: Sequence[str]) -> Corpus:
        """Digest the documents."""
        digest = hashlib.sha256()
        for each in zip(ids, texts, strict=True):
            digest.update(json.dumps(each, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        made = super().__new__(cls, digest.hexdigest())
        made.ids, made.texts = tuple(ids), tuple(texts)
        return made

    def __getnewargs__(self) -> tuple[tuple[str, ...], tuple[str, ...]]:  # type: ignore[override]
        """Return what ``copy`` and ``pickle`` make it of."""
        return self.ids, self.texts

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.ids)}

    def text_of(self, name: str) -> str:
        """Return the document with an id."""
        return self.texts[self._places[name]]

    def is_query(self, place: int, name: str, text: str) -> bool:
        """Return whether a document is a query itself: it has its id, and ends with its text.

        Some data sets, such as ArguAna, look for other documents than the query, which is one of them.
        """
        return self.ids[place] == name and self.texts[place].endswith(text)


def documents_of(examples: Iterable[Mapping[str, Any]]) -> int:
    """Return how many documents queries search, those of each corpus once."""
    return sum(len(corpus.texts) for corpus in {example["corpus"] for example in examples})
