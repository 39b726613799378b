"""Where sequences come from: packed text, pairs of segments, shuffled paragraphs, given pairs, and dialogues.

Each source is a list of sequences that are drawn by number; what chance decides (the second segment, an order) is
decided anew at every draw.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from eval.data.sources import Source
from eval.errors import UserError
from teachers.pretraining.text.corpus import Corpus
from teachers.pretraining.text.documents import Counts
from teachers.pretraining.text.packing import Format, sequences
from teachers.pretraining.text.sentence_pairs import SEGMENTS, Pair, halves, joined, reordered, reordering_classes
from teachers.pretraining.text.sequence import Drawn, Frame

Array = NDArray[Any]
FEWEST = 2
"""Tokens of the shortest sequence."""


class Drawable(Protocol):
    """Sequences by number.

    Attributes:
        lengths: About how many tokens each has.
        classes: How many classes they have; 0 without.
    """

    lengths: Array
    classes: int

    def draw(self, number: int, chance: np.random.Generator) -> Drawn:
        """Return a sequence."""
        ...


class Packed:
    """Sentences of a corpus in one of RoBERTa's formats; see ``teachers.pretraining.text.packing``.

    Args:
        corpus: The text.
        frame: Special tokens.
        length: Most tokens of a sequence.
        how: The format.
        pair: What two segments are to each other, a key of ``SEGMENTS``; none leaves a sequence whole.
        reorder: Most parts of a shuffled paragraph; 0 shuffles none.
    """

    def __init__(
        self, corpus: Corpus, frame: Frame, length: int, how: Format, pair: str | None = None, reorder: int = 0
    ) -> None:
        self.corpus, self.frame, self.reorder = corpus, frame, reorder
        texts = 2 if pair or reorder else 1
        self.bare = how == "blocks"
        self.room = length if self.bare else frame.room(length, texts)
        made: Any = SEGMENTS[pair] if pair else (reordering_classes(reorder) if reorder else 0, None)
        self.classes, self.make = made
        documents = (corpus.runs(number) for number in range(len(corpus)))
        firsts, counts, runs = array("q"), array("q"), array("q")  # eight bytes a number, where a list takes forty
        for first, pieces in sequences(documents, self.room, how, len(frame.separator)):
            if sum(end - start for start, end in pieces) >= FEWEST:
                firsts.append(first)
                counts.append(len(pieces))
                for piece in pieces:
                    runs.extend(piece)
        self.firsts = np.array(firsts, dtype=np.int64)
        self.ends = np.cumsum(counts, dtype=np.int64)
        self.runs = np.array(runs, dtype=np.int64).reshape(-1, 2)
        sizes = np.add.reduceat(self.runs[:, 1] - self.runs[:, 0], self.ends - counts) if firsts else np.zeros(0, int)
        self.lengths = sizes + (length - self.room)

    def draw(self, number: int, chance: np.random.Generator) -> Drawn:
        """Return a sequence, its segments in the order and with the label that chance gives them."""
        end = int(self.ends[number])
        start = int(self.ends[number - 1]) if number else 0
        document = int(self.firsts[number])
        pieces = [range(a, b) for a, b in self.runs[start:end].tolist()]
        if self.make is not None:
            pair: Pair = self.make(_Places(self.corpus), *halves(pieces, chance), document, chance)
            return self.frame.draw(self.corpus, self._fitted(pair.first, pair.second), pair.label)
        if self.reorder:
            parts, label = reordered(pieces, self.reorder, chance)
            return self.frame.draw(self.corpus, [joined(parts)], label)
        text: list[int] = []
        for number_of_piece, piece in enumerate(pieces):
            text += [-1] * (len(self.frame.separator) if number_of_piece else 0) + list(piece)
        return self.frame.draw(self.corpus, [text], bare=self.bare)

    def _fitted(self, first: Sequence[int], second: Sequence[int]) -> list[Sequence[int]]:
        """Truncate the longer text from its end until both fit."""
        over = len(first) + len(second) - self.room
        if over > 0 and len(first) > len(second):
            return [first[: max(len(first) - over, 1)], second]
        return [first, second[: max(len(second) - over, 1)] if over > 0 else second]


class Given:
    """Pairs of texts with labels that somebody gave: discourse relations, queries with results, and the like.

    Args:
        corpus: What ``labelled_pairs`` read, a document for each pair.
        frame: Special tokens.
        length: Most tokens of a sequence.
        names: Labels in the order of their classes, as the pairs to learn from have them; sorted by default.

    Raises:
        UserError: If a pair has a label that ``names`` lacks.
    """

    def __init__(self, corpus: Corpus, frame: Frame, length: int, names: Sequence[str] | None = None) -> None:
        self.corpus, self.frame = corpus, frame
        self.room = frame.room(length, 2)
        self.names = tuple(names or sorted(corpus.facts["labels"]))
        unknown = sorted(set(corpus.facts["labels"]) - set(self.names))
        if unknown:
            raise UserError(
                f"given pairs have the labels {', '.join(unknown)}, which those to learn from have not "
                f"({', '.join(self.names)}); the pairs of a task have the same labels in all splits and stages"
            )
        self.classes = len(self.names)
        self._class_of = [self.names.index(label) for label in corpus.facts["labels"]]
        sizes = np.diff(corpus.document_starts)
        self.documents = np.flatnonzero(sizes == 2)
        starts = corpus.sentence_starts[corpus.document_starts]
        self.lengths = np.minimum(np.diff(starts)[self.documents], self.room) + (length - self.room)

    def draw(self, number: int, chance: np.random.Generator) -> Drawn:
        """Return a pair with its label."""
        del chance
        document = int(self.documents[number])
        texts = _shortened(self.corpus.places(document), self.room)
        return self.frame.draw(self.corpus, texts, self._class_of[self.corpus.labels[document]])


class Translations:
    """Sentences with their translations, joined as in XLM, or the sentences of one language by themselves.

    Args:
        corpus: What ``translations`` read, a document for each pair.
        frame: Special tokens.
        length: Most tokens of a sequence.
        language: ``both``, or the ``source`` or ``target`` sentences alone.
        typed: Whether the token type of a target sentence is 1 when it is read alone too: XLM's language embeddings.
        restart: Whether positions of the second sentence begin anew.

    Source: Conneau, Lample 2019 (1901.07291).
    """

    classes = 0

    def __init__(
        self,
        corpus: Corpus,
        frame: Frame,
        length: int,
        language: str = "both",
        *,
        typed: bool = False,
        restart: bool = True,
    ) -> None:
        self.corpus, self.frame, self.language = corpus, frame, language
        self.typed, self.restart = typed, restart
        texts = 2 if language == "both" else 1
        self.room = frame.room(length, texts)
        self.documents = np.flatnonzero(np.diff(corpus.document_starts) == 2)
        starts = corpus.sentence_starts
        first = corpus.document_starts[self.documents]
        begin = first + (language == "target")
        end = first + (1 if language == "source" else 2)
        self.lengths = np.minimum(starts[end] - starts[begin], self.room) + (length - self.room)

    def draw(self, number: int, chance: np.random.Generator) -> Drawn:
        """Return a pair, or a sentence."""
        del chance
        pair = self.corpus.places(int(self.documents[number]))
        if self.language == "both":
            return self.frame.draw(self.corpus, _shortened(pair, self.room), restart=self.restart)
        second = self.language == "target"
        drawn = self.frame.draw(self.corpus, _shortened([pair[second]], self.room))
        if self.typed:
            drawn.types[:] = self.frame.types[second]
        return drawn


class Dialogues:
    """Dialogues of up to three turns; in half of them a turn is another dialogue's, which is the label (ERNIE 1.0).

    Token types alternate between the speakers, so that questions and responses differ as in the paper's dialogue
    embeddings.

    Args:
        corpus: What ``dialogues`` read, a document for each dialogue.
        frame: Special tokens.
        length: Most tokens of a sequence.
    """

    classes = 2
    TURNS = 3

    def __init__(self, corpus: Corpus, frame: Frame, length: int) -> None:
        self.corpus, self.frame, self.length = corpus, frame, length
        turns = np.diff(corpus.document_starts)
        starts = [(document, turn) for document, count in enumerate(turns) for turn in range(0, count - 1, 2)]
        self.starts = np.array(starts, dtype=np.int64).reshape(-1, 2)
        self.lengths = np.array([min(self._size(*start), length) for start in starts], dtype=np.int64)

    def draw(self, number: int, chance: np.random.Generator) -> Drawn:
        """Return turns that follow each other (1), or with one of another dialogue in the place of one (0)."""
        document, start = self.starts[number].tolist()
        turns: list[Sequence[int]] = [*self.corpus.places(document)[start : start + self.TURNS]]
        real = len(self.corpus) < 2 or chance.random() < 0.5
        if not real:
            other = int(chance.integers(len(self.corpus) - 1))
            strange = self.corpus.places(other + (other >= document))
            turns[int(chance.integers(1, len(turns)))] = strange[int(chance.integers(len(strange)))]
        turns = _shortened(turns, self.frame.room(self.length, len(turns)))
        return self.frame.draw(self.corpus, turns, int(real), roles=True)

    def _size(self, document: int, start: int) -> int:
        runs = self.corpus.runs(document)[start : start + self.TURNS]
        return runs[-1][1] - runs[0][0] + self.length - self.frame.room(self.length, len(runs))


class _Places:
    """A corpus whose sentences are places of tokens, for what makes pairs."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def sentences(self, document: int) -> list[range]:
        return self.corpus.places(document)


