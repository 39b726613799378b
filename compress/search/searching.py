"""The search: candidates are proposed, most fall by what they cost, few are trained longer and longer, one wins."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from compress.certification.certifying import certify
from compress.engine.preflight import foresee
from compress.engine.preparation import augmented, prepare
from compress.engine.run_folder import RESULTS, RESULTS_FILE, provisional, take
from compress.export.runtime.answering import Runtime
from compress.reading.yaml_places import decode, read_yaml
from compress.recipe.schema import Recipe
from compress.search.candidate import PARTS, Candidate, Costs, costs_of, exported, possible, shape_costs, student_of
from compress.search.default_space import starts, template
from compress.search.limit import limit_from_plain
from compress.search.ranges import RANGE, Point, points_of, range_problems, resolve
from compress.search.shared_steps import run_shared, take_over
from compress.search.standing import Standing, Winner, front, nearest, winners
from eval.errors import CompressError, UserError
from eval.files.paths import refuse_file
from eval.files.typed_json import json_digest
from eval.files.writing import atomic_write, exclusive, is_unfinished
from eval.kinds.kind_registry import kind_of
from eval.measurement import measure, pair
from eval.progress.stages import under_way, whole
from eval.result import RESULT_FILE, Result
from eval.task import SELECT
from teachers.anatomy.encoder import layer_count

if TYPE_CHECKING:
    import optuna

    from compress.engine.preparation import Prepared
    from compress.search.budget import Budget
    from compress.search.trials import Job, Trials

logger = logging.getLogger("compress.search")

BUDGET_FILE, STORE, TEACHER, WINNERS, CERTIFICATE = "budget.yaml", "steps", "teacher", "winners", "model.cert"
FREE = ("limits", "candidates", "winners", "stress", "attributions")
"""What may change from one run of a search to the next in the same folder, if the limits limit the same."""
LOOK_SECONDS, PAGE_SECONDS = 1.0, 10.0
"""How often a process without work looks whether another one has made some, and how often the page is written."""
Observer = Callable[[list[Standing]], None]


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        folder: Where everything lies.
        standings: Every candidate with what became of it.
        front: Those that were trained to the end and that no other dominates.
        winners: Those within the budget, the best first, as they were looked at on the examples that report.
        nearest: Where nothing is within the budget: what misses it by the least.
        page: The page with all of it.
    """

    folder: Path
    standings: tuple[Standing, ...]
    front: tuple[Standing, ...]
    winners: tuple[Winner, ...]
    nearest: Standing | None
    page: Path


def search(
    budget: Budget,
    out: str | Path,
    *,
    resume: bool = False,
    storage: str | None = None,
    observe: Observer | None = None,
) -> Found:
    """Search for models within a budget; look at the best of them on the examples that report, once.

    Several processes may call this with the same folder and ``resume``; they share the work.

    Args:
        budget: What a model may cost and lose, and where to look.
        out: Folder for everything; new, empty, or of a search for the same.
        resume: Go on with what ``out`` holds, or work beside another process there.
        storage: Address of a database for Optuna in the place of a file in ``out``.
        observe: Is given the standings whenever one changes.

    Raises:
        UserError: If budget, data, teacher or folder are unusable, or Optuna is not installed.
        CompressError: If training, export or the disk fails.
    """
    if find_spec("optuna") is None:
        raise UserError("search: needs Optuna; install it with: pip install 'nlp-compress[search]'")
    from compress.search.trials import Trials

    out = Path(out)
    _refuse_other(budget, out, resume)
    with provisional(out):
        searching = _Searching(budget, out, observe)
    _take(budget, out)
    searching.measure_teacher()
    trials = Trials(budget, out, storage)
    try:
        with whole("search", kept_in=out):
            trials.start_with(searching.starts())
            trials.reconsider()
            while not trials.over:
                searching.work(trials)
            return searching.finish(trials)
    finally:
        trials.close()


