"""How a candidate stands: what it costs, what it scored at its last share, and who goes on before whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.export.runtime.manifest import MANIFEST

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from compress.search.budget import Budget
    from eval.result import Result


@dataclass(frozen=True)
class Standing:
    """What is known of a candidate.

    Attributes:
        number: Of its trial.
        key: Its name.
        label: What it is.
        rung: Number of the share that it was trained for last.
        state: What became of it: running, trained, dropped.
        costs: Bytes, multiply-accumulates, parameters and milliseconds by name.
        score: Primary metric on the examples that choose; None where it was not trained.
        difference: To the teacher: value, lower and upper end of the interval.
        dropped: Why it was not trained at all.
        seconds: What its trials took.
        places: Folders of its steps in the store.
        point: Where it is in the space.
    """

    number: int
    key: str
    label: str
    rung: int
    state: str
    costs: Mapping[str, Any]
    score: float | None = None
    difference: tuple[float, float, float] | None = None
    dropped: str = ""
    seconds: float = 0.0
    places: tuple[str, ...] = ()
    point: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, trial: FrozenTrial) -> Standing:
        """Return what a trial of Optuna says."""
        known, states = trial.user_attrs, {"COMPLETE": "trained", "PRUNED": "dropped"}
        return cls(
            number=trial.number,
            key=known.get("key", ""),
            label=known.get("label", ""),
            rung=int(known.get("rung", 0)),
            state=states.get(trial.state.name, "running"),
            costs=known.get("costs", {}),
            score=known.get("score"),
            difference=tuple(known["difference"]) if "difference" in known else None,
            dropped=known.get("dropped", ""),
            seconds=float(known.get("seconds", 0.0)),
            places=tuple(known.get("places", ())),
            point=trial.params,
        )

    @property
    def low(self) -> float:
        """The lower end of the interval of the difference to the teacher."""
        return float("-inf") if self.difference is None else self.difference[1]

    @property
    def high(self) -> float:
        """The upper end: how good it may be."""
        return float("-inf") if self.difference is None else self.difference[2]

    @property
    def told(self) -> str:
        """The difference to the teacher with its interval; a dash for what was not trained."""
        return "-" if self.difference is None else "{:+.4f} [{:+.4f}, {:+.4f}]".format(*self.difference)

    def cost(self, name: str) -> float:
        """Return what it costs in bytes, macs, parameters or p50_ms."""
        value = self.costs.get(name)
        return float("inf") if value is None else float(value)

    def violations(self, budget: Budget) -> dict[str, float]:
        """Return by how much it is beyond each limit: of costs in parts of the limit, of the loss in its own units.

        The loss counts by the upper end of the interval: a candidate is ruled out where it is surely too bad.
        """
        found = {}
        for limit in budget.limits:
            if limit.what == "loss":
                if self.difference is not None:
                    found["loss"] = -limit.most - self.high
            elif limit.what != "hours" and self.costs.get(limit.what) is not None:
                found[limit.what] = self.cost(limit.what) / limit.most - 1
        return found

    def within(self, budget: Budget) -> bool:
        """Whether its costs, and its loss as it was observed, are within the limits."""
        limit = budget.limit("loss")
        lost = limit is not None and (self.difference is None or self.difference[0] < -limit.most - 1e-12)
        costs = {name: value for name, value in self.violations(budget).items() if name != "loss"}
        return not lost and all(value <= 0 for value in costs.values())

    def vector(self, budget: Budget) -> tuple[float, ...]:
        """Return what a front is made of; all of it shall be small."""
        costs = tuple(self.cost(name) for name in budget.optimise if name != "score")
        return (*costs, -self.high)


@dataclass(frozen=True)
class Winner:
    """A candidate that was looked at on the examples that report.

    Attributes:
        standing: How it stood on those that choose.
        folder: Its run, as ``compress run`` leaves it.
        results: What was measured there.
        certificate: Its certificate; None where there can be none.
        said: The sentence of the certificate, or why there is none.
    """

    standing: Standing
    folder: Path
    results: tuple[Result, ...]
    certificate: Path | None = None
    said: str = ""

    @property
    def result(self) -> Result | None:
        """What its export scored, the one in 8 bits where there is one; the model itself without an export."""
        held = [result for result in self.results if result.comparison is not None]
        exports = [result for result in held if (self.folder / result.name).is_dir()]
        in_8_bits = [result for result in exports if result.name.endswith("-int8")]
        return next(iter([*in_8_bits, *exports, *held]), None)

    @property
    def export(self) -> Path | None:
        """The folder of the export that was judged; None if it was the model itself."""
        place = None if self.result is None else self.folder / self.result.name
        return place if place is not None and (place / MANIFEST).is_file() else None

    @property
    def p_value(self) -> float:
        """One-sided, of "it loses the margin or more"; 1 where its scores show no margin."""
        compared = None if self.result is None else self.result.comparison
        found = None if compared is None else compared.noninferiority_p
        return 1.0 if found is None or math.isnan(found) else found


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether a point is nowhere worse than another, and somewhere better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def ranked(standings: Sequence[Standing], budget: Budget) -> list[Standing]:
    """Return candidates in the order in which they go on.

    First come those that may still be within the limit of the loss, by the upper end of the interval of the paired
    difference, then the others, the nearest first. Of the former, those that no other dominates in what is optimised
    come first; ties are broken by the upper end, then by the name, so that the order depends on nothing else.
    """
    vectors = {one.key: one.vector(budget) for one in standings}

    def place(one: Standing) -> tuple[float, int, float, str]:
        beyond = max([0.0, *one.violations(budget).values()])
        above = sum(dominates(other, vectors[one.key]) for other in vectors.values())
        return (beyond, above, -one.high, one.key)

    return sorted(standings, key=place)


def front(standings: Sequence[Standing], budget: Budget) -> list[Standing]:
    """Return the candidates that were trained to the end and that no other dominates, the smallest first.

    A point is score, bytes and, where they are measured, milliseconds, whatever is optimised.
    """
    last = len(budget.shares) - 1
    ended = [one for one in standings if one.rung == last and one.state == "trained" and one.difference is not None]
    costs = ("bytes", "p50_ms") if budget.times else ("bytes",)

    def point(one: Standing) -> tuple[float, ...]:
        assert one.difference is not None
        return (*(one.cost(name) for name in costs), -one.difference[0])

    kept = [one for one in ended if not any(dominates(point(other), point(one)) for other in ended)]
    return sorted(kept, key=lambda one: (*point(one), one.key))


def winners(standings: Sequence[Standing], budget: Budget) -> list[Standing]:
    """Return the candidates that are looked at on the test split: the best that are within every limit.

    Those whose interval is within the margin already on the examples that choose come first, in the order of what is
    optimised; then those whose lower end is highest, for they are the likeliest to be shown.
    """
    last, margin = len(budget.shares) - 1, budget.margin
    ended = [one for one in standings if one.rung == last and one.state == "trained" and one.within(budget)]

    def place(one: Standing) -> tuple[Any, ...]:
        assert one.difference is not None
        aims = tuple(-one.difference[0] if aim == "score" else one.cost(aim) for aim in budget.optimise)
        return (0, *aims, one.key) if one.low >= -margin else (1, -one.low, *aims, one.key)

    return sorted(ended, key=place)[: budget.winners]


def nearest(standings: Sequence[Standing], budget: Budget) -> Standing | None:
    """Return the candidate that misses the limits by the least, of those that were trained the furthest."""
    trained = [one for one in standings if one.difference is not None]
    if not trained:
        return None

    def missed(one: Standing) -> float:
        assert one.difference is not None
        beyond = {name: max(0.0, value) for name, value in one.violations(budget).items() if name != "loss"}
        limit = budget.limit("loss")
        loss = 0.0 if limit is None else max(0.0, -limit.most - one.difference[0])
        return sum(beyond.values()) + loss / max(budget.margin, 1e-9)

    furthest = max(one.rung for one in trained)
    return min((one for one in trained if one.rung == furthest), key=lambda one: (missed(one), one.key))
