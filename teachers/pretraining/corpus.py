"""A tokenized corpus on disk, read through memory maps: text larger than memory trains as fast as text that fits.

Three flat files: the ids of all tokens, which of them begin a word, and where sentences and documents begin. It is made
once for each text and tokenizer, in bounded memory, and found again by their content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from eval.errors import UserError
from eval.writing import whole_folder
from teachers.pretraining.documents import Counts, documents

VERSION = 1
"""Raised when the same text and tokenizer give other files."""
TOGETHER = 256
"""Documents that are tokenized at once."""
FACTS = "corpus.json"
SMALL = 2**16
"""Vocabularies up to this size take two bytes a token."""
Array = NDArray[Any]
Segmenter = Callable[[str], Sequence[tuple[int, int]]]
"""From a text to the first character of each word and the one after its last, for scripts without spaces."""


@dataclass(frozen=True)
class Corpus:
    """Documents of sentences of tokens.

    Attributes:
        folder: Where the files lie.
        facts: What ``corpus.json`` holds: counts, and what the corpus was made of.
        tokens: Ids, ``[T]``.
        begins: Whether each token begins a word, ``[T]``.
        sentence_starts: First token of each sentence, and ``T`` at the end, ``[S + 1]``.
        document_starts: First sentence of each document, and ``S`` at the end, ``[D + 1]``.
    """

    folder: Path
    facts: dict[str, Any]
    tokens: Array
    begins: Array
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

    def words(self, start: int, end: int) -> list[int]:
        """Return the number of the word that each token of a run belongs to, counted from 0."""
        begins = self.begins[start:end].astype(np.int64)
        begins[:1] = 1
        return list((np.cumsum(begins) - 1).tolist())

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Open a corpus that ``build`` wrote.

        Raises:
            UserError: If it is no corpus, or a file of it is damaged.
        """
        file = folder / FACTS
        if not file.is_file():
            raise UserError(f"{folder}: is no corpus, for it has no {FACTS}")
        facts = json.loads(file.read_text(encoding="utf-8"))
        kinds = {"tokens": facts["kind"], "begins": "bool", "sentence_starts": "int64", "document_starts": "int64"}
        counts = {"tokens": facts["tokens"], "begins": facts["tokens"]}
        counts |= {"sentence_starts": facts["sentences"] + 1, "document_starts": facts["documents"] + 1}
        arrays = {}
        for name, kind in kinds.items():
            place, expected = folder / f"{name}.bin", counts[name] * np.dtype(kind).itemsize
            size = place.stat().st_size if place.is_file() else -1
            if size != expected:
                raise UserError(f"{place}: has {size:,} bytes instead of {expected:,}; remove {folder} to make it anew")
            arrays[name] = np.memmap(place, dtype=kind, mode="r")
        return cls(folder, facts, **arrays)


def build(
    files: Sequence[Path], tokenizer: Any, home: Path, *, segmenter: Segmenter | None = None, column: str = "text"
) -> Corpus:
    """Tokenize files of text, or open what an earlier call made of the same files.

    Args:
        files: As ``documents`` takes them.
        tokenizer: A fast tokenizer of transformers; special tokens are not added.
        home: The corpus is kept in a folder below this, named by the content of files and tokenizer.
        segmenter: Finds words where the tokenizer cannot, as in Chinese.
        column: The field of a row that holds the text.

    Raises:
        UserError: If a file cannot be read, or the text holds no token.
    """
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    identity = hashlib.sha256(json.dumps([VERSION, column, backend.to_str()]).encode())
    identity.update(repr(getattr(segmenter, "identity", segmenter is not None)).encode())
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: no such file")
        with file.open("rb") as stream:
            identity.update(hashlib.file_digest(stream, "sha256").digest())
    folder = home / identity.hexdigest()[:16]
    if not (folder / FACTS).is_file():
        with whole_folder(folder, "the corpus") as beside:
            _write(beside, files, backend, segmenter, column)
    return Corpus.open(folder)


def _write(folder: Path, files: Sequence[Path], backend: Any, segmenter: Segmenter | None, column: str) -> None:
    counts, tokens = Counts(), 0
    kind = "uint16" if backend.get_vocab_size() <= SMALL else "uint32"
    streams: dict[str, BinaryIO] = {}
    try:
        for name in ("tokens", "begins", "sentence_starts", "document_starts"):
            streams[name] = (folder / f"{name}.bin").open("wb")
        sentences = 0
        kept = 0
        for batch in _batches(documents(files, counts, column)):
            encoded = iter(backend.encode_batch([s for document in batch for s in document], add_special_tokens=False))
            for document in batch:
                before = sentences
                for text, found in zip(document, encoded, strict=False):
                    if not found.ids:
                        continue
                    np.int64(tokens).tofile(streams["sentence_starts"])
                    np.array(found.ids, dtype=kind).tofile(streams["tokens"])
                    _begins(found, text, segmenter).tofile(streams["begins"])
                    tokens += len(found.ids)
                    sentences += 1
                if sentences > before:
                    np.int64(before).tofile(streams["document_starts"])
                    kept += 1
        np.int64(tokens).tofile(streams["sentence_starts"])
        np.int64(sentences).tofile(streams["document_starts"])
    finally:
        for stream in streams.values():
            stream.close()
    if not tokens:
        raise UserError(f"{', '.join(map(str, files))}: holds no token of this tokenizer")
    facts = {"version": VERSION, "kind": kind, "tokens": tokens, "sentences": sentences, "documents": kept}
    read = asdict(counts)
    (folder / FACTS).write_text(json.dumps({**facts, "read": read}, indent=1) + "\n", encoding="utf-8")


def _batches(source: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    while batch := list(islice(source, TOGETHER)):
        yield batch


def _begins(found: Any, text: str, segmenter: Segmenter | None) -> Array:
    """Return whether each token begins a word."""
    if segmenter is None:
        numbers = [-1 if word is None else word for word in found.word_ids]
    else:
        owner = np.full(len(text) + 1, -1)
        for number, (start, end) in enumerate(segmenter(text)):
            owner[start:end] = number
        numbers = [int(owner[start]) for start, _ in found.offsets]
    return np.array([place == 0 or number != numbers[place - 1] for place, number in enumerate(numbers)], dtype=bool)
