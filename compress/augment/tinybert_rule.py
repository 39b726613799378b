"""Words replaced by what a masked-language model or their neighbours suggest: the augmentation of TinyBERT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from compress.augment.masked_lm_words import MaskedWords
from compress.augment.neighbours import WordVectors
from compress.augment.rule import Draw
from compress.augment.sentence import Sentence
from compress.augment.stop_words import STOP_WORDS


@dataclass(frozen=True)
class TinyBertRule:
    """Jiao et al. 2020, arXiv 1909.10351, algorithm 1: copies that keep the label.

    Every alphabetic word that is no stop word has candidates: if it is one piece, the ``candidates`` likeliest words
    that a masked-language model puts in its place, else those nearest to it among word vectors. They are found once
    a text. In each copy each such word becomes one of them, all equally likely, with probability ``replace``.

    The word itself is never among its candidates, so that words change at the rate ``replace``; in the paper's code
    it may be, and pieces that are no whole words are dropped after the best were taken, not before. Both texts of a
    pair are changed.

    Attributes:
        masked: Gives words in the place of another.
        vectors: Gives neighbours of a word.
        replace: Probability that a word is replaced (p_t).
        candidates: Candidates of a word (K).
    """

    masked: MaskedWords
    vectors: WordVectors
    replace: float = 0.4
    candidates: int = 15
    name: str = "tinybert"
    keeps_label: bool = True

    def members(self, copy: int) -> tuple[int, ...]:
        """Return both texts of a pair."""
        del copy
        return (0, 1)

    def fit(self, sentences: Sequence[Sentence]) -> Draw:
        """Find the candidates of every word; equal texts are looked at once."""
        # Of a tagging task one text may be cut into words in two ways.
        texts = {(one.words, one.gaps): place for place, one in reversed(list(enumerate(sentences)))}
        distinct = [sentences[place] for place in texts.values()]
        of_text = dict(zip(texts, self._candidates(distinct), strict=True))

        def draw(index: int, chance: Random) -> Sentence:
            sentence = sentences[index]
            words = list(sentence.words)
            for place, others in of_text[sentence.words, sentence.gaps].items():
                if chance.random() < self.replace:
                    words[place] = chance.choice(others)
            return sentence.with_words(words)

        return draw

    def work(self, sentences: Sequence[Sentence]) -> list[int]:
        """Return the lengths, in pieces, of everything that the masked-language model would read."""
        pieces = [self.masked.pieces(sentence, _content(sentence)) for sentence in sentences]
        return [len(own.feature.ids) for own in pieces for _ in own.single]

    def _candidates(self, sentences: Sequence[Sentence]) -> list[dict[int, tuple[str, ...]]]:
        pieces = [self.masked.pieces(sentence, _content(sentence)) for sentence in sentences]
        near = self.vectors.nearest(
            (sentence.words[place] for sentence, own in zip(sentences, pieces, strict=True) for place in own.several),
            self.candidates,
        )
        found = self.masked.candidates(sentences, pieces, self.candidates)
        for sentence, own, candidates in zip(sentences, pieces, found, strict=True):
            words = {place: sentence.words[place] for place in own.several}
            candidates.update((place, near[word]) for place, word in words.items() if word in near)
        return [{place: words for place, words in sorted(own.items()) if words} for own in found]


def _content(sentence: Sentence) -> list[int]:
    """Return the places of alphabetic words that are no stop words."""
    return [place for place, word in enumerate(sentence.words) if word.isalpha() and word.casefold() not in STOP_WORDS]
