"""The YAML header of a model card, which the Hugging Face hub reads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml import YAMLError

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
INHERITED = ("license", "language")
"""What of a model's card holds for what is made of the model, too."""
WORD = re.compile(r"[A-Za-z0-9][\w.+-]{0,59}", re.ASCII)
"""The identifier of a licence or a language."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


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
    if not found:
        return {}
    metrics = list(dict.fromkeys(score.metric_type for score in found))
    return {"model_name": plain(name) or "model", "eval_results": found, "metrics": metrics}


def inherited(folder: Path | None) -> dict[str, Any]:
    """Return licence and language as the card of a model folder says them; nothing if it says none."""
    from huggingface_hub import metadata_load

    try:
        said = (metadata_load(folder / "README.md") or {}) if folder is not None else {}
    except (OSError, ValueError, YAMLError):
        return {}
    return {name: value for name in INHERITED if _is_plain(value := said.get(name))}


def heritage(lineage: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of ``ModelCardData`` that follow from the model that a lineage begins with.

    Args:
        lineage: Records of an artifact; the first one's origin is the base model if it is a name on the hub.
    """
    if not lineage:
        return {}
    origin, facts = lineage[0].config.get("origin"), lineage[0].facts
    base = {"base_model": origin} if isinstance(origin, str) and HUB_NAME.fullmatch(origin) else {}
    return base | {name: facts[name] for name in INHERITED if _is_plain(facts.get(name))}


def _is_plain(value: Any) -> bool:
    words = value if isinstance(value, list) and value else [value]
    return all(isinstance(word, str) and WORD.fullmatch(word) for word in words)


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
