"""Tags of words: those that the data holds, or parts of speech from a spaCy pipeline (an optional extra)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from compress.augment.sentence import Sentence
from eval.errors import UserError

Tagger = Callable[[Sequence[Sentence]], list[list[str]]]
"""Returns one tag a word for every sentence."""

DATA = "data"
"""Name of the tagger that takes the tags in the data."""
INSTALL = "pip install 'nlp-compress[tagger]'"
EXAMPLE = "en_core_web_sm"
CURES = (
    f"name a spaCy pipeline such as tagger: {EXAMPLE} ({INSTALL}, then python -m spacy download {EXAMPLE}), "
    f"write tagger: {DATA} where the data has tokens with tags, or set pos to 0"
)


def open_tagger(name: str) -> Tagger:
    """Return a tagger by its name: ``data``, or a spaCy pipeline (its package or folder).

    Raises:
        UserError: If spaCy or the pipeline is not installed; the message holds the command that installs it.
    """
    if name == DATA:
        return tags_of_data
    if find_spec("spacy") is None:
        raise UserError(f"tagger: {name!r} is a spaCy pipeline, and spaCy is not installed; {CURES}")
    import spacy

    try:
        pipeline = spacy.load(name, exclude=["parser", "ner", "lemmatizer"])
    except OSError as error:
        raise UserError(
            f"tagger: there is no spaCy pipeline {name!r}; get it with python -m spacy download {name}, or name another"
        ) from error
    return SpacyTagger(pipeline)


def tags_of_data(sentences: Sequence[Sentence]) -> list[list[str]]:
    """Return the tags that the examples hold.

    Raises:
        UserError: If there are none.
    """
    found = []
    for sentence in sentences:
        if sentence.tags is None:
            raise UserError(f"tagger: {DATA}: {sentence.text[:60]!r} has no tags; {CURES}")
        found.append(list(sentence.tags))
    return found


@dataclass(frozen=True)
class SpacyTagger:
    """Parts of speech from a spaCy pipeline (Honnibal et al., https://spacy.io).

    Attributes:
        pipeline: A loaded pipeline with a tagger; its fine-grained tags are taken where it gives any.
    """

    pipeline: Any

    def __call__(self, sentences: Sequence[Sentence]) -> list[list[str]]:
        """Return one tag a word; the tagger sees the punctuation between them too."""
        from spacy.tokens import Doc

        places: list[list[int]] = []
        documents = []
        for sentence in sentences:
            tokens, own = _tokens(sentence)
            documents.append(Doc(self.pipeline.vocab, words=tokens))
            places.append(own)
        tagged = self.pipeline.pipe(documents, batch_size=256)
        return [
            [document[place].tag_ or document[place].pos_ for place in own]
            for document, own in zip(tagged, places, strict=True)
        ]


def _tokens(sentence: Sentence) -> tuple[list[str], list[int]]:
    """Return words and punctuation in order, and the places of the words among them."""
    tokens: list[str] = []
    places: list[int] = []
    for gap, word in zip(sentence.gaps, (*sentence.words, ""), strict=True):
        tokens += gap.split()
        if word:
            places.append(len(tokens))
            tokens.append(word)
    return tokens, places
