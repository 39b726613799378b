"""How far the logits of one model are from those of another, and how many of its decisions are the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from eval.encoding import Array, EncoderSettings, Feature, TextEncoder
from eval.inference import cosines

SCORE_MARGIN = 0.05
"""Scores of a regression agree when they differ by at most this share of the largest."""
VECTOR_MARGIN = 0.05
"""Vectors of an embedding agree when the cosine of the two is at least 1 less this."""


class Seen:
    """What a comparison of two models has found so far."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings = settings
        self.problems: list[str] = []
        self.largest = self.scale = self.total = 0.0
        self.count = 0
        self.regrets: list[Array] = []

    @property
    def mean(self) -> float:
        """Mean difference of the logits."""
        return self.total / max(1, self.count)

    def agreement(self, tie: float) -> float:
        """Return the share of decisions that are equal, or as good for the reference within ``tie``."""
        regrets = np.concatenate([np.zeros(0), *self.regrets])
        if self.settings.kind in ("regression", "embedding"):
            tie = max(tie, VECTOR_MARGIN if self.settings.kind == "embedding" else SCORE_MARGIN * self.scale)
        return float((regrets <= tie).mean()) if regrets.size else 1.0

    def add(
        self, features: Sequence[Feature], encoder: TextEncoder, expected: Array, found: Array, decide: bool
    ) -> None:
        """Count the logits of one batch.

        Args:
            features: The rows; of multiple-choice, all choices of an example.
            encoder: What made the batch of them.
            expected: Logits of the reference.
            found: Logits of the export.
            decide: Whether its decisions count too.
        """
        if expected.shape != found.shape:
            self.problems.append(f"logits have shape {found.shape}, the model's {expected.shape}")
            return
        for feature, one, other in zip(features, expected, found, strict=True):
            if one.ndim == 2:
                place = encoder.place(len(feature.ids), one.shape[0])
                one, other = one[place], other[place]
            if not np.isfinite(other).all():
                self.problems.append("logits are not finite")
                continue
            difference = np.abs(one - other)
            self.largest = max(self.largest, float(difference.max(initial=0)))
            self.scale = max(self.scale, float(np.abs(one).max(initial=0)))
            self.total, self.count = self.total + float(difference.sum()), self.count + difference.size
            if decide and self.settings.kind != "multiple-choice":
                self.regrets.append(_regret(self.settings.kind, feature, one, other))
        if decide and self.settings.kind == "multiple-choice":
            for _, own in groupby(range(len(features)), key=lambda row: features[row].example):
                rows = list(own)
                self.regrets.append(_regret(self.settings.kind, features[rows[0]], expected[rows, 0], found[rows, 0]))


def _regret(kind: str, feature: Feature, expected: Array, found: Array) -> Array:
    """Return, for each decision, how much the reference prefers its own answer to the export's; 0 for the same one."""
    if kind == "regression":
        return np.asarray(np.abs(expected - found))
    if kind == "embedding":
        return 1 - cosines(expected[None], found[None])
    if kind == "tagging":
        places = [place for place, word in enumerate(feature.words or ()) if word >= 0]
        expected, found = expected[places], found[places]
    elif kind == "qa":
        places = [place for place, offset in enumerate(feature.offsets or ()) if offset is not None]
        expected, found = expected[places].T, found[places].T
    expected, found = np.atleast_2d(expected), np.atleast_2d(found)
    if not expected.size:
        return np.zeros(0)
    rows = np.arange(len(expected))
    return np.asarray(expected.max(axis=-1) - expected[rows, found.argmax(axis=-1)])
