"""What a training shows beside its steps: the loss, its speed, the last score and agreement."""

from __future__ import annotations

import time
from collections.abc import Mapping


class StepFigures:
    """Words on the last optimizer step of a training."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.tokens = 0
        self.scores: Mapping[str, float] = {}

    def after(self, loss: float, tokens: int) -> str:
        """Return the figures after a step.

        Args:
            loss: Its loss.
            tokens: Its tokens without padding; speed is that of all steps.
        """
        self.tokens += tokens
        speed = self.tokens / max(time.perf_counter() - self.started, 1e-9)
        words = [f"loss {loss:.4f}", f"{speed:,.0f} tokens/s"]
        return "  ".join([*words, *(f"{name} {value:.4f}" for name, value in self.scores.items())])
