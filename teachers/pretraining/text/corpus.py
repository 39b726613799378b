"""A tokenized corpus on disk, read through memory maps: text larger than memory trains as fast as text that fits.

Flat files: the ids of all tokens, which of them begin a word and which a capital one, and where sentences and documents
begin. It is made once for each text and tokenizer, in bounded memory, and found again by their content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt

from eval.data.sources import Source
from eval.errors import UserError
from eval.files.typed_json import read_typed
from eval.files.writing import atomic_folder, exclusive
from teachers.plain_backend import plain_backend
from teachers.pretraining.text.documents import Counts, documents

VERSION = 4
"""Raised when the same text and tokenizer give other files."""
TOGETHER = 500_000
"""Characters that are tokenized at once, about; a token takes some 200 bytes meanwhile."""
COUNTED = 2**20
"""Tokens that are counted at once."""
FACTS = "corpus.json"
SMALL = 2**16
"""Vocabularies up to this size take two bytes a token."""
Array = NDArray[Any]
BEGINS, CAPITAL = 1, 2
"""Flags of a token: it begins a word; the word begins with a capital in the text."""
KINDS = {"flags": "uint8", "labels": "int64", "sentence_starts": "int64", "document_starts": "int64"}


class Facts(BaseModel):
    """What of ``corpus.json`` is read again."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["uint16", "uint32"]
    tokens: PositiveInt
    sentences: PositiveInt
    documents: PositiveInt
    labels: list[str]
    read: dict[str, Any]


Segmenter = Callable[[str], Sequence[tuple[int, int]]]
"""From a text to the first character of each word and the one after its last, for scripts without spaces."""
Reader = Callable[[Sequence[Source], Counts], Iterator[tuple[list[str], str]]]
"""Yields the sentences of each document of some sources, and the document's label; none is empty."""


