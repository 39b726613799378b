"""The YAML header of a model card, which the Hugging Face hub reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from eval.report.plain_text import plain
from eval.result_values import ResultValues

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

HUB_METRICS = {
    "macro_f1": "f1",
    "entity_f1": "f1",
    "entity_precision": "precision",
    "entity_recall": "recall",
    "token_accuracy": "accuracy",
    "masked_accuracy": "accuracy",
    "matthews": "matthews_correlation",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
}
"""What the hub calls a metric, where that is not our name."""


def with_header(body: str, **fields: Any) -> str:
    """Return the text of a model card.

    Args:
        body: Markdown below the header.
        fields: Of ``huggingface_hub.ModelCardData``; those that are None are left out.
    """
    from huggingface_hub import ModelCard, ModelCardData

    return str(ModelCard(f"---\n{ModelCardData(**fields).to_yaml()}\n---\n\n{body}"))


def model_index(name: str, task_type: str, results: Sequence[ResultValues]) -> dict[str, Any]:
    """Return the fields of ``ModelCardData`` that become its ``model-index``; none without a score.

    The score of a selection is none that others should compare with, so it is left out.

    Args:
        name: Of the model.
        task_type: What the hub calls the task, such as ``text-classification``.
        results: Of the model.
    """
    found = [score for result in results if result.role != "selection" for score in _scores(task_type, result)]
    return {"model_name": plain(name) or "model", "eval_results": found} if found else {}


def _scores(task_type: str, result: ResultValues) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    source = plain(result.source) or "not named"
    for name, score in result.scores.items():
        if math.isfinite(score):
            yield EvalResult(
                task_type=task_type,
                dataset_type=source,
                dataset_name=source,
                dataset_split=plain(result.split),
                metric_type=HUB_METRICS.get(name, plain(name)),
                metric_name=plain(name),
                metric_value=float(score),
            )
