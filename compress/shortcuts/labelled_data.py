"""Somebody's data in the terms of a finished model: its columns found, its labels matched, kept beside the results."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from compress.shortcuts.own_folder import OwnFolder
from eval.data.arguments import as_made_for
from eval.data.beir import CORPUS, FILES, JUDGEMENTS, QUERIES, is_beir, qrels, searching_kind
from eval.data.columns import named_columns
from eval.data.judging import Met, label_names, with_choosing
from eval.data.loading import Task, load_task
from eval.data.roles import assign_roles
from eval.errors import UserError
from eval.files.paths import user_path
from eval.kinds.kind_registry import kind_of
from eval.kinds.other_form import other_form
from eval.proof.known_examples import met
from eval.proof.role import SHARED
from eval.scores import known_metric
from eval.task import Examples, TaskSpec
from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.shortcuts.labelled_data")

Divide = Callable[[Task, Met], tuple[Task, str]]
"""What gives a task the splits that are needed, and says what it did; see ``eval.data.judging``."""


class Given(NamedTuple):
    """Somebody's data.

    Attributes:
        task: The data with the labels of the model, divided.
        place: The folder that a recipe reads.
        notes: What was assumed, a sentence each.
    """

    task: Task
    place: Path
    notes: list[str]


def given_data(
    model: TaskModel, data: Any, text: str | Sequence[str] | None, label: str | None, divide: Divide, own: OwnFolder
) -> Given:
    """Read data for a model, and keep it; documents stay where they are, unless their queries are divided.

    Args:
        model: The model; of its own training examples none is to report.
        data: Whatever ``load_task`` takes.
        text: The column with the text; two for a pair.
        label: The column with the label.
        divide: Gives it the splits that are needed.
        own: Where the splits are written as JSON lines, unless they are there.

    Raises:
        UserError: With every error of the data, or if the folder holds other data.
        CompressError: If the disk refuses.
    """
    spec = model.task
    if is_beir(data):
        found = _search_for_model(spec, user_path(data), text, label, own)
    else:
        known = partial(_met, spec.kind, model.chosen_on)
        task, notes = _task_for_model(
            spec, data, named_columns(kind_of(spec.kind), text, label), lambda read: divide(read, known)
        )
        if problems := other_form(model.name, spec.kind, task.spec.pair, spec.pair):
            raise UserError(*problems)
        _refuse_known(task, known)
        own.keep_data({f"{name}.jsonl": _json_lines(split) for name, split in task.splits.items()})
        found = Given(task, own.data, notes)
    for note in found.notes:
        logger.info("%s", note)
    return found


def _met(kind: str, chosen_on: Mapping[str, str], examples: Examples) -> set[int]:
    """Return the numbers of the examples that trained a model or chose something of it, where that is known here."""
    return {place for used in set(chosen_on.values()) for place in met(kind, examples, used)}


def _refuse_known(task: Task, known: Met) -> None:
    """Refuse to report on what the model has met, before anything is computed.

    Raises:
        UserError: Many of the examples that would report are such.
    """
    roles = assign_roles(task)
    reports = roles.task.splits.get(roles.report, Examples(()))
    count = len(tuple(known(reports)))
    if count > SHARED * len(reports):
        raise UserError(
            f"{task.source or 'data'}: {count:,} of the {len(reports):,} examples that would report trained the model "
            "or chose something of it, so their scores would show nothing; give others, as a test split"
        )


def _search_for_model(
    spec: TaskSpec, source: Path, text: str | Sequence[str] | None, label: str | None, own: OwnFolder
) -> Given:
    """Return the documents and queries of a folder for an embedder or a reranker; the folder, unless it was divided."""
    kind = searching_kind(spec.kind)
    problems = [] if text is None and label is None else ["text, label: documents and queries have no columns"]
    if kind is None or not (spec.pair or kind_of(spec.kind).vectors):
        form = "pairs" if spec.pair else "single texts"
        problems.append(
            f"{source}: has documents and queries, and the model answers {spec.kind} of {form}; give an embedder, or a "
            "reranker, which gives a number for a pair of texts"
        )
    if problems or kind is None:
        raise UserError(*problems)
    how = as_made_for(spec, kind)
    how.pop("first_stage", None)  # the recipe that is written names none
    notes = [f"{source} has documents and queries, so the model is judged by its rankings (kind: {kind})."]
    queries, divided = with_choosing(load_task("retrieval", source, **({} if spec.pair else how)), pairs=spec.pair)
    if divided:
        judged = {
            name: found for name, split in queries.splits.items() if (found := [one for one in split if "id" in one])
        }
        files = {
            **{name: (source / name).read_text(encoding="utf-8") for name in (CORPUS, QUERIES)},
            **{f"{JUDGEMENTS}/{FILES[name][0]}.tsv": qrels(found) for name, found in judged.items()},
        }
        own.keep_data(files)
        source, notes = own.data, [*notes, divided]
    return Given(load_task(kind, source, **how) if spec.pair else queries, source, notes)


def _task_for_model(
    spec: TaskSpec, data: Any, columns: Mapping[str, str], divide: Callable[[Task], tuple[Task, str]]
) -> tuple[Task, list[str]]:
    """Return the data with the labels of the model, divided, and what was assumed for it."""
    how: dict[str, Any] = {"columns": columns, **as_made_for(spec)}
    if not kind_of(spec.kind).vectors:
        how["metric"] = known_metric(spec)
    if not kind_of(spec.kind).labelled:
        task, note = divide(load_task(spec.kind, data, **how))
        return task, [said for said in (_without_classifier(task), note) if said]
    found = load_task(spec.kind, data, **how)
    names, assumed = label_names(found.spec.labels, spec.labels)
    task, note = divide(load_task(spec.kind, data, labels=spec.labels, label_map=names, **how))
    return task, [said for said in (assumed, note) if said]


def _without_classifier(task: Task) -> str:
    """Return by what a model of vectors is judged where texts have a class, as for a classifier."""
    kind = kind_of(task.spec.kind)
    classes = any(kind.truth in example for split in task.splits.values() for example in split)
    if not kind.vectors or task.spec.pair or not classes:
        return ""
    return (
        "The model gives vectors and has no classifier, so it is judged by how often the nearest other text has the "
        f"same label (metric: {task.spec.metric}); compress teach makes a classifier of it."
    )


def _json_lines(split: Examples) -> str:
    return "".join(json.dumps(dict(example), ensure_ascii=False) + "\n" for example in split)
