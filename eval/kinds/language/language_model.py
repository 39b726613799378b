"""What the kinds have in common that learn from text without labels, by predicting its own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from eval.examples import IGNORED, Example
from eval.kinds.kind import Kind

if TYPE_CHECKING:
    from torch import Tensor


class LanguageModel(Kind):
    """Tokens of unlabelled text, out of the whole vocabulary; the text itself is what predictions are compared with."""

    fields = ("text",)
    truth = None
    optional_truth = False
    no_augment = "learns from plain text; put more text into its data instead"
    pairs = False
    per_token = True

    def form(self, example: Example) -> None:
        """Return None: there is one form alone."""
        del example

    def width(self, outputs: int, hidden_size: int, vocab_size: int) -> int:
        """Return the number of words."""
        del outputs, hidden_size
        return vocab_size

    def soft_rows(self, targets: Mapping[str, Tensor], mask: Tensor, only_predicted: bool) -> Tensor:
        """Compare every real token, or only those with something to predict."""
        return targets["labels"] != IGNORED if only_predicted else mask.bool()
