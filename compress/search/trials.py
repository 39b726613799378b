"""The trials of a search in Optuna's storage: what is tried next, what goes on, and what a killed process left.

A trial is one candidate trained for one share of its optimizer steps. Optuna's sampler proposes candidates; one that is
promoted to the next share is put into Optuna's queue as a trial of its own, with the same parameters. So everything
that is known stands in the storage, and any process that opens it knows what to do next: asynchronous successive
halving, in which no process waits for others (Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning,
arXiv 1810.05934).
"""

from __future__ import annotations

import logging
import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from compress.search.ranges import Point
from compress.search.standing import Standing, ranked
from eval.errors import UserError

if TYPE_CHECKING:
    from compress.search.budget import Budget

logger = logging.getLogger("compress.search")

STORAGE, WORKERS, STUDY = "search.db", "workers", "study"
MOST_PROPOSED = 40
"""Candidates that are proposed for each that is trained; most are ruled out by what they cost."""
PATIENCE_SECONDS = 60.0
"""How long a process waits for another one that writes to the storage."""


@dataclass(frozen=True)
class Job:
    """What a process does next.

    Attributes:
        trial: Of Optuna; the parameters of a new one are drawn when they are asked for.
        rung: Number of the share in ``budget.shares``.
    """

    trial: optuna.Trial
    rung: int