class _Searching:
    """One process at work."""

    def __init__(self, budget: Budget, out: Path, observe: Observer | None) -> None:
        self.budget, self.out, self.observe = budget, out, observe
        self.next_page = time.monotonic()
        # The student of this recipe is the teacher itself, so all that candidates share is prepared once.
        shared = Recipe.model_validate(budget.shared())
        try:  # before anything is trained, also what would refuse a winner when all of them are
            seen = foresee(shared)
        except UserError as error:
            raise UserError(*(problem.removeprefix("evaluate.") for problem in error.problems)) from error
        if seen.task is None or seen.prepared is None or len(seen.prepared.teachers) != 1:
            raise UserError("teacher: a search compresses one model; name one model and one seed")
        if not len(seen.task.select):
            raise UserError("task: too few labelled examples to compare candidates on; add a validation split")
        self.split = SELECT if SELECT in seen.task.splits else "validation"
        self.template, self.hand_made = _space(budget, seen.prepared)
        self.prepared: Prepared = prepare(shared, roles=seen.roles)

    def measure_teacher(self) -> None:
        """Measure what candidates are compared with, unless this or another process did before."""
        place, task = self.out / TEACHER, self.prepared.task
        assert task is not None
        with exclusive(place):
            if not (place / RESULT_FILE).is_file():
                measure(self.prepared.teachers[0], task, split=self.split).save(place)
        self.teacher = Result.load(place)

    def starts(self) -> list[Point]:
        """Return the points that are tried first."""
        return [point for values in self.hand_made for point in list(points_of(self.template, values))[:1]]

    def work(self, trials: Trials) -> None:
        """Do one thing, or wait a moment for what other processes find."""
        job = trials.next()
        if job is None:
            time.sleep(0 if trials.over else LOOK_SECONDS)
            return
        if (candidate := self._candidate(job, trials)) is not None:
            with under_way(candidate.key):
                self._train(candidate, job, trials)
        self._show(trials)

    def _candidate(self, job: Job, trials: Trials) -> Candidate | None:
        """Return the candidate of a job, if it is possible, new, and within the limits as far as its shape decides."""
        trial = job.trial
        values = resolve(self.template, lambda name, held: _suggested(trial, name, held))
        try:
            candidate = Candidate.of(values, self.budget)
        except UserError as error:
            trials.drop(trial, f"impossible: {'; '.join(error.problems)}", {"impossible": 1.0})
            return None
        if job.rung:
            return candidate
        if "costs" not in trial.user_attrs:
            if trials.repeated(trial, candidate.key):
                return None
            trial.set_user_attr("label", candidate.label)
            trial.set_user_attr("key", candidate.key)
            try:
                costs = self._shape_costs(candidate)
            except CompressError as error:
                trials.drop(trial, f"impossible: {error}", {"impossible": 1.0})
                return None
            trial.set_user_attr("costs", asdict(costs))
        known = trial.user_attrs["costs"]
        standing = Standing(trial.number, candidate.key, candidate.label, 0, "running", known)
        violated = {name: value for name, value in standing.violations(self.budget).items() if value > 0}
        if violated:
            trials.drop(trial, _beyond(standing, self.budget), violated)
            return None
        self._show(trials)
        return candidate

    def _shape_costs(self, candidate: Candidate) -> Costs:
        return shape_costs(candidate, self.prepared, self.budget, self.split)

    def _train(self, candidate: Candidate, job: Job, trials: Trials) -> None:
        """Train a candidate for its share, measure its export, and tell how it stands."""
        trial, task = job.trial, self.prepared.task
        assert task is not None
        recipe = candidate.at(self.budget.shares[job.rung])
        inputs = augmented(candidate.recipe, self.prepared).inputs
        try:
            student = student_of(candidate, self.prepared)
            artifact, places = run_shared(recipe, student, inputs, self.out / STORE)
            with tempfile.TemporaryDirectory() as temporary:
                place, examples = Path(temporary) / "export", task.splits[self.split]
                folder = exported(recipe, artifact, place, examples, calibration=inputs.calibration)
                costs = costs_of(folder, artifact, self.budget, task, self.split, trained=True)
                result = measure(Runtime(folder, name=candidate.key, spinning=False), task, split=self.split)
        except CompressError as error:
            trials.drop(trial, f"failed after it was trained: {error}", {"impossible": 1.0})
            return
        known = trial.user_attrs["costs"]
        if not known["at_least"] and known["p50_ms"] is not None:  # shape alone decides it
            costs = Costs(costs.bytes, costs.macs, costs.parameters, known["p50_ms"])
        difference = pair(result, self.teacher, self.budget.margin, self.budget.seed).difference
        if math.isnan(difference.high):
            reason = f"the {self.split} examples do not tell it from the teacher: {result.metric} has no interval there"
            trials.drop(trial, reason, {"impossible": 1.0})
            return
        facts: dict[str, Any] = {
            "costs": asdict(costs),
            "score": result.score,
            "difference": [difference.value, difference.low, difference.high],
            "places": [place.name for place in places],
        }
        for name, value in facts.items():
            trial.set_user_attr(name, value)
        known = {key: facts[key] for key in ("costs", "score")}
        ends = (difference.value, difference.low, difference.high)
        standing = Standing(trial.number, candidate.key, candidate.label, job.rung, "trained", difference=ends, **known)
        trials.done(trial, standing)
        share = f"{self.budget.shares[job.rung]:.0%} of the optimizer steps"
        logger.info("%s (%s): %s to the teacher after %s", standing.key, standing.label, standing.told, share)

    def _show(self, trials: Trials) -> None:
        """Let whoever watches see how candidates stand, and write the page now and then."""
        from compress.search.search_page import write_page

        standings = trials.standings()
        if self.observe is not None:
            self.observe(standings)
        if time.monotonic() >= self.next_page:
            write_page(self.out, self.budget, self.teacher, standings, trials.spent())
            self.next_page = time.monotonic() + PAGE_SECONDS

    def finish(self, trials: Trials) -> Found:
        """Run the winners as whole recipes, which looks at the examples that report, and write the page."""
        from compress.search.search_page import write_page

        standings = trials.standings()
        best = winners(standings, self.budget)
        # A search that goes on may end with another winner; all that were looked at are one family.
        earlier = [one for one in standings if one not in best and (self._winner(one) / RESULTS_FILE).is_file()]
        looked_at = [self._looked_at(one) for one in [*best, *earlier]]
        found = tuple(
            self._certified(one, [other.p_value for other in looked_at if other is not one]) for one in looked_at
        )
        near = None if found else nearest(standings, self.budget)
        page = write_page(self.out, self.budget, self.teacher, standings, trials.spent(), found, ended=True)
        return Found(self.out, tuple(standings), tuple(front(standings, self.budget)), found, near, page)

    def _winner(self, one: Standing) -> Path:
        return self.out / WINNERS / one.key

    def _looked_at(self, one: Standing) -> Winner:
        """Look at a candidate on the examples that report, unless this or another process did before."""
        from compress.engine.pipeline import run_recipe

        values = resolve(self.template, lambda name, _: (one.point or {})[name])
        recipe = Candidate.of(values, self.budget).recipe
        folder = self._winner(one)
        with exclusive(folder):
            if not (folder / RESULTS_FILE).is_file():
                logger.info("%s: %s; it is looked at on the examples that report", folder, one.label)
                take(folder, recipe)
                take_over(recipe, [self.out / STORE / place for place in one.places], folder / "steps")
                run_recipe(recipe, folder, resume=True)
            return Winner(one, folder, tuple(map(Result.load, sorted((folder / RESULTS).iterdir()))))

    def _certified(self, winner: Winner, family: list[float]) -> Winner:
        """Write the certificate of a winner, corrected for the p-values of all others that were looked at."""
        name = None if winner.result is None else winner.result.name
        how: dict[str, Any] = {"model": name, "margin": self.budget.margin, "family": family}
        with exclusive(winner.folder):
            try:
                certified = certify(winner.folder, winner.folder / CERTIFICATE, **how)
            except CompressError as error:
                return replace(winner, said=f"There is no certificate: {error}")
        return replace(winner, certificate=certified.file, said=certified.sentence)


