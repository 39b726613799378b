"""The first stage of a search, whose documents a reranker puts into another order: BM25 by the words of the query."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from eval.errors import UserError
from eval.ranking.best import largest
from eval.ranking.document_set import Corpus

WORDS = re.compile(r"[^\W\u3040-\u30ff\u3400-\u9fff]{2,}|[\u3040-\u30ff\u3400-\u9fff]")
"""Words of two characters or more; each character of Chinese and Japanese for itself."""


def candidates(corpus: Corpus, queries: Sequence[tuple[str, str]], count: int) -> list[tuple[str, ...]]:
    """Return the ids of the documents that share the rarest words with each query, best first.

    BM25 with ``k1 = 1.5`` and ``b = 0.75``, of lower-cased words without a list of stop words, by the library ``bm25s``
    (Lù 2024, arXiv 2407.03618). Source of the formula: Robertson and Zaragoza 2009, "The probabilistic relevance
    framework: BM25 and beyond".

    Args:
        corpus: The documents.
        queries: Id and text of each query.
        count: Most documents of a query; those that share no word with it are left out.

    Raises:
        UserError: The library is not installed.
    """
    index, found = _index(corpus), []
    for name, text in queries:
        words = _words([text])[0]
        scores = index.get_scores(words) if index is not None and words else np.zeros(len(corpus.ids))
        places = [place for place in largest(scores, count + 1).tolist() if scores[place] > 0]
        found.append(tuple(corpus.ids[at] for at in places if not corpus.is_query(at, name, text))[:count])
    return found


@lru_cache(maxsize=1)
def _index(corpus: Corpus) -> Any:
    """Return the index of documents, which all splits of a task share; None if no document has a word."""
    # It tries JAX, where that is installed, which by itself takes three quarters of a GPU and leaves torch too little.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import bm25s
    except ImportError as error:
        raise UserError(
            "the first stage of a reranking task needs the library bm25s; run: pip install 'nlp-compress[retrieval]'"
        ) from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it writes of each index
    index, words = bm25s.BM25(), _words(corpus.texts)
    if not any(words):
        return None
    index.index(words, show_progress=False)
    return index


def _words(texts: Sequence[str]) -> list[list[str]]:
    """Return the words of each text."""
    return [WORDS.findall(text.lower()) for text in texts]
