"""What the certificate of a run holds, from the files that the run kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.artifact.lineage import FILE as LINEAGE
from compress.certification.replaying import chosen_in, machine_of, splits_of
from compress.engine.claim_file import folders_of
from compress.engine.looks import read_looks
from compress.engine.preflight import result_name
from compress.engine.run_folder import MODEL, RESULTS
from compress.export.runtime.manifest import MANIFEST
from compress.export.targets.target_registry import library_of
from compress.recipe import recipe_to_plain
from eval.certificate.canonical import without_nan
from eval.certificate.contents import (
    FORMAT,
    Certificate,
    Contents,
    Fixed,
    Model,
    Part,
    Row,
    Speed,
    Stress,
    TestData,
    Tolerances,
)
from eval.certificate.model_files import model_files
from eval.certificate.overlap import overlap_of
from eval.certificate.own_figures import stressed
from eval.certificate.recomputing import outcome_of
from eval.cost.latency import speedup
from eval.cost.machine import versions
from eval.cost.size import MODEL_FILES
from eval.errors import UserError
from eval.example_digests import example_digest
from eval.files.json_text import read_json
from eval.naming import without_paths
from eval.predictions import Kept
from eval.result import Result
from eval.stress.stress_rows import Perturbed

if TYPE_CHECKING:
    from compress.recipe import Recipe
    from eval.data.roles import Roles
    from eval.ranking.vector_index import IndexForm
    from teachers.taskmodel import TaskModel

INT8 = "-int8"
"""End of the names of 8-bit exports."""
WIDE = Tolerances(number=0.05, tie=0.05)
"""Tolerances of 8-bit exports, and of vectors held as codes: another processor may round a number the other way."""


@dataclass(frozen=True)
class Looked:
    """What a run kept of the model to be certified.

    Attributes:
        folder: Of the run.
        recipe: What was run.
        result: Of the candidate.
        reference: Of the teacher.
        fixed: The claim.
        roles: The data.
        where: Folder of the candidate.
        teachers: The teacher, or the members of an ensemble.
        index: How the candidate's documents were held; None for float32 vectors.
        family: See ``eval.certificate.contents.Certificate``.
    """

    folder: Path
    recipe: Recipe
    result: Result
    reference: Result
    fixed: Fixed
    roles: Roles
    where: Path
    teachers: Sequence[TaskModel]
    index: IndexForm | None = None
    family: tuple[float, ...] = ()


def contents_of(looked: Looked) -> Contents:
    """Return what the certificate holds."""
    result, fixed, grouped = looked.result, looked.fixed, looked.fixed.claim.groups
    test = looked.roles.task.splits[looked.roles.report]
    ours, theirs = _kept(result), _kept(looked.reference)
    gold, candidate, teacher = (without_nan(side) for side in (ours.gold, ours.answers, theirs.answers))
    groups = (test.groups if grouped else None) or [None] * len(test)
    rows = zip(map(example_digest, test), gold, candidate, teacher, groups, strict=True)
    task = without_nan(result.task.model_dump(mode="json"))
    main = Certificate(
        format=FORMAT,
        name=looked.recipe.name,
        package=versions(["nlp-compress"]).get("nlp-compress", ""),
        task=task,
        fixed=fixed,
        looks=tuple(without_nan(look.model_dump(mode="json")) for look in read_looks(looked.folder)),
        outcome=outcome_of(task, fixed.claim, gold, candidate, teacher, groups if grouped else None, looked.family),
        candidate=_model(result, result.name, [looked.where]),
        teacher=_model(looked.reference, fixed.reference, [at for one in looked.teachers for at in folders_of(one)]),
        exports=tuple(_others(looked)),
        data=_data(looked),
        speeds=tuple(_speeds(result, fixed.reference)),
        machine=machine_of(result.machine),
        tolerances=WIDE if _coded(looked) else Tolerances(),
        members={},
        index=None if looked.index is None else looked.index.fields,
        index_size=result.index,
        family=looked.family,
    )
    lineage = read_json(looked.folder / MODEL / LINEAGE)
    perturbed = tuple(Perturbed(**without_nan(asdict(each))) for each in result.perturbed)
    whole = Contents(main, tuple(Row(*row) for row in rows), lineage, _provenance(looked), perturbed)
    if result.stress_seed is None:
        return whole
    stress = Stress.of(result.stress_seed, stressed(whole, result.stress_seed))
    return replace(whole, main=replace(main, stress=stress))


def _coded(looked: Looked) -> bool:
    """Whether the candidate computes with 8-bit products, or its documents are held as codes."""
    return looked.where.name.endswith(INT8) or (looked.index is not None and looked.index.vectors != "float32")


def _kept(result: Result) -> Kept:
    if result.kept is None:
        raise UserError(f"{result.name}: its predictions were not kept; run the recipe again")
    return result.kept


def _model(result: Result, name: str, folders: Sequence[Path]) -> Model:
    """Return a model with the digests of its files, and its size as it was measured."""
    files, size = model_files(folders), result.size
    weights = sorted(
        f"{number}/{path.name}" if len(folders) > 1 else path.name
        for number, folder in enumerate(folders, start=1)
        for path in {path for pattern in _patterns(folder) for path in folder.glob(pattern)}
    )
    known = (None, None, None) if size is None else (size.parameters, size.macs, size.macs_length)
    return Model(name, files, tuple(weights), sum(files[name].bytes for name in weights), *known)


def _patterns(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that hold the network."""
    if not (folder / MANIFEST).is_file():
        return MODEL_FILES
    library = library_of(str(read_json(folder / MANIFEST).get("target", "onnx")))
    return MODEL_FILES if library is None else tuple(filter(None, (*library.files, library.more)))


