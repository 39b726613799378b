"""A finished model distilled into fewer of its own layers: from a model and a table to a checked, smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from compress.artifact.artifact import Artifact
from compress.engine.run_folder import MODEL
from compress.export.targets.target_registry import FASTEST
from compress.shortcuts.labelled_data import given_data
from compress.shortcuts.own_folder import OwnFolder
from compress.shortcuts.recipe_text import Answers, recipe_text
from eval.cost.machine import bf16_is_fast, cpu_features
from eval.data.arguments import unusual
from eval.data.judging import with_train
from eval.errors import UserError
from eval.files.paths import from_anywhere
from eval.kinds.kind_registry import kind_of
from eval.measurement import wrong_margin
from eval.naming import public_name
from teachers.anatomy.encoder import decoder_layer_names, layer_count

if TYPE_CHECKING:
    from eval.result import Result


@dataclass(frozen=True)
class Shrunk:
    """What came of it.

    Attributes:
        model: Folder of the student, for ``compress.load`` or transformers.
        export: Folder of its export.
        recipe: The recipe that was written and run.
        results: Measurements on the examples that report.
        page: The report.
        certificate: What it shows.
        notes: What was found, assumed, divided and recommended, a sentence each.
    """

    model: Path
    export: Path
    recipe: Path
    results: tuple[Result, ...]
    page: Path | None
    certificate: Path
    notes: tuple[str, ...]


def shrink(
    model: str | Path,
    data: Any,
    *,
    layers: int | None = None,
    unlabelled: str | Path | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    margin: float = 0.01,
    quick: bool = False,
    track: str | Sequence[str] = (),
) -> Shrunk:
    """Distil a model into a student of fewer of its layers, export it in its fastest form, and show what that costs.

    The recipe follows ``docs/choosing.md``; it is kept and can be changed and run again.

    Args:
        model: A model folder that answers a task, or a hub name.
        data: Whatever ``eval.data.loading.load_task`` takes: a file, a folder, a DataFrame, ...
        layers: Layers of the student, or of its decoder where that writes the answer; by default half of the model's.
        unlabelled: A file of texts, one a line, that only the teacher answers.
        text: The column with the text; two for a pair. By default usual names are looked for.
        label: The column with the label, likewise.
        out: Folder to write; by default ``runs/NAME-Nl``. What an earlier call left there is gone on with.
        margin: Loss of the score that still counts as no worse.
        quick: Whether the student is trained with the teacher alone. By default it is trained on labels only as well,
            and the one that is better on the examples that choose is the result.
        track: Trackers that get curves and results, as a recipe's ``track``; the recipe that is kept names none.

    Raises:
        UserError: If the model or the data cannot be used, with every reason.
        CompressError: If a training fails, no export answers as the student does, or the disk refuses.
    """
    artifact = Artifact.from_pretrained(str(model))
    spec = artifact.task
    has = len(decoder_layer_names(artifact.model)) if kind_of(spec.kind).writes else layer_count(artifact.model)
    wanted = max(1, has // 2) if layers is None else layers
    problems = (
        [] if 1 <= wanted < max(2, has) else [f"layers: got {wanted}, the model has {has}; give fewer, at least 1"]
    )
    problems += wrong_margin(spec, margin)
    if kind_of(spec.kind).truth is None:
        problems.append(
            f"{model}: predicts words of plain text; a recipe with a task of its own distils it (compress init)"
        )
    if unlabelled is not None and not Path(unlabelled).is_file():
        problems.append(f"unlabelled: there is no file {unlabelled}")
    elif unlabelled is not None and not _lines(unlabelled):
        problems.append(f"unlabelled: {unlabelled} has no text; put one a line into it, or leave it out")
    if problems:
        raise UserError(*problems)
    name = Path(model).name or "model"
    own = OwnFolder(Path(out) if out is not None else Path("runs") / f"{name}-{wanted}l")
    task, place, notes = given_data(artifact, data, text, label, with_train, own)
    answers = Answers(
        kind=task.spec.kind,
        data=str(place.resolve()),
        teacher=from_anywhere(model),
        finetune=False,
        layers=wanted,
        export={FASTEST: {}},
        teacher_layers=has,
        examples=len(task.train) + _lines(unlabelled),
        labels=spec.labels,
        max_length=spec.max_length,
        reads=unusual(task.spec),
        unlabelled=None if unlabelled is None else str(Path(unlabelled).resolve()),
        margin=margin,
        briefly=True,
        called=public_name(name),
        quick=quick,
        bf16=bf16_is_fast(cpu_features()) and not torch.cuda.is_available(),
    )
    trackers = (track,) if isinstance(track, str) else tuple(track)
    recipe = own.keep_recipe(recipe_text(answers, str(own.recipe), own.beside()))
    done, export, certified = own.finish(recipe.model_copy(update={"track": trackers}))
    use = f"Use {export}; the recipe is {own.recipe}: change it and run it again with: {own.again}"
    said = (*notes, *answers.advice.why, *done.notes, f"{certified.sentence}.", use)
    return Shrunk(own.run / MODEL, export, own.recipe, done.results, done.page, certified.file, said)


def _lines(file: str | Path | None) -> int:
    """Return how many texts a file has."""
    if file is None:
        return 0
    with Path(file).open(encoding="utf-8", errors="replace") as lines:
        return sum(bool(line.strip()) for line in lines)
