"""Seeded rules that perturb a text: typos, casing, negation, length.

A rule takes the words of a text and a source of chance, and returns other words. A word carries its tag along, so that
tags stay aligned with words wherever words come or go. The same words and the same seed give the same result.

Source:
    Naik et al. 2018, Stress Test Evaluation for Natural Language Inference, arXiv 1806.00692 (negation, length, typos);
    Pruthi et al. 2019, Combating Adversarial Misspellings, arXiv 1905.11268 (slips inside of words of four letters or
    more); Ribeiro et al. 2020, Beyond Accuracy: Behavioral Testing of NLP Models with CheckList, arXiv 2005.04118.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal, NamedTuple

OUTSIDE = "O"
"""Tag of a word that a rule inserts."""
MISSPELT = 10
"""One of so many words that can be misspelt is, and at least one."""
SHORTEST = 4
"""Letters of the shortest word that is misspelt; its first and last stay."""
KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
"""Rows of a keyboard, each half a key to the right of the one above."""
BE, DO, HAVE = ("am", "is", "are", "was", "were"), ("do", "does", "did"), ("has", "have", "had")
MODALS = ("can", "could", "will", "would", "shall", "should", "may", "might", "must")
AUXILIARIES = frozenset((*BE, *DO, *HAVE, *MODALS))
NEGATIONS = frozenset(("not", "never", "no", "n't"))
"""Words that are taken away."""
CONTRACTED = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall"}
"""Negated verbs that are more than a verb with n't at its end."""
NEUTRAL = (("This", "was", "written", "down"), ("These", "are", "the", "words"), ("Here", "is", "the", "text"))
"""Sentences that say nothing about any text."""


class Word(NamedTuple):
    """A word of a text.

    Attributes:
        text: Its letters, with the punctuation that touches them.
        tag: Its tag, in a sentence that is tagged.
        gap: White space after it.
    """

    text: str
    tag: str = OUTSIDE
    gap: str = " "


Words = Sequence[Word]


@dataclass(frozen=True)
class Rule:
    """A way to perturb a text.

    Attributes:
        name: What tables call it.
        change: Words and chance -> other words, at least one; equal ones where the rule finds nothing to do.
        texts: Which of several texts of an example it changes.
        keeps_truth: Whether the truth is taken to stay what it is, so that answers can be scored.
        inserts: Whether words come in whose tag counts.
    """

    name: str
    change: Callable[[Words, Random], list[Word]]
    texts: Literal["all", "first", "last"] = "all"
    keeps_truth: bool = True
    inserts: bool = False


def words_of(text: str) -> list[Word]:
    """Return the words of a text; white space before the first is lost."""
    return [Word(word, gap=gap or " ") for word, gap in re.findall(r"(\S+)(\s*)", text)]


def text_of(words: Words) -> str:
    """Return the text that words make."""
    return "".join(word.text + word.gap for word in words).strip()


def neighbouring_keys(word: str) -> list[str]:
    """Return the word with each inner letter replaced by each of its neighbours on the keyboard, in its own case."""
    return [
        word[:place] + (key.upper() if word[place].isupper() else key) + word[place + 1 :]
        for place in _inner(word)
        for key in _neighbours(word[place].lower())
    ]


def swapped_letters(word: str) -> list[str]:
    """Return the word with each two inner letters beside each other swapped, where they differ."""
    inner = set(_inner(word))
    return [
        word[:place] + word[place + 1] + word[place] + word[place + 2 :]
        for place in sorted(inner)
        if place + 1 in inner and word[place] != word[place + 1]
    ]


def dropped_letters(word: str) -> list[str]:
    """Return the word without each of its inner letters."""
    return [word[:place] + word[place + 1 :] for place in _inner(word)]


