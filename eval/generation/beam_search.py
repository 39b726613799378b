"""Texts that are written by a decoder after it has read others, many at once, with numpy alone.

Whoever computes the scores gives a ``Decoding``; the tokens that are taken are decided here, so that a network in torch
and its export write the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, Protocol

import numpy as np

from eval.examples import Array, Reads

GROUP = 32
"""Scores of a row that are looked at together, where the largest of many are wanted."""


class Decoding(Protocol):
    """Rows of text that are being written.

    It may have a method ``best(ids, most)`` that returns what ``best_of`` finds in the scores of ``step``, without
    moving all of them.
    """

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    def step(self, ids: Array) -> Array:
        """Return the scores ``[rows, V]`` of the token after the newest of each row, ``ids`` ``[rows]``."""
        ...

    def keep(self, rows: Array) -> None:
        """Go on with these rows in this order; one may be left out, or come several times."""
        ...


def likeliest(decoding: Decoding, start: int, end: int, most: int) -> list[list[int]]:
    """Return the tokens that each row is continued with, the likeliest each time, up to an end, which is left out.

    Args:
        decoding: Computes scores; its rows are at their beginning.
        start: The token that every row begins with.
        end: The token that ends a row.
        most: Most tokens of a row, the end included.
    """
    found: list[list[int]] = [[] for _ in range(decoding.rows)]
    alive = np.arange(decoding.rows)
    ids = np.full(decoding.rows, start, dtype=np.int64)
    for _ in range(most):
        ids = decoding.step(ids).argmax(axis=-1)
        going = ids != end
        for row, token in zip(alive[going].tolist(), ids[going].tolist(), strict=True):
            found[row].append(token)
        alive, ids = alive[going], ids[going]
        if not len(alive):
            break
        if not going.all():
            decoding.keep(np.flatnonzero(going))
    return found


def searched(
    decoding: Decoding, start: int, end: int, most: int, beams: int, length_penalty: float = 1.0
) -> list[list[list[int]]]:
    """Return for each row the texts that a beam search finds, the best first, ``beams`` at most.

    Of each row ``beams`` beginnings are kept, those of the highest log-probability. A text that ends gets its
    log-probability divided by ``length ** length_penalty``, the end counted; a row is done once it has ``beams`` such
    texts and no beginning could, at its present length, get a better score than the worst of them. This is what
    transformers does with ``early_stopping=False``.

    Args:
        decoding: As for ``likeliest``.
        start: Likewise.
        end: Likewise.
        most: Likewise.
        beams: Beginnings that are kept, 1 or more.
        length_penalty: Above 0 longer texts are preferred, 0 compares sums.
    """
    rows = decoding.rows
    method: Callable[[Array, int], tuple[Array, Array]] | None = getattr(decoding, "best", None)
    best_next = method or (lambda ids, most: best_of(decoding.step(ids), most))
    done: list[list[tuple[float, list[int]]]] = [[] for _ in range(rows)]
    alive = list(range(rows))
    decoding.keep(np.repeat(np.arange(rows), beams))
    sums = np.full((rows, beams), -np.inf)
    sums[:, 0] = 0.0
    texts: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(rows)]
    ids = np.full(rows * beams, start, dtype=np.int64)
    for length in range(1, most + 1):
        beam_of, token_of, score_of = _candidates(*best_next(ids, 2 * beams), sums, 2 * beams)
        going, sources, tokens = list[int](), list[list[int]](), list[list[int]]()
        kept: list[list[list[int]]] = []
        for place, row in enumerate(alive):
            fresh: list[tuple[int, int, float]] = []
            best = zip(beam_of[place].tolist(), token_of[place].tolist(), score_of[place].tolist(), strict=True)
            for rank, (beam, token, score) in enumerate(best):
                if token == end or length == most:
                    if rank < beams and np.isfinite(score):
                        own = texts[place][beam] + ([] if token == end else [token])
                        done[row].append((score / length**length_penalty, own))
                elif len(fresh) < beams:
                    fresh.append((beam, token, score))
            done[row] = sorted(done[row], key=lambda one: -one[0])[:beams]
            if not fresh or (len(done[row]) == beams and done[row][-1][0] >= fresh[0][2] / length**length_penalty):
                continue
            going.append(row)
            sources.append([place * beams + beam for beam, _, _ in fresh])
            tokens.append([token for _, token, _ in fresh])
            sums[len(kept)] = [score for _, _, score in fresh]
            kept.append([[*texts[place][beam], token] for beam, token, _ in fresh])
        if not going:
            break
        alive, texts, sums = going, kept, sums[: len(going)]
        decoding.keep(np.array(sources, dtype=np.int64).reshape(-1))
        ids = np.array(tokens, dtype=np.int64).reshape(-1)
    return [[ids for _, ids in own] or [[]] for own in done]


def best_of(scores: Array, most: int) -> tuple[Array, Array]:
    """Return the likeliest tokens of each row and their log-probabilities ``[rows, most]``, in the order of tokens.

    The best of a row are among the best of each of its beams, so most of the words are looked at once.

    Args:
        scores: Of the next token, ``[rows, V]``.
        most: How many are wanted; with a small vocabulary there are fewer.
    """
    most = min(most, scores.shape[-1])
    highest = scores.max(axis=-1, keepdims=True)
    totals = np.log(np.exp(scores - highest).sum(axis=-1, dtype=np.float64)) + highest[:, 0]
    tokens = np.sort(_places_of_largest(scores, most), axis=-1)
    return tokens, scores[_each_row(scores), tokens] - totals[:, None]


def _places_of_largest(scores: Array, most: int) -> Array:
    """Return the places of the ``most`` largest scores of each row ``[rows, most]``, in no order.

    They are in those ``most`` groups of the row whose largest scores are the largest, or behind the last whole group,
    so few of a long row have to be compared with each other. A group's scores are ``groups`` places apart, which lets
    numpy find the largest of all groups at once.
    """
    rows, words = scores.shape
    groups = words // GROUP
    if groups <= 2 * most:
        return np.argpartition(scores, words - most, axis=-1)[:, -most:]
    inside = groups * GROUP
    highest = scores[:, :inside].reshape(rows, GROUP, groups).max(axis=1)
    chosen = np.argpartition(highest, groups - most, axis=-1)[:, -most:]
    places = (chosen[:, :, None] + np.arange(0, inside, groups)).reshape(rows, -1)
    behind = np.broadcast_to(np.arange(inside, words), (rows, words - inside))
    places = np.concatenate([places, behind], axis=-1)
    each = _each_row(scores)
    few = np.argpartition(scores[each, places], places.shape[-1] - most, axis=-1)[:, -most:]
    found: Array = places[each, few]
    return found


def _each_row(values: Array) -> Array:
    return np.arange(len(values))[:, None]


def _candidates(tokens: Array, found: Array, sums: Array, count: int) -> tuple[Array, Array, Array]:
    """Return how each row goes on best: beams, tokens and log-probabilities ``[rows, count]``, the highest first.

    Args:
        tokens: The likeliest of each beginning, ``[rows · beams, most]``.
        found: Their log-probabilities.
        sums: Log-probabilities of the beginnings, ``[rows, beams]``.
        count: How many are wanted; with a small vocabulary there are fewer.
    """
    (rows, beams), most = sums.shape, tokens.shape[-1]
    found, tokens = (found + sums.reshape(-1, 1)).reshape(rows, -1), tokens.reshape(rows, -1)
    order = np.argsort(-found, axis=-1, kind="stable")[:, : min(count, beams * most)]
    beam_of = np.repeat(np.arange(beams), most)[order]
    return beam_of, tokens[_each_row(order), order], found[_each_row(order), order]


def same_tokens(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the share of two texts that they have in common in their order, 1 for two that are empty.

    Examples:
        >>> same_tokens("a man in a hat".split(), "a man with a hat".split())
        0.8
    """
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


class Writing:
    """What kinds of task have in common that answer a text with another one."""

    def in_common(self, one: Sequence[int], other: Sequence[int]) -> float:
        """Return the share of two texts, given as tokens, that they have in common in their order."""
        return same_tokens(one, other)

    def written(self, settings: Reads, decoding: Decoding) -> list[list[int]]:
        """Return the tokens that are written for each row, without the one that ends it.

        Args:
            settings: Those of the encoder: how long a text may get, and how it is searched.
            decoding: Computes scores; its rows are at their beginning.
        """
        return [own[0] for own in self.written_several(settings, decoding)]

    def written_several(self, settings: Reads, decoding: Decoding) -> list[list[list[int]]]:
        """Return for each row the tokens of all texts that were found, the best first; without beams it is one.

        Args:
            settings: As for ``written``.
            decoding: Likewise.
        """
        start, end, most = settings.start_id, settings.end_id, settings.target_length
        if settings.beams <= 1:
            return [[ids] for ids in likeliest(decoding, start, end, most)]
        return searched(decoding, start, end, most, settings.beams, settings.length_penalty)
