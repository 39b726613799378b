"""How alike written texts and right ones are: BLEU and chrF as sacrebleu counts them, ROUGE as rouge-score does.

Scores are fractions, as all scores are: BLEU 0.33 is sacrebleu's 33.0. An example becomes the counts that its library
sums over a corpus, so any resample costs a sum. Of several right texts BLEU takes the counts of all, chrF and ROUGE the
best one.

BLEU: Papineni et al. 2002; its signature is sacrebleu's default (13a, mixed case, exponential smoothing), Post 2018,
arXiv 1804.08771. chrF: Popović 2015. ROUGE-1, ROUGE-2 and ROUGE-L with stemming: Lin 2004; words with letters beyond a
to z count as they are, and each Chinese character as a word.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from eval.errors import MissingLibraryError
from eval.examples import Answer, Asks, Example
from eval.metrics.scorers import Prepare, Scorer, Values, mean

MISSING = "{name} is not installed; install it with: pip install 'nlp-compress[text]'"
ROUGE = {"rouge1": "rouge1", "rouge2": "rouge2", "rougel": "rougeL"}
"""Name of a metric -> what rouge-score calls it."""


NO_SPACES = re.compile("[\u2e80-\u30ff\u3100-\u312f\u31a0-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""A character of a script that puts no spaces between words, Chinese or Japanese; each counts as a word."""


class AnyScript:
    """The words of a text in any script, for rouge-score, whose own know the letters a to z and digits alone.

    Args:
        plain: rouge-score's own, which gives the words of such texts, and stems them.
    """

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def tokenize(self, text: str) -> list[str]:
        """Return the words in lower case."""
        if text.isascii():
            return list(self.plain.tokenize(text))
        spaced = NO_SPACES.sub(r" \g<0> ", unicodedata.normalize("NFKC", text.lower()))
        words = "".join(one if unicodedata.category(one)[0] in "LMN" else " " for one in spaced).split()
        return [found for word in words for found in (self.plain.tokenize(word) if word.isascii() else [word])]


def references(example: Example) -> list[str]:
    """Return all right texts of an example, its target first."""
    return [example["target"], *example.get("references", ())]


def bleu(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """BLEU of the corpus."""
    del spec
    return _corpus(_bleu(False), answers, examples)


def chrf(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Return chrF of the corpus: character n-grams up to 6, recall twice as heavy."""
    del spec
    return _corpus(_chrf(), answers, examples)


def sentence_bleu(answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return BLEU of each text alone, over those n-grams that it has."""
    return _each(_bleu(True), answers, examples)


def sentence_chrf(answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return chrF of each text alone."""
    return _each(_chrf(), answers, examples)


def rouge(name: str) -> Prepare:
    """Return the mean of one kind of ROUGE, as a metric.

    Args:
        name: rouge1, rouge2 or rougel.
    """

    def prepare(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        del spec
        return mean(rouge_values(name, answers, examples))

    return prepare


def rouge_values(name: str, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return the F-measure of each text against the right text that is nearest."""
    scorer, kind = _rouge(name), ROUGE[name]
    found = [
        max(scorer.score(right, answer["text"])[kind].fmeasure for right in references(example))
        for answer, example in zip(answers, examples, strict=True)
    ]
    return np.array(found, dtype=np.float64)


def _corpus(metric: Any, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    counts = _counts(metric, answers, examples)
    return lambda indices: float(metric._compute_score_from_stats(counts[indices].sum(axis=0).tolist()).score) / 100


def _each(metric: Any, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    counts = _counts(metric, answers, examples)
    scores = [float(metric._compute_score_from_stats(row.tolist()).score) / 100 for row in counts]
    return np.array(scores, dtype=np.float64)


def _counts(metric: Any, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return what a metric of sacrebleu counts in each text, ``[N, counts]``."""
    right = [references(example) for example in examples]
    most = max(map(len, right), default=1)
    columns = [[own[place] if place < len(own) else None for own in right] for place in range(most)]
    texts = [answer["text"] for answer in answers]
    return np.array(metric._extract_corpus_statistics(texts, columns), dtype=np.float64)


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the log as it is: what rouge-score imports adds a handler to it."""
    before = list(logging.root.handlers)
    try:
        yield
    finally:
        logging.root.handlers[:] = before


def _library(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        raise MissingLibraryError(MISSING.format(name=name)) from error


@cache
def _bleu(alone: bool) -> Any:
    def load() -> Any:
        from sacrebleu.metrics import BLEU

        return BLEU(effective_order=alone)

    return _library("sacrebleu", load)


@cache
def _chrf() -> Any:
    def load() -> Any:
        from sacrebleu.metrics import CHRF

        return CHRF()

    return _library("sacrebleu", load)


@cache
def _rouge(name: str) -> Any:
    def load() -> Any:
        with _own_handlers():
            from rouge_score.rouge_scorer import RougeScorer
            from rouge_score.tokenizers import DefaultTokenizer

            return RougeScorer([ROUGE[name]], tokenizer=AnyScript(DefaultTokenizer(use_stemmer=True)))

    return _library("rouge-score", load)
