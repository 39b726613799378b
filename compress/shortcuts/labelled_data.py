"""Somebody's data in the terms of a finished model: its columns found, its labels matched, kept beside the results."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.data.arguments import as_made_for
from eval.data.columns import named_columns
from eval.data.judging import label_names
from eval.data.loading import Task, load_task
from eval.errors import UserError
from eval.files.writing import atomic_folder
from eval.kinds.kind_registry import kind_of
from eval.scores import known_metric
from eval.task import TaskSpec

logger = logging.getLogger("compress.shortcuts.labelled_data")

Divide = Callable[[Task], tuple[Task, str]]
"""What gives a task the splits that are needed, and says what it did; see ``eval.data.judging``."""


def kept_task(
    spec: TaskSpec, data: Any, text: str | Sequence[str] | None, label: str | None, divide: Divide, folder: Path
) -> tuple[Task, list[str]]:
    """Return the data with the labels of the model, divided and kept in a folder, and what was assumed for it.

    Args:
        spec: The model's task.
        data: Whatever ``load_task`` takes.
        text: The column with the text; two for a pair.
        label: The column with the label.
        divide: Gives it the splits that are needed.
        folder: Where the splits are written as JSON lines, unless they are there.

    Raises:
        UserError: With every error of the data, or if the folder holds other data.
        CompressError: If the disk refuses.
    """
    task, notes = _task_for_model(spec, data, named_columns(kind_of(spec.kind), text, label), divide)
    for note in notes:
        logger.info("%s", note)
    _keep(task, folder)
    return task, notes


def _task_for_model(spec: TaskSpec, data: Any, columns: Mapping[str, str], divide: Divide) -> tuple[Task, list[str]]:
    """Return the data with the labels of the model, divided, and what was assumed for it."""
    how: dict[str, Any] = {"columns": columns, **as_made_for(spec)}
    if not kind_of(spec.kind).vectors:
        how["metric"] = known_metric(spec)
    if not kind_of(spec.kind).labelled:
        task, note = divide(load_task(spec.kind, data, **how))
        return task, [note] if note else []
    found = load_task(spec.kind, data, **how)
    names, assumed = label_names(found.spec.labels, spec.labels)
    task, note = divide(load_task(spec.kind, data, labels=spec.labels, label_map=names, **how))
    return task, [said for said in (assumed, note) if said]


def _keep(task: Task, folder: Path) -> None:
    """Write the splits as JSON lines, unless they are there."""
    files = {
        f"{name}.jsonl": "".join(json.dumps(dict(example), ensure_ascii=False) + "\n" for example in split)
        for name, split in task.splits.items()
    }
    if folder.is_dir():
        there = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
        if there != files:
            raise UserError(f"{folder}: holds other data, from an earlier call; name another folder with out")
        return
    with atomic_folder(folder, "the data") as beside:
        for name, text in files.items():
            (beside / name).write_text(text, encoding="utf-8")
