"""A sweep: one teacher for every combination of settings and seeds; the best by validation is kept.

The way of Devlin, Chang, Lee, Toutanova 2018, arXiv 1810.04805: a few learning rates and numbers of epochs, chosen on
the development set, with several seeds each, as small tasks scatter. Every member is an ordinary fine-tuning, so it is
kept under ``COMPRESS_HOME``, goes on where it stopped, and is found again.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from eval.errors import DivergedError, UserError, did_you_mean
from eval.files.writing import atomic_write
from eval.progress.stages import one_by_one
from teachers.renamed import with_new_names
from teachers.training.config import Training

if TYPE_CHECKING:
    from eval.data.loading import Task
    from teachers.taskmodel import TaskModel

logger = logging.getLogger("teachers.finetuning.sweep")

SEED = "seed"
"""The one name in a sweep that is no field of ``Training``."""
OPTIMISTIC = "The best was chosen by these very scores, so its own is optimistic; judge it on other examples."
"""What has to be said of the winner's score."""
Values = Mapping[str, Sequence[Any]]
Fit = Callable[..., "tuple[TaskModel, Path]"]
"""Fine-tunes as ``teachers.finetuning.finetune`` does, whose first three arguments, seed and name it is given."""


@dataclass(frozen=True)
class Trial:
    """One setting.

    Attributes:
        setting: The swept fields of ``Training`` with their values.
        scores: Validation score by seed; None where training diverged.
    """

    setting: Mapping[str, Any]
    scores: Mapping[int, float | None]

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None if one of them diverged."""
        known = [score for score in self.scores.values() if score is not None]
        return statistics.fmean(known) if len(known) == len(self.scores) else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds (n - 1); None if one diverged or there is only one."""
        known = [score for score in self.scores.values() if score is not None]
        return statistics.stdev(known) if len(known) == len(self.scores) > 1 else None

    @property
    def best_seed(self) -> int:
        """The seed with the highest score, the first of equals."""
        return max(self.scores, key=lambda seed: -float("inf") if (score := self.scores[seed]) is None else score)


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Attributes:
        teacher: The best setting's best seed.
        folder: Where it is kept.
        metric: What the scores are.
        trials: One a setting, in the order in which they were trained.
        best: The trial with the highest mean, the first of equals.
    """

    teacher: TaskModel
    folder: Path
    metric: str
    trials: tuple[Trial, ...]
    best: Trial

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and cells of a table: a line for each setting, the best one marked."""
        seeds = list(self.best.scores)
        headings = [*self.best.setting, f">{self.metric}", ">spread", *(f">seed {seed}" for seed in seeds), ""]
        cells = [
            [
                *(f"{value:g}" if isinstance(value, float) else str(value) for value in trial.setting.values()),
                *(_shown(number) for number in (trial.mean, trial.spread, *trial.scores.values())),
                f"best, seed {trial.best_seed}" if trial is self.best else "",
            ]
            for trial in self.trials
        ]
        return headings, cells

    def facts(self) -> dict[str, Any]:
        """Return the same as plain JSON values."""
        trials = [
            {"setting": dict(each.setting), "scores": dict(each.scores), "mean": each.mean, "spread": each.spread}
            for each in self.trials
        ]
        best = {"setting": dict(self.best.setting), "seed": self.best.best_seed}
        return {"metric": self.metric, "split": "select", "trials": trials, "best": best, "note": OPTIMISTIC}


def checked(values: Values, context: Any = None) -> dict[str, tuple[Any, ...]]:
    """Return the values of a sweep as ``Training`` takes them.

    Args:
        values: For each field of ``Training``, or ``seed``, the values to try.
        context: Of the validation, for old names of fields; see ``teachers.renamed``.

    Raises:
        UserError: With everything that is wrong with them.
    """
    problems = [] if values else ["sweep: is empty; name fields with their values, such as learning_rate: [2e-5, 5e-5]"]
    found: dict[str, tuple[Any, ...]] = {}
    for name, given in with_new_names(dict(values), Training.renamed, context).items():
        if name != SEED and name not in Training.model_fields:
            problems.append(f"sweep: unknown field {name!r}{did_you_mean(name, [SEED, *Training.model_fields])}")
            continue
        some = [_valid(name, value, problems) for value in given]
        if not some:
            problems.append(f"sweep.{name}: must name at least one value")
        elif any(value in some[:place] for place, value in enumerate(some)):
            problems.append(f"sweep.{name}: got {list(given)}; each value must stand there once")
        found[name] = tuple(some)
    if problems:
        raise UserError(*problems)
    return found


