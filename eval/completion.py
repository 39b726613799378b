"""Predictions with what a model finds beyond the outputs of the examples: the documents that answer a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval.examples import Example
from eval.inference import Predictions, Predictor, predict


def completed(model: Predictor, examples: Sequence[Example], found: Predictions) -> Predictions:
    """Return predictions as scores read them; of most kinds they are so already.

    Of retrieval the model reads all documents for it, and of reranking a query with each of its candidates. So this is
    called where predictions are scored, and not wherever a model is run.

    Args:
        model: What predicted.
        examples: The examples.
        found: What ``eval.inference`` returned for them.
    """
    kind = model.encoder.kind
    answers = kind.completed(examples, found.answers, found.logits, lambda more: predict(model, more).logits)
    return replace(found, answers=answers)