def _space(budget: Budget, prepared: Prepared) -> tuple[Any, list[Any]]:
    """Return the template, and plain values of what is tried first.

    Raises:
        UserError: If a template cannot be read, or a start is no point of it.
    """
    if budget.space is None:
        layers = layer_count(prepared.student.model)
        task = prepared.student.task
        vectors = kind_of(task.kind).vectors
        return possible(template(layers, task.per_token, vectors), prepared), starts(layers, vectors)
    templates = [_read(Path(path)) for path in budget.space.template]
    space = templates[0] if len(templates) == 1 else {RANGE: templates}
    first = [_read(Path(path)) for path in budget.space.start]
    outside = [
        path for path, values in zip(budget.space.start, first, strict=True) if not any(points_of(space, values))
    ]
    if outside:
        raise UserError(*(f"{path}: is no point of the space; let the template's ranges hold it" for path in outside))
    Candidate.of(resolve(space, lambda _, held: 0 if isinstance(held, list) else held["low"]), budget)
    return space, first


def _read(path: Path) -> dict[str, Any]:
    try:
        document = read_yaml(decode(path.read_bytes(), str(path)), str(path))
    except OSError as error:
        raise UserError(f"{path}: the template cannot be read ({error.strerror or error})") from error
    if document.problems or not isinstance(document.data, dict):
        raise UserError(
            *(document.problems or [f"{path}: must be a recipe, with ranges such as {{search: [0.25, 0.5]}}"])
        )
    if found := list(range_problems(document.data)):
        raise UserError(*(f"{path}: {name}: {words}" for name, words in found))
    return {name: value for name, value in document.data.items() if name in PARTS}