def _valid(name: str, value: Any, problems: list[str]) -> Any:
    if name == SEED:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
            problems.append(f"sweep.seed: got {value!r}; must be a whole number from 0 to {2**32 - 1}")
        return value
    try:
        return getattr(Training.model_validate({name: value}), name)
    except ValidationError as error:
        said = [part["msg"] for part in error.errors()]
        problems += [f"sweep.{name}: got {value!r}; {each[:1].lower()}{each[1:]}" for each in said]
        return value


def settings(training: Training, values: Values) -> list[tuple[dict[str, Any], Training]]:
    """Return every combination of the swept fields, the last one changing fastest, with the training that it makes."""
    names = [name for name in values if name != SEED]
    combined = [dict(zip(names, chosen, strict=True)) for chosen in product(*(values[name] for name in names))]
    given = training.model_dump(exclude_unset=True)
    return [(setting, Training.model_validate({**given, **setting})) for setting in combined]


def run_sweep(
    start: Callable[[int], str | Path | TaskModel],
    task: Task,
    training: Training,
    values: Values,
    *,
    seed: int = 13,
    name: str = "teacher",
    fit: Fit | None = None,
) -> Sweep:
    """Fine-tune with every combination of values, and return the best with the scores of all.

    Settings are compared by the mean of their seeds; one that diverges with a seed cannot win. The figures are also
    written into the winner's ``teacher.json``, under ``sweep``.

    Args:
        start: Returns what fine-tuning starts from, given a seed; a network that is already built must be a new one.
        task: The task with its data; ``task.select`` chooses the best epoch of each member and the best
            member.
        training: What all settings have in common.
        values: What they differ in; see ``checked``.
        seed: The only seed, if ``values`` names none.
        name: What reports call the teacher.
        fit: Makes each member; plain ``finetune`` by default.

    Raises:
        UserError: If values, base or data are unusable, or there are no labels to choose by.
        DivergedError: If no setting gets through with all of its seeds.
    """
    from teachers.finetuning.finetune import finetune, kept_teacher
    from teachers.training.scoring import scorable

    values = checked(values)
    if not scorable(task.spec, task.select):
        where = task.source or "the data"
        raise UserError(
            f"{where}: a sweep chooses by scores, and there are no examples with labels to choose on: validation "
            "reports or is missing, and the training examples are too few to carve some; name one as evaluate.select"
        )
    seeds = values.get(SEED, (seed,))
    trials: list[Trial] = []
    folders: dict[tuple[int, int], Path] = {}
    for setting, own in one_by_one(settings(training, values), f"sweep of {name}"):
        scores: dict[int, float | None] = {}
        for each in seeds:
            scores[each], folders[len(trials), each] = _member(fit or finetune, start(each), task, own, each, name)
        trials.append(Trial(setting, scores))
        logger.info("%s: %s %s %s", name, setting, task.spec.metric, _shown(trials[-1].mean))
    means = [trial.mean for trial in trials]
    known = [mean for mean in means if mean is not None]
    if not known:
        raise DivergedError(f"{name}: every setting of the sweep diverged with some seed; try lower learning rates")
    place = means.index(max(known))
    folder = folders[place, trials[place].best_seed]
    return _kept(Sweep(kept_teacher(folder, name), folder, task.spec.metric, tuple(trials), trials[place]))


def _member(
    fit: Fit, base: str | Path | TaskModel, task: Task, training: Training, seed: int, name: str
) -> tuple[float | None, Path]:
    try:
        _, folder = fit(base, task, training, seed=seed, name=name)
    except DivergedError as error:
        logger.warning("%s", error)
        return None, Path()
    from teachers.finetuning.finetune import read_facts

    history = read_facts(folder)["history"]
    scores = [entry["score"] for entry in history]
    return float(max(scores) if training.keep == "best" else scores[-1]), folder


def _kept(found: Sweep) -> Sweep:
    from teachers.finetuning.finetune import read_facts

    file = found.folder / "teacher.json"
    facts = read_facts(found.folder) | {"sweep": found.facts()}
    atomic_write(file, (json.dumps(facts, indent=2) + "\n").encode())
    return found


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.4f}"
