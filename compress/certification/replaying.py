"""A check of a certificate on all levels: its models are loaded, answer the examples again, and are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from eval.certificate.archive import DamagedError
from eval.certificate.contents import Contents, Machine, Speed
from eval.certificate.findings import Report
from eval.certificate.rechecking import LEVELS, read_certificate
from eval.certificate.rechecking import recheck as recheck_with
from eval.certificate.replay import Replayed, ReplayedStress
from eval.data.loading import Task
from eval.errors import UserError
from eval.task import Examples, TaskSpec

if TYPE_CHECKING:
    from eval.data.roles import Roles
    from eval.inference import Predictor

SECONDS = 2.0
"""Time for each model at each batch size."""


class ManifestChoices(BaseModel):
    """What of ``export.json`` is read here.

    Attributes:
        chosen_on: What was trained or chosen -> digest of the examples; earlier versions recorded none.
    """

    chosen_on: dict[str, str] | None = None


def recheck(
    path: str | Path,
    *,
    model: str | Path | None = None,
    teacher: str | Path | Sequence[str | Path] = (),
    data: str | Path | None = None,
    key: str | Path | None = None,
    level: int = LEVELS[-1],
) -> Report:
    """Check a certificate; whatever is not given is named in the report.

    Args:
        path: The file.
        model: Folder of the certified model or export.
        teacher: Folder of the teacher, or of each of several.
        data: Folder or file of the data.
        key: The public key of whoever should have signed it.
        level: The last level that is asked for: 1 statistics, 2 files and data, 3 predictions, 4 cost.

    Returns:
        What each level found (see ``eval.certificate.findings``).

    Raises:
        UserError: A file or folder that was named is not there or cannot be read.
    """
    teachers = [teacher] if isinstance(teacher, str | Path) else list(teacher)
    roles, contents = None, None
    if data is not None and level > 1:
        try:
            contents = read_certificate(Path(path))
        except DamagedError:  # the first level says so
            return recheck_with(path, key=key, level=level)
        roles = roles_of(contents, data)
    again = None
    if contents is not None and roles is not None and model is not None and teachers and level > 2:
        again = ModelsAgain(contents, Path(model), [Path(folder) for folder in teachers], roles)
    splits = None if roles is None else splits_of(roles)
    given: dict[str, Any] = {"model": model, "teacher": teachers, "splits": splits}

    def chosen_on() -> dict[str, str]:
        named = {"model": model} if model is not None else {}
        named |= {f"teacher {number}": folder for number, folder in enumerate(teachers, start=1)}
        return {f"{what}, {name}": used for name, at in named.items() for what, used in chosen_in(Path(at)).items()}

    return recheck_with(path, **given, chosen_on=chosen_on, replay=again, key=key, level=level)


def chosen_in(folder: Path) -> dict[str, str]:
    """Return what the records in the folder of a model or of an export say was trained or chosen -> digest.

    Raises:
        UserError: A record is damaged.
    """
    from compress.artifact.lineage import FILE, read_lineage
    from compress.artifact.record import choices
    from compress.export.runtime.manifest import MANIFEST
    from eval.files.typed_json import read_typed
    from teachers.chosen_on import chosen_on

    found = chosen_on(folder)
    if (folder / FILE).is_file():
        found |= choices(read_lineage(folder / FILE))
    if (folder / MANIFEST).is_file():
        found |= read_typed(folder / MANIFEST, ManifestChoices, "export it again").chosen_on or {}
    return found


def roles_of(contents: Contents, data: str | Path) -> Roles:
    """Read the data of a certificate as its run read it.

    Raises:
        UserError: It cannot be read so.
    """
    from compress.recipe.blocks import TaskBlock
    from eval.data.roles import assign_roles
    from eval.files.typed_json import typed

    told = contents.provenance
    block = dict(told.get("task") or {})
    files, place = block.get("files"), Path(data)
    if isinstance(files, dict) and len(files) == 1 and place.is_file():
        block["files"] = dict.fromkeys(files, str(place))
    elif isinstance(files, dict):  # wherever they lay, here they are in the folder that was given, or beside the file
        folder = place.parent if place.is_file() else place
        block["files"] = {split: str(folder / Path(str(name)).name) for split, name in files.items()}
    if not told.get("only_files"):
        block["data"] = str(data)
    task = typed(block, TaskBlock, "provenance.json: task", "the certificate says how its data was read")
    seed, keep = told.get("seed"), told.get("keep_labels")
    read: Task = task.load(seed if isinstance(seed, int) else 13, bool(keep))
    split, select = (str(told.get(name) or "auto") for name in ("split", "select"))
    return assign_roles(read, split, select)


def splits_of(roles: Roles) -> dict[str, Examples]:
    """Return the examples by role; those that there are."""
    task = roles.task
    found = {"test": task.splits.get(roles.report, Examples(())), "train": task.train, "select": task.select}
    return {role: examples for role, examples in found.items() if len(examples)}


@dataclass(frozen=True)
class ModelsAgain:
    """The models of a certificate, loaded when they are asked; a ``Replay``.

    Attributes:
        contents: The certificate.
        model: Folder of the candidate.
        teachers: Folders of the teacher.
        roles: The data.
    """

    contents: Contents
    model: Path
    teachers: Sequence[Path]
    roles: Roles

    def candidate(self) -> Replayed:
        """Let the candidate answer."""
        return _answered(self._candidate, self._examples)

    def teacher(self) -> Replayed:
        """Let the teacher answer."""
        return _answered(self._teacher, self._examples)

    def under_stress(self, seed: int) -> ReplayedStress:
        """Let both answer the texts that the rules perturb."""
        from eval.certificate.canonical import without_nan
        from eval.kinds.kind_registry import kind_of
        from eval.stress.robustness import perturbations

        gold, asked, texts = kind_of(self._spec.kind).gold, [], []
        for rule, changed in perturbations(self._spec, self._examples, seed):
            for place, text in changed.items():
                asked.append((rule, place, without_nan({field: text[field] for field in gold if field in text})))
                texts.append(text)
        sides = (_answered(model, Examples(texts)) for model in (self._candidate, self._teacher))
        return ReplayedStress(asked, *sides)

    def machine(self) -> Machine:
        """Describe this machine."""
        from eval.cost.machine import machine

        return machine_of(machine())

    def ratio(self, speed: Speed) -> float | None:
        """Time both models alternately; return the median of the rounds' ratios."""
        from eval.cost.latency import latency, speedup

        lengths: Any = int(speed.lengths) if speed.lengths.isdecimal() else "data"
        models = {"candidate": self._candidate, "teacher": self._teacher}
        rows = latency(models, self._examples, (speed.batch,), lengths, SECONDS)
        found = speedup(rows, "candidate", "teacher", speed.batch, lengths)
        return None if found is None else found.value

    @property
    def _examples(self) -> Examples:
        return splits_of(self.roles)["test"]

    @property
    def _spec(self) -> TaskSpec:
        from eval.files.typed_json import typed

        spec: TaskSpec = typed(self.contents.main.task, TaskSpec, "certificate.json: task", "take another certificate")
        return spec

    @cached_property
    def _candidate(self) -> Predictor:
        model, held = open_folder(self.model, self._spec), self.contents.main.index
        if held is None:
            return model
        from eval.files.typed_json import typed
        from eval.ranking.indexed import Indexed
        from eval.ranking.vector_index import IndexForm

        return Indexed(model, typed(held.plain(), IndexForm, "certificate.json: index", "take another certificate"))

    @cached_property
    def _teacher(self) -> Predictor:
        models: list[Any] = [open_folder(folder, self._spec) for folder in self.teachers]
        if len(models) == 1:
            return models[0]  # type: ignore[no-any-return]
        from teachers.signals.ensemble_teacher import EnsembleTeacher

        return EnsembleTeacher.of(models)