def _suggested(trial: optuna.Trial, name: str, held: Any) -> Any:
    """Return what the sampler, or the queue, chooses for a range."""
    if isinstance(held, list):
        return trial.suggest_categorical(name, list(range(len(held))))
    if all(isinstance(end, int) for end in held.values()):
        return trial.suggest_int(name, held["low"], held["high"])
    return trial.suggest_float(name, held["low"], held["high"])


def _beyond(standing: Standing, budget: Budget) -> str:
    """Return which limits a candidate breaks, and by what."""
    from compress.search.search_page import shown_cost

    found = [limit for limit in budget.limits if standing.violations(budget).get(limit.what, 0.0) > 0]
    return "; ".join(f"{shown_cost(limit.what, standing)}, allowed is {limit}" for limit in found)


def _refuse_other(budget: Budget, out: Path, resume: bool) -> None:
    """Refuse a folder that does not hold this search.

    Raises:
        UserError: If it holds something else.
    """
    mark = out / BUDGET_FILE
    refuse_file(out)
    if out.is_dir() and not all(map(is_unfinished, out.iterdir())):
        if not resume and mark.is_file():
            raise UserError(
                f"{out}: is not empty; add --resume to go on with the search it holds, or choose another --out"
            )
        if not mark.is_file():
            raise UserError(f"{out}: holds no search to go on with (no {BUDGET_FILE} there); choose another --out")
        earlier = yaml.safe_load(mark.read_text(encoding="utf-8"))
        if _fixed(earlier) != _fixed(_kept(budget)):
            raise UserError(
                f"{out}: holds a search for something else (see {BUDGET_FILE} there); choose another --out; "
                f"only {', '.join(FREE)} may change"
            )


def _take(budget: Budget, out: Path) -> None:
    """Take a folder for this search."""
    take(out)
    text = yaml.safe_dump(_kept(budget), sort_keys=False, allow_unicode=True)
    atomic_write(out / BUDGET_FILE, text.encode())


def _kept(budget: Budget) -> dict[str, Any]:
    spaces = () if budget.space is None else (*budget.space.template, *budget.space.start)
    return {**budget.plain(), "templates": [json_digest(_read(Path(path))) for path in spaces]}


def _fixed(values: dict[str, Any]) -> dict[str, Any]:
    """Return what must not change in a folder: of limits what they limit, of a space what its files say."""
    limits = map(limit_from_plain, values.get("limits", ()))
    limited = sorted((one.what, one.batch, one.threads) for one in limits if one.what != "hours")
    files = {name: len(paths) for name, paths in (values.get("space") or {}).items() if paths}
    kept = {key: value for key, value in values.items() if key not in (*FREE, "space")}
    return {**kept, "limited": limited, "files": files}
