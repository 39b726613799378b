"""How far the logits of one model are from those of another, and how many of its predictions are the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from eval.encoding import Array, EncoderSettings, Feature, TextEncoder
from eval.kinds.kind_registry import kind_of


class Seen:
    """What a comparison of two models has found so far."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings, self.kind = settings, kind_of(settings.kind)
        self.problems: list[str] = []
        self.largest = self.scale = self.total = 0.0
        self.count = 0
        self.regrets: list[Array] = []

    @property
    def mean(self) -> float:
        """Mean difference of the logits."""
        return self.total / max(1, self.count)

    def agreement(self, tie: float) -> float:
        """Return the share of predictions that are equal, or as good for the reference within ``tie``."""
        regrets = np.concatenate([np.zeros(0), *self.regrets])
        tie = max(tie, self.kind.tie(self.scale))
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
            decide: Whether its predictions count too.
        """
        if expected.shape != found.shape:
            self.problems.append(f"logits have shape {found.shape}, the model's {expected.shape}")
            return
        for feature, one, other in zip(features, expected, found, strict=True):
            one, other = encoder.unpadded(feature, one), encoder.unpadded(feature, other)
            if not np.isfinite(other).all():
                self.problems.append("logits are not finite")
                continue
            difference = np.abs(one - other)
            self.largest = max(self.largest, float(difference.max(initial=0)))
            self.scale = max(self.scale, float(np.abs(one).max(initial=0)))
            self.total, self.count = self.total + float(difference.sum()), self.count + difference.size
            if decide and not self.kind.joined:
                self.regrets.append(self.kind.regret(self.settings, feature, one, other))
        if decide and self.kind.joined:
            for _, own in groupby(range(len(features)), key=lambda row: features[row].example):
                rows = list(own)
                scores = expected[rows, 0], found[rows, 0]
                self.regrets.append(self.kind.regret(self.settings, features[rows[0]], *scores))
