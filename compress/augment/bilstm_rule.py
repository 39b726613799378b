"""Masked words, words of the same part of speech, and random parts: the rules of the distilled BiLSTM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from compress.augment.rule import Draw
from compress.augment.sentence import Sentence, is_word
from compress.augment.tagger import Tagger
from eval.errors import UserError

LONGEST = 5
"""Most words of a random part."""
TURNS = ((0,), (1,), (0, 1))
"""Which texts of a pair are changed, copy after copy."""


@dataclass(frozen=True)
class BilstmRule:
    """Tang et al. 2019, arXiv 1903.12136, section 3.3: text for a teacher to label.

    Each word draws X once, uniformly from 0 to 1: ``X < mask`` makes it the mask word, ``mask <= X < mask + pos`` a
    word of the same tag, drawn from all words of the corpus with that tag, each as often as it occurs. Then, with
    probability ``ngram``, the text becomes n neighbouring words of it, n uniformly from 1 to 5 (or all words, if there
    are fewer). Of a pair, the first, the second and both are changed in turn. Punctuation is no word and stays.

    Attributes:
        mask: Probability of a mask.
        pos: Probability of another word of the same tag.
        ngram: Probability of a random part.
        mask_word: What a masked word becomes: the mask token of the teacher's tokenizer.
        tagger: Gives every word its tag; not read if ``pos`` is 0.
    """

    mask: float = 0.1
    pos: float = 0.1
    ngram: float = 0.25
    mask_word: str = "[MASK]"
    tagger: Tagger | None = None
    name: str = "bilstm"
    keeps_label: bool = False

    def members(self, copy: int) -> tuple[int, ...]:
        """Return the first text, the second, or both, in turn."""
        return TURNS[(copy - 1) % len(TURNS)]

    def fit(self, sentences: Sequence[Sentence]) -> Draw:
        """Tag every word and gather the words of each tag.

        Raises:
            UserError: If words of the same tag are asked for and there is no tagger.
        """
        tags: list[list[str]] = []
        words: dict[str, list[str]] = defaultdict(list)
        if self.pos:
            if self.tagger is None:
                raise UserError("pos: needs a tagger; name one, or set pos to 0")
            tags = self.tagger(sentences)
            for sentence, own in zip(sentences, tags, strict=True):
                for word, tag in zip(sentence.words, own, strict=True):
                    if is_word(word):
                        words[tag].append(word)

        def draw(index: int, chance: Random) -> Sentence:
            sentence = sentences[index]
            changed = []
            for place, word in enumerate(sentence.words):
                x = chance.random() if is_word(word) else 1.0
                if x < self.mask:
                    word = self.mask_word
                elif x < self.mask + self.pos:
                    word = chance.choice(words[tags[index][place]])
                changed.append(word)
            return self._part(sentence.with_words(changed), chance)

        return draw

    def _part(self, sentence: Sentence, chance: Random) -> Sentence:
        if not sentence.words or chance.random() >= self.ngram:
            return sentence
        count = min(chance.randint(1, LONGEST), len(sentence.words))
        return sentence.part(chance.randrange(len(sentence.words) - count + 1), count)
