"""Which task a model folder answers, and with its labels in which order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.files.typed_json import read_values, typed
from eval.kinds.kind_registry import kind_of, own_kinds
from eval.task import TaskSpec
from teachers.sentence_folder import said_by, said_by_cross_encoder, small_files

FILE = "task.json"
ANEW = "copy the model folder anew"
BESIDE = "beside"
"""The field that lists other files of the folder; it is none of a task."""
_NEW_HEAD = (
    "for a new head on its encoder, save AutoModel.from_pretrained(…) in a folder of its own, with the tokenizer"
)


def require_beside(folder: Path, name: str) -> None:
    """Write into ``task.json`` of a folder that another file belongs to it, without which it is not used."""
    file = folder / FILE
    values = json.loads(file.read_text(encoding="utf-8")) | {BESIDE: [name]}
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def read_task(folder: Path) -> TaskSpec | None:
    """Return the task that ``task.json`` of a folder describes; None if there is no such file.

    Raises:
        UserError: If it is damaged, or a file that it says belongs to the folder is missing.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    values = read_values(file, ANEW)
    beside = values.pop(BESIDE, []) if isinstance(values, dict) else []
    task: TaskSpec = typed(values, TaskSpec, str(file), ANEW)
    missing = [name for name in typed(beside, list[str], f"{file}: {BESIDE}", ANEW) if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder}: lacks {', '.join(missing)}, which {FILE} says belongs to it; "
            "copy the folder anew from where it was made"
        )
    return task


def own_task(folder: Path, config: Any) -> TaskSpec:
    """Return the task that a model without ``task.json`` was trained for: what its config says of head and labels.

    A folder of sentence-transformers gives vectors, also where its config still names the masked-language head of the
    base that it was trained from; one of a ``CrossEncoder`` reads pairs.

    Raises:
        UserError: If the model has no head that says it.
    """
    labels = tuple(config.id2label[i] for i in sorted(config.id2label))
    architecture = (config.architectures or [""])[0]
    heads = [kind for kind in own_kinds() if kind.has_head(architecture)]
    kind = next((kind for kind in heads if kind.fits_head(labels, config.problem_type)), None)
    if (kind is None or kind.truth is None) and (said := said_by(small_files(str(folder)), config)) is not None:
        return TaskSpec(kind="embedding", metric="spearman", pair=True, **said)
    if kind is not None:
        usual = {name: getattr(kind, name) for name in ("metric", "max_length", "stride", "truncation")}
        more = (said_by_cross_encoder(small_files(str(folder)), config) if kind.pairs else None) or {}
        return TaskSpec(kind=kind.name, labels=labels if kind.labelled else (), **usual | more)
    raise UserError(
        f"{folder}: holds {architecture or 'a model without a head'}, which answers no task yet; fine-tune it "
        f"(compress teach --base {folder} --task … --data …), or in Python give its task"
    )


def keeping_thresholds(task: TaskSpec, made_for: TaskSpec | None) -> TaskSpec:
    """Return a task with the thresholds of the model that answers it, unless it has its own.

    Args:
        task: The task, with its labels in the model's order.
        made_for: What the model says that it was made for.
    """
    if made_for is None or task.thresholds or (task.kind, task.labels) != (made_for.kind, made_for.labels):
        return task
    chooses = task.choose_thresholds or made_for.choose_thresholds
    return task.model_copy(update={"thresholds": made_for.thresholds, "choose_thresholds": chooses})


def in_own_order(source: str, config: Any, task: TaskSpec) -> TaskSpec:
    """Return the task with its labels in the order that the model was trained with.

    Raises:
        UserError: If the model answers other labels.
    """
    architecture = (config.architectures or [""])[0]
    if not architecture.endswith(("ForSequenceClassification", "ForTokenClassification")):
        return task
    own = tuple(str(config.id2label[i]) for i in sorted(config.id2label))
    if kind_of(task.kind).number and len(own) != 1:
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