@dataclass(frozen=True)
class Corpus:
    """Documents of sentences of tokens.

    Attributes:
        folder: Where the files lie.
        facts: What ``corpus.json`` holds: counts, and what the corpus was made of.
        tokens: Ids, ``[T]``.
        flags: ``BEGINS`` and ``CAPITAL`` of each token, ``[T]``.
        labels: Of each document, a place in the ``labels`` of ``facts``, ``[D]``.
        sentence_starts: First token of each sentence, and ``T`` at the end, ``[S + 1]``.
        document_starts: First sentence of each document, and ``S`` at the end, ``[D + 1]``.
    """

    folder: Path
    facts: dict[str, Any]
    tokens: Array
    flags: Array
    labels: Array
    sentence_starts: Array
    document_starts: Array

    def __len__(self) -> int:
        return len(self.document_starts) - 1

    def sentences(self, document: int) -> list[tuple[int, ...]]:
        """Return the sentences of a document, each a tuple of ids."""
        return [tuple(self.tokens[start:end].tolist()) for start, end in self.runs(document)]

    def runs(self, document: int) -> list[tuple[int, int]]:
        """Return the first token of each sentence of a document and the one after its last."""
        first, last = self.document_starts[document : document + 2]
        bounds = self.sentence_starts[first : last + 1].tolist()
        return list(pairwise(bounds))

    def places(self, document: int) -> list[range]:
        """Return the sentences of a document, each as the places of its tokens in ``tokens``."""
        return [range(start, end) for start, end in self.runs(document)]

    @cached_property
    def token_starts(self) -> Array:
        """First token of each document, and ``T`` at the end, ``[D + 1]``."""
        return np.asarray(self.sentence_starts[self.document_starts])

    def documents_of(self, places: Array) -> Array:
        """Return the number of the document in which each place of ``tokens`` lies; any shape."""
        return np.searchsorted(self.token_starts, places, side="right") - 1

    def tokens_of(self, document: int) -> Array:
        """Return the ids of all tokens of a document."""
        start, end = self.token_starts[document : document + 2]
        return self.tokens[start:end]

    def words(self, start: int, end: int) -> list[int]:
        """Return the number of the word that each token of a run belongs to, counted from 0."""
        begins = (self.flags[start:end] & BEGINS).astype(np.int64)
        begins[:1] = 1
        return list((np.cumsum(begins) - 1).tolist())

    def frequencies(self, size: int) -> Array:
        """Return the share of each token of a vocabulary of ``size`` in the text, ``[size]``; each counts once more."""
        counts = np.ones(size, dtype=np.int64)
        for start in range(0, len(self.tokens), COUNTED):
            counts += np.bincount(self.tokens[start : start + COUNTED], minlength=size)
        shares: Array = counts / counts.sum()
        return shares

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Open a corpus that ``build`` wrote.

        Raises:
            UserError: If it is no corpus, or a file of it is damaged.
        """
        file = folder / FACTS
        if not file.is_file():
            raise UserError(f"{folder}: is no corpus, for it has no {FACTS}")
        facts = dict(read_typed(file, Facts, f"remove {folder} to make it anew"))
        kinds = {"tokens": facts["kind"], **KINDS}
        counts = {"tokens": facts["tokens"], "flags": facts["tokens"], "labels": facts["documents"]}
        counts |= {"sentence_starts": facts["sentences"] + 1, "document_starts": facts["documents"] + 1}
        arrays = {}
        for name, kind in kinds.items():
            place, expected = folder / f"{name}.bin", counts[name] * np.dtype(kind).itemsize
            size = place.stat().st_size if place.is_file() else -1
            if size != expected:
                raise UserError(f"{place}: has {size:,} bytes instead of {expected:,}; remove {folder} to make it anew")
            arrays[name] = np.memmap(place, dtype=kind, mode="r")
        return cls(folder, facts, **arrays)


def texts(sources: Sequence[Source], counts: Counts) -> Iterator[tuple[list[str], str]]:
    """Read documents without labels; see ``documents``."""
    return ((document, "") for document in documents(sources, counts))


def build(
    sources: Sequence[Source], tokenizer: Any, home: Path, *, segmenter: Segmenter | None = None, reader: Reader = texts
) -> Corpus:
    """Tokenize text, or open what an earlier call made of the same text.

    Args:
        sources: What ``reader`` takes.
        tokenizer: A fast tokenizer of transformers; special tokens are not added.
        home: The corpus is kept in a folder below this, named by the content of text and tokenizer.
        segmenter: Finds words where the tokenizer cannot, as in Chinese.
        reader: Reads the sources.

    Raises:
        UserError: If a file cannot be read, or the text holds no token.
    """
    backend = plain_backend(tokenizer)
    identity = hashlib.sha256(json.dumps([VERSION, reader.__name__, backend.to_str()]).encode())
    identity.update(repr(getattr(segmenter, "identity", segmenter is not None)).encode())
    for source in sources:
        identity.update(digest_of(source))
    folder = home / identity.hexdigest()[:16]
    with exclusive(folder):
        if not (folder / FACTS).is_file():
            with atomic_folder(folder, "the corpus") as beside:
                _write(beside, sources, backend, segmenter, reader)
    return Corpus.open(folder)


def digest_of(source: Source) -> bytes:
    """Return what recognises the content of a source: of the file's bytes, or of all rows.

    Raises:
        UserError: If its file is not there.
    """
    if source.path is None:
        rows = hashlib.sha256()
        for row in source.rows():
            rows.update(json.dumps(dict(row.values), sort_keys=True, default=str).encode())
        return rows.digest()
    if not source.path.is_file():
        raise UserError(f"{source.path}: no such file")
    with source.path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _write(folder: Path, sources: Sequence[Source], backend: Any, segmenter: Segmenter | None, reader: Reader) -> None:
    counts, tokens = Counts(), 0
    kind = "uint16" if backend.get_vocab_size() <= SMALL else "uint32"
    labels: dict[str, int] = {}
    with ExitStack() as stack:
        streams = {name: stack.enter_context((folder / f"{name}.bin").open("wb")) for name in ("tokens", *KINDS)}
        sentences = 0
        kept = 0
        for batch in _batches(reader(sources, counts)):
            spaced = [([first, *(f" {text}" for text in rest)], label) for (first, *rest), label in batch]
            encoded = iter(backend.encode_batch([text for own, _ in spaced for text in own], add_special_tokens=False))
            for document, label in spaced:
                before = sentences
                for text, found in zip(document, encoded, strict=False):
                    if not found.ids:
                        continue
                    streams["sentence_starts"].write(np.int64(tokens).tobytes())
                    streams["tokens"].write(np.array(found.ids, dtype=kind).tobytes())
                    streams["flags"].write(_flags(found, text, segmenter).tobytes())
                    tokens += len(found.ids)
                    sentences += 1
                if sentences > before:
                    streams["document_starts"].write(np.int64(before).tobytes())
                    streams["labels"].write(np.int64(labels.setdefault(label, len(labels))).tobytes())
                    kept += 1
        streams["sentence_starts"].write(np.int64(tokens).tobytes())
        streams["document_starts"].write(np.int64(sentences).tobytes())
    if not tokens:
        unread = f"; {counts.bad:,} rows could not be read: {'; '.join(counts.problems)}" if counts.bad else ""
        raise UserError(f"{', '.join(source.name for source in sources)}: holds no token of this tokenizer{unread}")
    facts = {"version": VERSION, "kind": kind, "tokens": tokens, "sentences": sentences, "documents": kept}
    facts["labels"] = list(labels)
    read = asdict(counts)
    (folder / FACTS).write_text(json.dumps({**facts, "read": read}, indent=1) + "\n", encoding="utf-8")


def _batches(source: Iterator[tuple[list[str], str]]) -> Iterator[list[tuple[list[str], str]]]:
    batch, size = [], 0
    for document, label in source:
        batch.append((document, label))
        size += sum(map(len, document))
        if size >= TOGETHER:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _flags(found: Any, text: str, segmenter: Segmenter | None) -> Array:
    """Return the flags of each token of a text."""
    blanks = ((text[start:end], start) for start, end in found.offsets)
    begins = [start + len(own) - len(own.lstrip()) for own, start in blanks]  # a space alone is of the word after it
    if segmenter is None:
        numbers = [-1 if word is None else word for word in found.word_ids]
    else:
        owner = np.full(len(text) + 1, -1)
        for number, (start, end) in enumerate(segmenter(text)):
            owner[start:end] = number
        numbers = [int(owner[start]) for start in begins]
    flags = np.zeros(len(numbers), dtype=np.uint8)
    for place, (number, start) in enumerate(zip(numbers, begins, strict=True)):
        if place == 0 or number != numbers[place - 1]:
            flags[place] = BEGINS | (CAPITAL * text[start : start + 1].isupper())
    return flags