class Trials:
    """The trials of one search, shared by all processes that work on it.

    Args:
        budget: What is searched for.
        folder: Of the search.
        storage: Address of another storage than the file in the folder, as Optuna takes it.

    Attributes:
        over: Whether there is nothing more to do, for other processes neither.

    Raises:
        UserError: The storage cannot be opened, or holds a search of another folder by the same name.
    """

    def __init__(self, budget: Budget, folder: Path, storage: str | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.budget, self.folder, self.over = budget, folder, False
        self.worker, self._began = uuid.uuid4().hex[:12], time.monotonic()
        (folder / WORKERS).mkdir(parents=True, exist_ok=True)
        self._deciding = FileLock(folder / ".deciding.lock")
        with self._deciding:
            self._storage = _opened(folder, storage)
            self.study = optuna.create_study(
                storage=self._storage,
                study_name=budget.name,
                directions=["minimize"] * (1 + len(self.costs)),
                load_if_exists=True,
            )
            is_own = self._is_own()
        if not is_own:
            self._storage.remove_session()
            raise UserError(
                f"storage: holds a search by the name {budget.name!r} already, of another folder; give this one "
                "another with name: in its budget, or take another --storage"
            )
        self._alive = FileLock(folder / WORKERS / f"{self.worker}.lock")
        self._alive.acquire()

    def _is_own(self) -> bool:
        """Whether the study is that of this folder; a new one becomes its own."""
        file = self.folder / STUDY
        if not file.is_file():
            file.write_text(uuid.uuid4().hex, encoding="ascii")
        own = file.read_text(encoding="ascii")
        if "folder" not in self.study.user_attrs:
            self.study.set_user_attr("folder", own)
        return bool(self.study.user_attrs["folder"] == own)

    @property
    def costs(self) -> tuple[str, ...]:
        """What is optimised beside the score."""
        return tuple(aim for aim in self.budget.optimise if aim != "score")

    def close(self) -> None:
        """Say that this process works no longer."""
        self._alive.release()
        (self.folder / WORKERS / f"{self.worker}.lock").unlink(missing_ok=True)
        self._storage.remove_session()  # a connection that stays open is a warning when it is collected

    def standings(self) -> list[Standing]:
        """Return what is known of every candidate, at the last share that it was trained for, in order of proposal."""
        found: dict[str, Standing] = {}
        for trial in self._all():
            standing = Standing.of(trial)
            if not standing.key:  # proposed before, or not drawn yet
                continue
            if standing.key not in found or standing.rung >= found[standing.key].rung:
                found[standing.key] = standing
        return list(found.values())

    def start_with(self, points: Sequence[Point]) -> None:
        """Put the points that are tried first into the queue, once a search."""
        with self._deciding:
            if self.study.user_attrs.get("started"):
                return
            for point in points:
                self.study.enqueue_trial(point, user_attrs={"rung": 0, "start": True})
            self.study.set_user_attr("started", True)

    def reconsider(self) -> None:
        """Put what was dropped for a limit that it is within now into the queue; limits may change on resuming."""
        with self._deciding:
            last = {t.user_attrs.get("again", t.user_attrs.get("key")): t for t in self._all()}
            for key, trial in last.items():
                if key is not None and self._may_come_again(trial):
                    self.study.enqueue_trial(trial.params, user_attrs={"rung": 0, "again": key})

    def _may_come_again(self, trial: FrozenTrial) -> bool:
        standing = Standing.of(trial)
        for_a_limit = standing.state == "dropped" and bool(standing.costs) and "impossible" not in trial.constraints
        return for_a_limit and all(value <= 0 for value in standing.violations(self.budget).values())

    def next(self) -> Job | None:
        """Return what this process does next; None if there is nothing now, or nothing any more (see ``over``).

        What a killed process was doing comes first: its steps go on from their checkpoints. Then the queue, then the
        best candidate that deserves the next share, then a new one.
        """
        with self._deciding:
            trials = self._all()
            left = next((t for t in trials if t.state == TrialState.RUNNING and not self._is_alive(t)), None)
            if left is None and not any(trial.state == TrialState.WAITING for trial in trials):
                promoted = self._promoted()
                if promoted is not None:
                    attributes = {**promoted.user_attrs, "rung": promoted.user_attrs.get("rung", 0) + 1}
                    kept = {name: attributes[name] for name in KEPT if name in attributes}
                    self.study.enqueue_trial(promoted.params, user_attrs=kept)
                elif not self._takes_new():
                    self.over = not any(trial.state == TrialState.RUNNING for trial in trials)
                    return None
            # A proposal depends on what is known and on its number, not on which process makes it, or makes it again.
            number = len(trials) if left is None else left.number
            self.study.sampler = optuna.samplers.TPESampler(seed=self.budget.seed + number)
            trial = self.study.ask() if left is None else optuna.Trial(self.study, left._trial_id)
            trial.set_user_attr("worker", self.worker)
            self._began = time.monotonic()
            return Job(trial, int(trial.user_attrs.get("rung", 0)))

    def drop(self, trial: optuna.Trial, reason: str, violated: dict[str, float]) -> None:
        """End a trial that was not trained.

        Args:
            trial: The trial.
            reason: Why, for the page.
            violated: By how much it is beyond each limit, in parts of it.
        """
        logger.info("%s: not trained, %s", trial.user_attrs.get("label", "a candidate"), reason)
        trial.set_user_attr("dropped", reason)
        _constrain(trial, violated)
        self._tell(trial, state=TrialState.PRUNED)

    def repeated(self, trial: optuna.Trial, key: str) -> bool:
        """End a trial whose candidate was proposed before, with what is known of it; False if it is new."""
        earlier = [t for t in self._all() if t.user_attrs.get("key") == key and t.number != trial.number]
        ended = [t for t in earlier if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        known = [t for t in ended if not self._may_come_again(t)]
        if not known and not any(t.state in (TrialState.RUNNING, TrialState.WAITING) for t in earlier):
            return False
        trial.set_user_attr("same_as", key)
        if known:
            _constrain(trial, known[-1].constraints)
        done = bool(known) and known[-1].state == TrialState.COMPLETE
        self._tell(trial, **({"values": known[-1].values} if done else {"state": TrialState.PRUNED}))
        return True

    def done(self, trial: optuna.Trial, standing: Standing) -> None:
        """End a trial that was trained and measured."""
        _constrain(trial, standing.violations(self.budget))
        self._tell(trial, values=[-standing.high, *(standing.cost(name) for name in self.costs)])

    def _tell(self, trial: optuna.Trial, **outcome: Any) -> None:
        trial.set_user_attr("seconds", round(time.monotonic() - self._began, 3))
        self.study.tell(trial, **outcome)

    def spent(self) -> float:
        """Return the seconds of all trials that ended, over all processes."""
        return sum(float(trial.user_attrs.get("seconds", 0.0)) for trial in self._all())

    def closing(self) -> bool:
        """Whether no further candidate is taken in, so that the best of each share go on, however few there are."""
        return not self._takes_new()

    def _all(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _is_alive(self, trial: FrozenTrial) -> bool:
        """Whether the process that works on a trial is there; a trial of a killed one is gone on with."""
        worker = trial.user_attrs.get("worker")
        if worker == self.worker:
            return True
        lock = self.folder / WORKERS / f"{worker}.lock"
        if worker is None or not lock.exists():
            return False
        try:
            with FileLock(lock, timeout=0):
                return False
        except Timeout:
            return True

    def _promoted(self) -> FrozenTrial | None:
        """Return the trial whose candidate is trained for the next share: of the highest share, the best."""
        trials, shares, closing = self._all(), self.budget.shares, self.closing()
        failed = {t.user_attrs.get("key") for t in trials if t.state == TrialState.PRUNED and _goes_on(t, 0)}
        for rung in reversed(range(len(shares) - 1)):
            done = {t.user_attrs["key"]: t for t in trials if _is_done(t, rung) and t.user_attrs["key"] not in failed}
            further = {t.user_attrs.get("key") for t in trials if _goes_on(t, rung)}
            count = int(len(done) * shares[rung] / shares[rung + 1] + 1e-9)
            count = max(count, self.budget.winners) if closing else count
            order = ranked([Standing.of(trial) for trial in done.values()], self.budget)
            first = [one.key for one in order[:count]] + [
                one.key for one in order if done[one.key].user_attrs.get("start")
            ]
            for key in first:
                if key not in further and self._affords(done[key], shares[rung + 1] / shares[rung]):
                    return done[key]
        return None

    def _affords(self, trial: FrozenTrial, times: float) -> bool:
        limit = self.budget.limit("hours")
        return limit is None or self.spent() + trial.user_attrs["seconds"] * times <= limit.most * 3600

    def _takes_new(self) -> bool:
        trials, most = self._all(), self.budget.candidates
        proposed = [t for t in trials if t.user_attrs.get("rung", 0) == 0]
        trained = [t for t in proposed if t.state != TrialState.PRUNED and "same_as" not in t.user_attrs]
        if most is not None and len(trained) >= most:
            return False
        if len(proposed) >= MOST_PROPOSED * (1 + len(trained)):
            return False
        limit, times = self.budget.limit("hours"), [float(t.user_attrs.get("seconds", 0.0)) for t in trained]
        if limit is None or not any(times):
            return limit is None or self.spent() < limit.most * 3600
        # What is left must be enough to train the best of them to the end.
        shares, one = self.budget.shares, sum(times) / len(times)
        finished = any(_is_done(trial, len(shares) - 1) for trial in trials)
        ahead = 0.0 if finished else one * sum(shares[1:]) / shares[0] * self.budget.winners
        return self.spent() + one + ahead <= limit.most * 3600


KEPT = ("rung", "start", "key", "label", "costs")
"""Attributes that a trial has in common with the one that it goes on from."""


def _opened(folder: Path, storage: str | None) -> optuna.storages.RDBStorage:
    """Return the storage of a search: a database that was named, or the file in its folder."""
    if storage is None:
        # In an address the '?' and '{' of a folder's name would mean something.
        opens = partial(sqlite3.connect, folder / STORAGE, timeout=PATIENCE_SECONDS, check_same_thread=False)
        return optuna.storages.RDBStorage(f"sqlite:///{STORAGE}", engine_kwargs={"creator": opens})
    try:
        return optuna.storages.RDBStorage(storage)
    except (ImportError, SQLAlchemyError) as error:
        why = str(error).splitlines()[0]
        raise UserError(
            f"storage: cannot be opened ({why}); give the address of a database, such as sqlite:////shared/search.db"
        ) from error


def _constrain(trial: optuna.Trial, violations: Mapping[str, float]) -> None:
    for name, value in violations.items():
        if name not in trial.constraints:  # a killed process may have got so far
            trial.set_constraint(name, value)


def _is_done(trial: FrozenTrial, rung: int) -> bool:
    known = trial.user_attrs
    return trial.state == TrialState.COMPLETE and "key" in known and known.get("rung", 0) == rung


def _goes_on(trial: FrozenTrial, rung: int) -> bool:
    return int(trial.user_attrs.get("rung", 0)) > rung