def misspelt(words: Words, chance: Random, slips: Callable[[str], list[str]]) -> list[Word]:
    """Misspell one in ten of the words that can be, at least one.

    Args:
        words: Of a text.
        chance: Chooses words and slips.
        slips: The misspelt forms of a word, if any.
    """
    found = list(words)
    forms = {place: known for place, word in enumerate(words) if (known := slips(word.text))}
    number = min(len(forms), max(1, len(forms) // MISSPELT))
    for place in chance.sample(list(forms), number):
        found[place] = words[place]._replace(text=chance.choice(forms[place]))
    return found


def recased(words: Words, chance: Random, case: Callable[[str], str]) -> list[Word]:
    """Write every word in another case."""
    del chance
    return [word._replace(text=case(word.text)) for word in words]


def titled(word: str) -> str:
    """Return the word in lower case with its first letter in upper case, whatever stands before that."""
    return re.sub(r"[^\W\d_]", lambda letter: letter[0].upper(), word.lower(), count=1)


def negated(words: Words, chance: Random) -> list[Word]:
    """Take the first negation away; where there is none, insert "not" after the first auxiliary verb, else in front.

    It knows English alone. A text that is nothing but a negation gets another one.
    """
    del chance
    for place, word in enumerate(words):
        bare = _bare(word.text)
        if bare in NEGATIONS and len(words) > 1:
            return [*words[:place], *words[place + 1 :]]
        if bare in CONTRACTED or (bare.endswith("n't") and bare != "n't"):
            positive = CONTRACTED.get(bare, bare.removesuffix("n't"))
            return [*words[:place], word._replace(text=_like(word.text, bare, positive)), *words[place + 1 :]]
    verb = next((place for place, word in enumerate(words) if word.text.lower() in AUXILIARIES), -1)
    return [*words[: verb + 1], Word("not"), *words[verb + 1 :]]


def half(words: Words, chance: Random) -> list[Word]:
    """Keep the first half of the words, the middle one included."""
    del chance
    return list(words[: (len(words) + 1) // 2])


def padded(words: Words, chance: Random, before: bool) -> list[Word]:
    """Put a sentence that says nothing before the text or after it."""
    *first, last = chance.choice(NEUTRAL)
    sentence = [*map(Word, first), Word(last, gap=""), Word(".")]
    return [*sentence, *words] if before else [*words, *sentence]


def _inner(word: str) -> list[int]:
    """Return the places of the letters of a word but its first and last; none of a short word."""
    letters = [place for place, character in enumerate(word) if character.isalpha()]
    return letters[1:-1] if len(letters) >= SHORTEST else []


def _neighbours(letter: str) -> list[str]:
    for row, keys in enumerate(KEYS):
        place = keys.find(letter)
        if place >= 0:
            near = [(row, place - 1), (row, place + 1)]
            near += [(row - 1, place), (row - 1, place + 1), (row + 1, place - 1), (row + 1, place)]
            return [KEYS[r][p] for r, p in near if 0 <= r < len(KEYS) and 0 <= p < len(KEYS[r])]
    return []


def _bare(word: str) -> str:
    """Return a word in lower case without the punctuation around it, its apostrophe straight."""
    return word.lower().replace("\u2019", "'").strip('.,;:!?"()[]')


def _like(word: str, bare: str, positive: str) -> str:
    """Return ``positive`` in the case and with the punctuation of a word whose bare form is ``bare``."""
    start = word.lower().replace("\u2019", "'").index(bare)
    own = word[start : start + len(bare)]
    cased = positive.upper() if own.isupper() else positive.capitalize() if own[:1].isupper() else positive
    return word[:start] + cased + word[start + len(bare) :]


RULES = (
    Rule("neighbouring keys", partial(misspelt, slips=neighbouring_keys)),
    Rule("swapped letters", partial(misspelt, slips=swapped_letters)),
    Rule("dropped letters", partial(misspelt, slips=dropped_letters)),
    Rule("upper case", partial(recased, case=str.upper)),
    Rule("lower case", partial(recased, case=str.lower)),
    Rule("title case", partial(recased, case=titled)),
    Rule("negation", negated, texts="last", keeps_truth=False),
    Rule("first half", half),
    Rule("sentence before", partial(padded, before=True), texts="first", inserts=True),
    Rule("sentence after", partial(padded, before=False), texts="last", inserts=True),
)
"""All rules, in the order of tables."""
