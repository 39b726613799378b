"""Which task a model folder answers, and with its labels in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.task import TaskSpec
from teachers.pooling import said_by

_NEW_HEAD = (
    "for a new head on its encoder, save AutoModel.from_pretrained(…) in a folder of its own, with the tokenizer"
)


def own_task(folder: Path, config: Any) -> TaskSpec:
    """Return the task that a model was trained for: ``task.json``, or what ``config.json`` says of its head and labels.

    Raises:
        UserError: If ``task.json`` is damaged, or the model has no head that says it.
    """
    file = folder / "task.json"
    if file.is_file():
        try:
            return TaskSpec.model_validate_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{file}: not a task description ({error})") from error
    labels = tuple(config.id2label[i] for i in sorted(config.id2label))
    architecture = (config.architectures or [""])[0]
    if architecture.endswith("ForTokenClassification"):
        return TaskSpec(kind="tagging", labels=labels, metric="entity_f1")
    if architecture.endswith("ForQuestionAnswering"):
        return TaskSpec(kind="qa", metric="f1", max_length=384, stride=128)
    if architecture.endswith("ForMultipleChoice"):
        return TaskSpec(kind="multiple-choice", truncation="only_first")
    if architecture.endswith("ForMaskedLM"):
        return TaskSpec(kind="masked-lm", metric="masked_accuracy")
    if architecture.endswith("ForSequenceClassification"):
        if len(labels) == 1:
            return TaskSpec(kind="regression", metric="spearman")
        return TaskSpec(kind="classification", labels=labels)
    if (said := said_by(folder)) is not None:
        return TaskSpec(kind="embedding", metric="spearman", pair=True, **said)
    raise UserError(f"{folder}: holds {architecture or 'a model without a head'}; say which task it is for")


def in_own_order(source: str, config: Any, task: TaskSpec) -> TaskSpec:
    """Return the task with its labels in the order that the model was trained with.

    Raises:
        UserError: If the model answers other labels.
    """
    architecture = (config.architectures or [""])[0]
    if not architecture.endswith(("ForSequenceClassification", "ForTokenClassification")):
        return task
    own = tuple(str(config.id2label[i]) for i in sorted(config.id2label))
    if task.kind == "regression" and len(own) != 1:
        raise UserError(f"{source}: the model answers {list(own)}, the task asks for a number; {_NEW_HEAD}")
    if not task.labels or own == tuple(f"LABEL_{i}" for i in range(len(task.labels))):
        return task
    if set(own) != set(task.labels):
        unknown = sorted(set(task.labels) - set(own))
        hint = f"; unknown to the model: {', '.join(unknown)}" if unknown else ""
        raise UserError(
            f"{source}: the model answers {list(own)}, the task asks for {list(task.labels)}{hint}; {_NEW_HEAD}"
        )
    weights = task.class_weights
    if weights is not None:
        weights = tuple(weights[task.labels.index(label)] for label in own)
    return task.model_copy(update={"labels": own, "class_weights": weights})
