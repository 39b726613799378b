"""The certificate of a run, from what the run kept: nothing is measured again, and the test split is not opened."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.certification.contents_of_run import Looked, contents_of
from compress.engine.baseline import constant_notes
from compress.engine.claim_file import folders_of, read_claims
from compress.engine.preflight import result_name
from compress.engine.preparation import read_roles, teachers_of
from compress.engine.run_folder import MODEL, PAGE, RECIPE_FILE, RESULTS, run_in
from compress.export.check.verification import verify
from compress.export.runtime.manifest import MANIFEST, read_manifest
from compress.export.targets.library import ExportError
from compress.recipe import Recipe, read_recipe
from compress.recipe.checks import index_problems
from eval.certificate.certified_sentence import sentence
from eval.certificate.contents import Fixed, files_digest
from eval.certificate.findings import Word
from eval.certificate.model_files import model_files
from eval.certificate.own_figures import check_own_figures
from eval.certificate.signature import signature_file, signer
from eval.errors import CompressError, UserError, did_you_mean
from eval.files.writing import atomic_write
from eval.ranking.indexed import indexed_name
from eval.ranking.vector_index import IndexForm
from eval.report.certified import quote_in_card, quote_in_page
from eval.report.summary import shipped
from eval.result import Result
from eval.scores import default_metric, metrics_of
from teachers.taskmodel import TaskModel
from teachers.trained_once import only_found

logger = logging.getLogger("compress.certification")

CARD = "README.md"
"""The card of a model, and of an export."""


@dataclass(frozen=True)
class Certified:
    """A certificate that was written.

    Attributes:
        file: The certificate.
        sentence: What it says.
        signature: Its signature, if it was signed.
        checked_with: Words of ``compress recheck`` that name the models and the data.
    """

    file: Path
    sentence: str
    signature: Path | None = None
    checked_with: tuple[str, ...] = ()


def certify(
    run: str | Path,
    out: str | Path = "model.cert",
    *,
    model: str | None = None,
    index: IndexForm | None = None,
    margin: float | None = None,
    sign: str | Path | None = None,
    family: Sequence[float] = (),
) -> Certified:
    """Write the certificate of a model that a run made; the model's card and the run's page then quote it.

    Args:
        run: Folder of the run.
        out: The file.
        model: Which of its models: an export such as ``onnx-int8``, or the name of the recipe for the torch model; by
            default the one that the page leads with (see ``eval.report.summary.shipped``).
        index: For retrieval: the form of the documents' index, one of those that the recipe measured; by default
            float32 vectors.
        margin: The margin that is expected; it must be the one that was fixed before the test split was opened.
        sign: A private key as PEM, to sign with (see ``eval.certificate.signature``).
        family: Where it is one of several candidates that were looked at together, the p-value of each other one (see
            ``eval.certificate.contents.Certificate``).

    Raises:
        UserError: The run has no teacher to compare with or no claim, its teacher is not kept any more, the scores are
            those of a selection, the claim was moved afterwards, or a model was changed since.
        CompressError: The export does not pass its gate or is not verified.
    """
    if index is not None and index.approximate:
        raise UserError("--index: a certificate speaks of exact search; leave approximate out of the form")
    folder, out = run_in(Path(run), measured=True), Path(out)
    signs = None if sign is None else signer(Path(sign))
    recipe, name, result = _candidate(folder, model, index)
    reference = _reference(folder, recipe, result)
    where = folder / (MODEL if name == recipe.name else name)
    roles = read_roles(recipe)
    with only_found():  # a teacher that is trained anew would be another one
        teachers = teachers_of(recipe, None if roles is None else roles.task)
    claims = [fixed for fixed in read_claims(folder) if fixed.claim.digest == result.digest]
    fixed = _fixed(claims, result, where)
    problems = [*_of_selection(result, reference), *_moved(claims, result, recipe, margin)]
    problems += [*_not_recomputable(result, fixed, index), *_of_teachers(recipe, teachers)]
    test = None if roles is None else roles.task.splits[roles.report]
    if test is None or test.digest != result.digest:
        problems.append(f"{folder}: the data is not what it was when the run was measured; restore it")
    elif result.kept is not None and result.kept.groups != test.groups:
        problems.append(f"{folder}: the examples are in other groups than when the run was measured; restore the data")
    if problems or roles is None or fixed is None:
        raise UserError(*problems)
    for note in constant_notes([reference]):
        logger.warning("%s: %s", folder, note)
    _gate(where)
    looked = Looked(folder, recipe, result, reference, fixed, roles, where, teachers, index, tuple(family))
    contents = contents_of(looked)
    if (found := check_own_figures(contents)).word is not Word.VALID:
        raise UserError(*(f"{folder}: {problem}" for problem in found.sentences))
    atomic_write(out, contents.to_bytes())
    signature_file(out).unlink(missing_ok=True)  # of what was there before
    signed = None if signs is None else signs(out)
    said = sentence(contents.main)
    quote_in_card(where / CARD, said)
    quote_in_page(folder / PAGE, f"{result.name}: {said}")
    named: list[tuple[str, str | Path]] = [
        ("--model", where),
        *(("--teacher", at) for one in teachers for at in folders_of(one)),
    ]
    named += [("--data", place) for place in _data_of(recipe)]
    return Certified(out, said, signed, tuple(str(word) for pair in named for word in pair))


def _not_recomputable(result: Result, fixed: Fixed | None, index: IndexForm | None) -> Iterator[str]:
    """Yield why a stranger could not compute a result again."""
    if result.metric not in metrics_of(result.task.kind):
        yield (
            f"task: metric: {result.metric} is a function of yours, which a stranger cannot recompute, so it cannot be "
            f"certified; run the recipe with {default_metric(result.task.kind, result.task.pair)}"
        )
    if fixed is None:
        yield (
            f"{result.name}: no claim was fixed for these files before {result.split} was opened, or they were changed "
            "since; run the recipe again"
        )
    if index is not None and result.index is None:
        yield f"{result.name}: its result has not what the index takes; run the recipe again, with an --out anew"


def _of_teachers(recipe: Recipe, teachers: Sequence[TaskModel]) -> Iterator[str]:
    """Yield why nobody could check a model against its teachers."""
    if recipe.teacher is not None and recipe.teacher.predictions is not None:
        yield "teacher: a file of predictions cannot be run again, so nothing is certified against it"
    if not all(map(folders_of, teachers)):
        yield "teacher: lies in no folder, so nobody could check it; give teacher.model a folder"


def _data_of(recipe: Recipe) -> list[str]:
    """Return the one place from which the data of a recipe can be read again; none if its files lie here and there."""
    if recipe.task is None or recipe.task.data:
        return [recipe.task.data] if recipe.task is not None and recipe.task.data else []
    files = list((recipe.task.files or {}).values())
    folders = {str(Path(file).parent) for file in files}
    return files if len(files) == 1 else sorted(folders) if len(folders) == 1 else []


def _candidate(folder: Path, model: str | None, index: IndexForm | None) -> tuple[Recipe, str, Result]:
    """Return the recipe of a run, the name of the model that is asked for, and its result with this index."""
    recipe = read_recipe(folder / RECIPE_FILE)
    exports = [f"{block.target}{kind}" for block in recipe.export for kind in ("-int8", "")]
    there = [name for name in exports if (folder / RESULTS / name).is_dir()]
    names = [*there, recipe.name]
    chosen = model or _leading(folder, names, there)
    if chosen not in names or not (folder / RESULTS / result_name(chosen)).is_dir():
        known = [name for name in names if (folder / RESULTS / result_name(name)).is_dir()]
        raise UserError(f"--model: {folder} has no result of {chosen!r}{did_you_mean(chosen, known)}")
    measured = folder / RESULTS / result_name(chosen if index is None else indexed_name(chosen, index))
    if index is not None and not measured.is_dir():
        raise UserError(f"--index: {_not_measured(recipe, chosen, index)}")
    return recipe, chosen, Result.load(measured)


def _not_measured(recipe: Recipe, model: str, index: IndexForm) -> str:
    """Return why there is no result with an index, and what to do."""
    forms = () if recipe.evaluate is None else recipe.evaluate.index
    if recipe.task is not None and (unfit := next(index_problems(recipe.task.kind, [index]), "")):
        return unfit
    if index in forms:
        return f"indexes were measured for exports, not for {model}; name one of them with --model"
    told = ", ".join(form.title for form in forms) or "none"
    asked = ", ".join(f"{name}: {value}" for name, value in index.fields.plain().items())
    return f"{index.title} was not measured (measured: {told}); run the recipe with evaluate: {{index: [{{{asked}}}]}}"


def _leading(folder: Path, names: Sequence[str], exports: Sequence[str]) -> str:
    """Return which of these models the page leads with."""
    places = [folder / RESULTS / result_name(name) for name in names]
    leading = shipped([Result.load(place) for place in places if place.is_dir()], exports)
    return names[-1] if leading is None else leading.name


def _reference(folder: Path, recipe: Recipe, result: Result) -> Result:
    if result.comparison is None or recipe.evaluate is None or recipe.evaluate.against != "teacher":
        raise UserError(
            f"{folder}: {result.name} was not compared with its teacher; run it with evaluate: {{against: teacher}}"
        )
    return Result.load(folder / RESULTS / result_name(result.comparison.reference))


def _fixed(claims: Sequence[Fixed], result: Result, where: Path) -> Fixed | None:
    """Return the first claim for a model with these files."""
    files = files_digest(model_files([where]))
    return next((fixed for fixed in claims if fixed.models.get(result.name) == files), None)


def _of_selection(result: Result, reference: Result) -> list[str]:
    """Return why scores show no margin, whatever they are."""
    if (result.role, reference.role) == ("final", "final"):
        return []
    chosen = sorted({**result.chosen_on, **reference.chosen_on})
    why = f"{', '.join(chosen)} by the same examples" if chosen else "the run does not say what was chosen on it"
    return [f"{result.name}: its scores on {result.split} are those of a selection ({why}), which show no margin"]


def _moved(claims: Sequence[Fixed], result: Result, recipe: Recipe, margin: float | None) -> list[str]:
    """Return who says another margin than the claim that was fixed first, before these examples were opened."""
    if not claims:
        return []
    first, evaluate, compared = claims[0].claim, recipe.evaluate, result.comparison
    said = {
        "a later claim": next((later.claim.margin for later in claims if later.claim.margin != first.margin), None),
        "the recipe": None if evaluate is None else evaluate.margin,
        "the result": None if compared is None else compared.margin,
        "--margin": margin,
    }
    return [
        f"margin moved afterwards: {who} says {given:g}, the claim before {result.split} was opened {first.margin:g}"
        for who, given in said.items()
        if given is not None and given != first.margin
    ]


def _gate(where: Path) -> None:
    """Refuse an export that does not pass its gate, or its golden test vectors.

    Raises:
        CompressError: If it does not.
    """
    if not (where / MANIFEST).is_file():
        return
    try:
        gate = read_manifest(where).get("gate") or {}
        found = verify(where)
    except ExportError as error:
        raise CompressError(str(error)) from error
    if not gate.get("passed"):
        raise CompressError(f"{where}: did not pass its gate; export it again")
    failed = [each for each in found if not each.passed and each.version is not None]
    if failed or not any(each.ran for each in found):
        told = "; ".join(f"{each.runtime}: {'; '.join(each.problems)}" for each in failed or found)
        raise CompressError(f"{where}: is not verified ({told}); export it again")
