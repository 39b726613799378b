"""Artifacts on disk: a Hugging Face folder with ``lineage.json``; written beside and renamed, checked when read."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compress.architectures import form_of, prepare
from compress.artifact.artifact import SAVED, Artifact, Record, library_versions
from compress.artifact.lineage import ANEW, read_lineage, write_lineage
from compress.artifact.lineage import FILE as LINEAGE
from compress.artifact.modified_architecture import is_restructured, load_restructured, writer_for
from eval.errors import UserError
from eval.files.writing import whole_folder, write_beside
from teachers.anatomy.pooling import check_pooling
from teachers.file_digests import differences, file_digests
from teachers.folder_task import in_own_order, require_beside
from teachers.taskmodel import AUTO_CLASSES, load_taskmodel, save_taskmodel

if TYPE_CHECKING:
    from eval.result import Result
    from eval.task import TaskSpec
    from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.artifact.store")


def is_artifact(folder: str | Path) -> bool:
    """Whether a folder was written by ``save``."""
    return (Path(folder) / LINEAGE).is_file()


def save(artifact: Artifact, folder: str | Path) -> Path:
    """Write an artifact with its model card; whatever stood in ``folder`` is replaced only once all is written.

    Where the files beside the weights are not those that the last record says, as when it was loaded from a folder that
    another version of a library wrote, what is saved has a record ``saved`` more.

    Raises:
        CompressError: If the disk refuses; the old folder stays.
    """
    folder = Path(folder)
    with whole_folder(folder, "the model") as beside:
        save_taskmodel(artifact, beside, writer_for(artifact.model))
        require_beside(beside, LINEAGE)
        written = _covered(artifact, file_digests(beside))
        write_lineage(written.lineage, beside / LINEAGE)
        write_card(written, beside)
    return folder


def _covered(artifact: Artifact, files: dict[str, str]) -> Artifact:
    """Return an artifact whose last record covers these files."""
    last = artifact.lineage[-1]
    if last.files == files:
        return artifact
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
    return replace(artifact, lineage=(*artifact.lineage, record))


def write_card(artifact: Artifact, folder: Path, result: Result | None = None) -> None:
    """Write the model card of an artifact into its folder, with the figures of ``result`` once there are any."""
    from eval.report.card import model_card

    records = [record.model_dump(mode="json") for record in artifact.lineage]
    results = [] if result is None else [result]
    form = "compress" if is_restructured(folder) else form_of(artifact.model.config)
    card = model_card(artifact.name, artifact.task, results, records, form=form)
    write_beside(folder / "README.md", card.encode())


def load(folder: str | Path) -> Artifact:
    """Load an artifact and check its weights, and the files beside them, against its lineage.

    Raises:
        UserError: If a file is missing or damaged, a record is missing or was changed, or the weights, config,
            tokenizer or task are not those recorded.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification, BertTokenizer
        >>> from compress import Artifact
        >>> from eval import TaskSpec
        >>> from teachers import TaskModel
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
        >>> config = BertConfig(
        ...     vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        ... )
        >>> network = TaskModel(
        ...     BertForSequenceClassification(config),
        ...     BertTokenizer({word: row for row, word in enumerate(words)}),
        ...     TaskSpec(kind="classification", labels=("bad", "good")),
        ... )
        >>> folder = Artifact.from_model(network).save("small")
        >>> [record.technique for record in load(folder).lineage]
        ['source']
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; an artifact is a folder with {LINEAGE}")
    if not is_artifact(folder):
        raise UserError(
            f"{folder}: holds no {LINEAGE}, so it is no artifact; Artifact.from_pretrained takes stock model folders"
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
    return Artifact(model.model, model.tokenizer, model.task, name=folder.name, folder=folder, lineage=records)


def load_model(
    source: str | Path,
    task: TaskSpec | None = None,
    seed: int = 0,
    *,
    accept_incomplete: bool = False,
    new_head: bool = True,
) -> TaskModel:
    """Load whatever a folder or hub name holds: an artifact with its lineage, or a standard Hugging Face model.

    Everything that takes a model by its name loads it here, so what one block of a recipe opens, all do.

    Args:
        source: The folder or hub name.
        task: What is asked; None takes what the model was made for.
        seed: Seeds a new head.
        accept_incomplete: Whether weights that are missing, unexpected, of another shape or not finite are only
            logged; for standard Hugging Face models alone.
        new_head: Whether a model without a head for the task gets a random one, to be trained.

    Raises:
        UserError: If the model is missing, damaged or incomplete, does not answer the task, or would need a new head
            that ``new_head`` does not allow.
    """
    if not is_artifact(source):
        prepare(source)
        found = load_taskmodel(source, task, seed=seed, accept_incomplete=accept_incomplete)
        made_for = (found.model.config.architectures or ["a model without a head"])[0]
        if not new_head and not made_for.endswith(AUTO_CLASSES[found.task.kind].removeprefix("AutoModel")):
            raise UserError(_headless(source, made_for, found.task.kind))
        return found
    artifact = load(source)
    if task is None:
        return artifact
    if task.kind != artifact.task.kind:
        if not new_head:
            raise UserError(_headless(source, f"a model for {artifact.task.kind}", task.kind))
        return artifact.with_task(task, seed)
    if task.kind == "embedding":
        check_pooling(Path(source), task)
    return replace(artifact, task=in_own_order(str(source), artifact.model.config, task))


def _headless(source: str | Path, made_for: str, kind: str) -> str:
    return f"{source}: is {made_for}, without a trained head for {kind}; fine-tune it first, with compress teach"