def _shortened(texts: Sequence[Sequence[int]], room: int) -> list[Sequence[int]]:
    """Truncate the longest text, again and again, until all fit."""
    sizes = [len(text) for text in texts]
    while sum(sizes) > room:
        sizes[sizes.index(max(sizes))] -= 1
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]


def labelled_pairs(sources: Sequence[Source], counts: Counts) -> Iterator[tuple[list[str], str]]:
    """Yield ``text_a`` and ``text_b`` of each row with its ``label``; rows that lack one of them are counted.

    Raises:
        UserError: If there are no rows, or all have one label.
    """
    names = Counter[str]()
    for row in (row for source in sources for row in source.rows()):
        if {"text_a", "text_b", "label"} <= row.values.keys():
            label = str(row.values["label"])
            names[label] += 1
            yield [str(row.values["text_a"]), str(row.values["text_b"])], label
        else:
            counts.refuse(row.where, row.problem or "has no text_a, text_b and label")
    if len(names) < 2:
        raise UserError(
            f"{', '.join(source.name for source in sources)}: has {names.total()} pairs with the labels "
            f"{sorted(names)}; give text_a, text_b and a label of two kinds or more in every row "
            f"({'; '.join(counts.problems) or 'no row is bad'})"
        )


def translations(sources: Sequence[Source], counts: Counts) -> Iterator[tuple[list[str], str]]:
    """Yield ``source`` and ``target`` of each row, the same in two languages; rows that lack one are counted."""
    for source in sources:
        for row in source.rows():
            pair = [row.values.get(name) for name in ("source", "target")]
            if all(isinstance(text, str) and text.strip() for text in pair):
                yield [str(text) for text in pair], ""
            else:
                counts.refuse(row.where, row.problem or "has no source and target")


def dialogues(sources: Sequence[Source], counts: Counts) -> Iterator[tuple[list[str], str]]:
    """Yield the ``turns`` of each row, a list of texts, two or more."""
    for source in sources:
        for row in source.rows():
            turns = row.values.get("turns")
            if isinstance(turns, list) and len(turns) > 1:
                yield [str(turn) for turn in turns], ""
            else:
                counts.refuse(row.where, row.problem or "has no list 'turns' of two texts or more")