def _answered(model: Predictor, examples: Examples) -> Replayed:
    from eval.certificate.canonical import without_nan
    from eval.inference import completed, predict
    from eval.measurement import size_of
    from eval.ranking.indexed import index_size

    size, file_bytes = size_of(model)
    macs, length, parameters = (None, None, None) if size is None else (size.macs, size.macs_length, size.parameters)
    if not len(examples):
        return Replayed((), (), file_bytes, macs, length, parameters)
    found = completed(model, examples, predict(model, examples))
    index = index_size(model, examples, found.logits)
    return Replayed(without_nan(found.answers), found.logits, file_bytes, macs, length, parameters, index)


def open_folder(folder: Path, spec: TaskSpec) -> Predictor:
    """Load an export, or a model, from its folder.

    Raises:
        UserError: It is neither, or damaged.
    """
    from compress.export.runtime.manifest import MANIFEST

    if (folder / MANIFEST).is_file():
        from compress.export.runtime.answering import Runtime
        from compress.export.targets.library import ExportError

        try:
            return Runtime(folder, spinning=False)
        except ExportError as error:
            raise UserError(*str(error).splitlines()) from error
    from compress.artifact.artifact import load_model

    return load_model(folder, spec, new_head=False)


def machine_of(found: Mapping[str, Any]) -> Machine:
    """Return what a certificate says of a machine, from what ``eval.cost.machine.machine`` returned."""
    threads = {str(name): str(count) for name, count in dict(found.get("threads", {})).items()}
    return Machine(str(found.get("cpu", "")), tuple(map(str, found.get("features", ()))), threads)
