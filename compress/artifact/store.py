"""Artifacts on disk: a Hugging Face folder with ``lineage.json``; written beside and renamed, checked when read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compress.architectures import form_of, prepare
from compress.artifact.lineage import ANEW, read_lineage, write_lineage
from compress.artifact.lineage import FILE as LINEAGE
from compress.artifact.modified_architecture import is_restructured, load_restructured, writer_for
from compress.artifact.record import SAVED, Record, library_versions
from eval.errors import UserError
from eval.files.writing import atomic_folder, atomic_write
from teachers.file_digests import differences, file_digests
from teachers.folder_task import require_beside
from teachers.taskmodel import TaskModel, load_taskmodel, save_taskmodel

if TYPE_CHECKING:
    from eval.result import Result

logger = logging.getLogger("compress.artifact.store")


def is_artifact(folder: str | Path) -> bool:
    """Whether a folder was written by ``write``."""
    return (Path(folder) / LINEAGE).is_file()


def write(model: TaskModel, lineage: Sequence[Record], folder: str | Path) -> Path:
    """Write a model with its records and its model card; what stood in ``folder`` is replaced only once all is written.

    Where the files beside the weights are not those that the last record says, as when it was loaded from a folder that
    another version of a library wrote, what is saved has a record ``saved`` more.

    Raises:
        CompressError: If the disk refuses; the old folder stays.
    """
    folder = Path(folder)
    with atomic_folder(folder, "the model") as beside:
        save_taskmodel(model, beside, writer_for(model.model))
        require_beside(beside, LINEAGE)
        covering = _covering(lineage, file_digests(beside))
        write_lineage(covering, beside / LINEAGE)
        write_card(model, covering, beside)
    return folder


def _covering(lineage: Sequence[Record], files: dict[str, str]) -> tuple[Record, ...]:
    """Return the records, of which the last one covers these files."""
    last = lineage[-1]
    if last.files == files:
        return tuple(lineage)
    changed = sorted(name for name in files.keys() | last.files.keys() if files.get(name) != last.files.get(name))
    record = Record(
        technique=SAVED,
        facts={"files": changed},
        size_before=last.size_after,
        size_after=last.size_after,
        weights_before=last.weights_after,
        weights_after=last.weights_after,
        files=files,
        libraries=library_versions(),
    )
    return (*lineage, record)


def write_card(model: TaskModel, lineage: Sequence[Record], folder: Path, result: Result | None = None) -> None:
    """Write the model card of an artifact into its folder, with the figures of ``result`` once there are any."""
    from eval.report.card import model_card
    from eval.report.hub_header import heritage

    records = [record.model_dump(mode="json") for record in lineage]
    results = [] if result is None else [result]
    form = "compress" if is_restructured(folder) else form_of(model.model.config)
    card = model_card(model.name, model.task, results, records, form=form, **heritage(lineage))
    atomic_write(folder / "README.md", card.encode())


def read(folder: str | Path) -> tuple[TaskModel, tuple[Record, ...]]:
    """Return the model and the records of an artifact folder, once it is checked against them.

    Raises:
        UserError: If a file is missing or damaged, a record is missing or was changed, or the weights, config,
            tokenizer or task are not those recorded.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; an artifact is a folder with {LINEAGE}")
    if not is_artifact(folder):
        raise UserError(
            f"{folder}: holds no {LINEAGE}, so it is no artifact, such as RUN/model; Artifact.from_pretrained takes "
            "standard model folders, compress.export.Runtime exports"
        )
    records = read_lineage(folder / LINEAGE)
    recorded = records[-1].files
    if changed := differences(folder, recorded, LINEAGE):
        raise UserError(*(f"{problem}; {ANEW}" for problem in changed))
    if not recorded:
        logger.warning(
            "%s: was written by an earlier version, whose %s covers the weights alone; a changed config, tokenizer or "
            "task would go unnoticed until it is saved again",
            folder,
            LINEAGE,
        )
    prepare(folder)
    model = load_restructured(folder) if is_restructured(folder) else load_taskmodel(folder)
    if model.digest != records[-1].weights_after:
        raise UserError(
            f"{folder}: the weights are not those that {LINEAGE} records "
            f"({model.digest[:12]}, recorded {records[-1].weights_after[:12]}); a file was changed or mixed up"
        )
    return replace(model, name=folder.name, folder=folder), records