def _others(looked: Looked) -> Iterator[Model]:
    """Yield the other models that come from the same weights: the torch model, and exports."""
    places = {looked.recipe.name: MODEL}
    exports = {f"{block.target}{kind}" for block in looked.recipe.export for kind in ("", INT8)}
    for name in sorted({looked.recipe.name, *exports} - {looked.result.name}):
        folder, kept = looked.folder / places.get(name, name), looked.folder / RESULTS / result_name(name)
        if folder.is_dir() and kept.is_dir():
            yield _model(Result.load(kept), name, [folder])


def _data(looked: Looked) -> TestData:
    parts = splits_of(looked.roles)
    chosen = chosen_in(looked.folder / MODEL) | chosen_in(looked.where)
    for teacher in looked.teachers:
        chosen |= {f"{what}, {teacher.name}": digest for what, digest in teacher.chosen_on.items()}
    return TestData(
        source=looked.result.source,
        parts={role: Part(examples.digest, len(examples)) for role, examples in parts.items()},
        chosen_on=chosen,
        overlap={
            role: overlap_of(looked.result.task.kind, parts["test"], examples)
            for role, examples in parts.items()
            if role != "test"
        },
    )


def _speeds(result: Result, reference: str) -> Iterator[Speed]:
    """Yield the ratio at every batch size and length that both models were timed at."""
    there = {(row.batch, row.lengths): row for row in result.latency if row.name == reference}
    for row in result.latency:
        other = there.get((row.batch, row.lengths))
        found = speedup(result.latency, result.name, reference, row.batch, row.lengths)
        if row.name == result.name and other is not None and found is not None:
            ours, theirs = (without_nan(asdict(each)) for each in (row, other))
            yield Speed(row.batch, str(row.lengths), ours, theirs, found.value)


def _provenance(looked: Looked) -> dict[str, Any]:
    """Return how it came to be; no path of this machine stands in it."""
    recipe, result = looked.recipe, looked.result
    plain = recipe_to_plain(recipe)
    block = recipe.evaluate
    told = {
        "recipe": plain,
        "task": {name: value for name, value in plain["task"].items() if name != "data"},
        "only_files": plain["task"].get("data") is None,
        "keep_labels": recipe.teacher is not None and recipe.teacher.finetune is not None,
        "split": "auto" if block is None else block.split,
        "select": "auto" if block is None else block.select,
        "seed": recipe.seed,
        "machine": result.machine,
        "measured": result.created,
        "commands": ["compress run recipe.yaml", "compress certify RUN"],
    }
    values: dict[str, Any] = without_paths(without_nan(told))
    return values
