"""Opening whatever a user names as a model: an artifact, a standard transformers folder or hub name, or an export."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eval.errors import UserError
from eval.files.paths import no_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from compress.export.check.arithmetic import Arithmetic
    from eval.data.loading import Task
    from eval.inference import Predictor
    from eval.task import TaskSpec

EXPORT_FILE = "export.json"
"""As ``compress.export.runtime.manifest`` calls it, which loads pydantic; the command line starts without."""

AcceptIncomplete = Annotated[
    bool,
    typer.Option(
        "--accept-incomplete", help="Use a model folder although tensors are missing, unexpected or not finite."
    ),
]


def is_export(source: str | Path) -> bool:
    """Whether a folder was written by ``compress export``.

    Raises:
        UserError: If it was, and its manifest is gone.
    """
    if (Path(source) / EXPORT_FILE).is_file():
        return True
    if (Path(source) / "encoder.json").is_file():  # models have none
        raise UserError(f"{source}: is an export, but {EXPORT_FILE} is missing or no file; copy or export it again")
    return False


def require_folder(model: Path) -> None:
    """Refuse a model or an export where there is no such folder.

    Raises:
        UserError: There is none; a name near it is told.
    """
    if not model.exists():
        raise UserError(no_folder(model))


def open_model(
    source: str,
    task: TaskSpec | None = None,
    name: str | None = None,
    arithmetic: Arithmetic | None = None,
    *,
    accept_incomplete: bool = False,
    threads: int | None = None,
) -> Predictor:
    """Load a model to be measured.

    Args:
        source: An artifact folder, a standard transformers folder, a hub name, or an export folder.
        task: What it is to answer; None takes what the model itself says.
        name: What reports call it; by default its own name.
        arithmetic: The kind of processor whose 8-bit products are emulated; see ``compress.export.check.arithmetic``.
        accept_incomplete: Whether a model folder with missing, unexpected or non-finite tensors is used as it is.
        threads: Threads of one product of an export; by default its own.

    Raises:
        UserError: If it is none of these, does not answer the task, has no trained head for it, or no 8-bit products to
            emulate.
    """
    if arithmetic is not None and not is_export(source):
        raise UserError(
            f"--arithmetic: {source} is no export, and torch computes in float; export it with --int8 first"
        )
    if is_export(source):
        from compress.export.runtime import ExportError, Runtime

        try:
            if arithmetic is not None:
                from compress.export.check.arithmetic import Emulated

                return Emulated(source, arithmetic, name)
            return Runtime(source, threads, name=name, spinning=False)  # other models are timed beside it
        except ExportError as error:
            raise UserError(*str(error).splitlines()) from error
    from compress.artifact.artifact import load_model

    found = load_model(source, task, accept_incomplete=accept_incomplete, new_head=task is None)
    return found if name is None else replace(found, name=name)


def spec_of(model: Any) -> TaskSpec:
    """Return the task that a model was made for."""
    from eval.task import TaskSpec

    task = model.task
    if isinstance(task, TaskSpec):
        return task
    from eval.files.typed_json import typed

    found: TaskSpec = typed(task, TaskSpec, f"{model.folder}/{EXPORT_FILE}: task", "copy or export it again")
    return found


def answering(model: Any, spec: TaskSpec) -> Any:
    """Return a model as one for a task of another kind, if it answers that as it is, as an embedder does retrieval."""
    from eval.kinds.kind_registry import kind_of

    if model.encoder.settings.kind not in kind_of(spec.kind).alike:
        return model
    if not is_export(model.folder or ""):
        return replace(model, task=spec)
    model.encoder = model.encoder.of_kind(spec.kind)
    return model


def task_for(
    spec: TaskSpec,
    data: str,
    kind: str | None = None,
    metric: str | None = None,
    columns: Mapping[str, str] | None = None,
    first_stage: str | None = None,
) -> Task:
    """Read data for a model, with the labels and lengths that it was made with, and with another first stage if wanted.

    Raises:
        UserError: The data, or the first stage of the task, cannot be read.
    """
    from compress.export.embedder import open_embedder
    from eval.data.arguments import as_made_for
    from eval.data.loading import load_task
    from eval.kinds.kind_registry import kind_of
    from eval.metrics.own_metric import named_metric
    from eval.scores import known_metric

    same = kind in (None, spec.kind)
    vectors = kind_of(spec.kind).vectors
    load = partial(
        load_task,
        kind or spec.kind,
        data=data,
        columns=columns or {},
        # Vectors are judged by whatever this data knows of them.
        metric=named_metric(metric) if metric else (known_metric(spec) if same and not vectors else None),
        embedder=open_embedder,
        **as_made_for(spec, kind) | ({} if first_stage is None else {"first_stage": first_stage}),
    )
    own = spec.labels or None if same else None
    try:
        return load(labels=own)
    except UserError as refused:
        return load(labels=own, label_map=_label_map(load, own or (), refused))


def _label_map(load: Callable[[], Task], own: Sequence[str], refused: UserError) -> Mapping[str, str]:
    """Return the model's name of each label of data that was refused, if none of them is one of the model's.

    Raises:
        UserError: It was refused for something else, or they cannot be matched.
    """
    from eval.data.judging import label_names

    try:
        found = load().spec.labels
    except UserError:
        found = ()
    if not found or not own or set(found) & set(own):
        raise refused
    names, assumed = label_names(found, own)
    typer.echo(assumed, err=True)
    return names


def with_data(
    model: Any, data: str | None, text: Sequence[str] | None = None, label: str | None = None, *, truths: bool = True
) -> tuple[Any, Task | None]:
    """Return a model and data with examples that choose, both of a search if these are documents and judged queries.

    Args:
        model: The model.
        data: The data; None if there is none.
        text: The column with the text; two for a pair.
        label: The column with the label.
        truths: Whether the examples need labels; if not, a file without a column for them is read as texts.

    Raises:
        UserError: The data cannot be read.
    """
    if data is None:
        given = [f"--{name}" for name, value in (("text", text), ("label", label)) if value]
        if given:
            raise UserError(f"{' and '.join(given)}: name columns of --data; give it too, or leave them out")
        return model, None
    from eval.data.beir import searched_as
    from eval.data.columns import named_columns
    from eval.kinds.kind_registry import kind_of
    from eval.kinds.other_form import other_form

    own = spec_of(model)
    kind = searched_as(data, own.kind)
    columns = named_columns(kind_of(kind or own.kind), text, label)
    if kind is None and not truths and _lacks_truths(own.kind, data, columns):
        return model, _texts_of(own, data, columns)
    task = choosing(task_for(own, data, kind, columns=columns))
    if kind is None and (problems := other_form(model.name, own.kind, task.spec.pair, own.pair)):
        raise UserError(*problems)
    return answering(model, task.spec), task


def _lacks_truths(kind: str, data: str, columns: Mapping[str, str]) -> bool:
    """Whether data is one file that has everything that a kind reads, and no column with the truth."""
    from eval.data.sources import Source
    from eval.data.split_reading import without_column
    from eval.files.paths import user_path
    from eval.kinds.kind_registry import kind_of

    truth = kind_of(kind).truth
    if truth in columns or kind_of(kind).writes or not user_path(data).is_file():
        return False
    return without_column(Source.of(user_path(data)), kind, columns)[0] == [truth]


def _texts_of(spec: TaskSpec, file: str, columns: Mapping[str, str]) -> Task:
    """Return the texts of a file as examples that choose."""
    from eval.data.arguments import as_made_for
    from eval.data.loading import load_task
    from eval.task import Examples

    files = {"unlabeled": file}
    task = load_task(spec.kind, files=files, columns=columns, labels=spec.labels or None, **as_made_for(spec))
    items = task.splits["unlabeled"]
    return replace(task, splits={"validation": Examples(items.items, "validation", items.skipped)})


def choosing(task: Task) -> Task:
    """Return a task whose ``select`` examples are not those that report, unless no others are there.

    With a validation split alone, it chooses; ``compress eval`` then says that the export was chosen on it.
    """
    from eval.data.roles import assign_roles

    roles = assign_roles(task)
    return roles.task if len(roles.task.select) else task
