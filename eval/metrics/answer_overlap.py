"""How alike an extracted answer and an expected one are, as the scripts of SQuAD and CMRC 2018 count it.

Sources: Rajpurkar et al. 2016, arXiv 1606.05250 (English: words without case, punctuation and articles);
Cui et al. 2019, arXiv 1810.07366 (Chinese: every character is a word, and Chinese punctuation is left out too).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from functools import lru_cache

ARTICLES = re.compile(r"\b(a|an|the)\b")
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Kana and Chinese characters."""
WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
ASCII_PUNCTUATION = frozenset(string.punctuation)


@lru_cache(maxsize=65536)
def answer_words(text: str) -> tuple[str, ...]:
    """Return the words that count: lower case, no punctuation, no English articles, each CJK character by itself."""
    text = text.lower()
    if re.search(f"[{CJK}]", text):
        text = "".join(c for c in text if c not in ASCII_PUNCTUATION and not unicodedata.category(c).startswith("P"))
    else:
        text = "".join(c for c in text if c not in ASCII_PUNCTUATION)
    return tuple(WORD.findall(ARTICLES.sub(" ", text)))


def exact_match(answer: str, expected: str) -> float:
    """Return 1.0 if the words that count are the same, else 0.0."""
    return float(answer_words(answer) == answer_words(expected))


def token_f1(answer: str, expected: str) -> float:
    """Return the F1 of the words that count; 1.0 if neither text has any."""
    found, wanted = answer_words(answer), answer_words(expected)
    if found == wanted or not found or not wanted:
        return float(found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted))
