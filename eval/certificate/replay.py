"""Levels 3 and 4: both models answer the examples again; sizes and speed are taken again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from eval.certificate.contents import Certificate, Contents, Machine, Model, Speed
from eval.certificate.findings import Finding, Word
from eval.certificate.recomputing import outcome_of, scored
from eval.errors import quantity
from eval.kinds.kind_registry import kind_of
from eval.ranking.index_fields import IndexSize


@dataclass(frozen=True)
class Replayed:
    """A model that answered again.

    Attributes:
        predictions: One an example, as plain values.
        outputs: The raw outputs behind them.
        bytes: Bytes of its weight files.
        macs: Multiply-accumulates of one input of ``macs_length`` tokens, if they could be counted.
        macs_length: Tokens of that input.
        parameters: Weights, if they could be counted.
        index: What the index of its documents takes, if they are held in one.
    """

    predictions: Sequence[dict[str, Any]]
    outputs: Sequence[Any]
    bytes: int | None
    macs: int | None
    macs_length: int | None = None
    parameters: int | None = None
    index: IndexSize | None = None


@dataclass(frozen=True)
class ReplayedStress:
    """Perturbed texts that both models answered again.

    Attributes:
        asked: Rule, number of the example and its truth, a text each.
        candidate: What the candidate answered to them.
        teacher: What the teacher did.
    """

    asked: Sequence[tuple[str, int, dict[str, Any]]]
    candidate: Replayed
    teacher: Replayed


class Replay(Protocol):
    """What runs the models of a certificate again."""

    def candidate(self) -> Replayed:
        """Let the candidate answer."""
        ...

    def teacher(self) -> Replayed:
        """Let the teacher answer."""
        ...

    def under_stress(self, seed: int) -> ReplayedStress:
        """Let both answer the texts that the rules perturb."""
        ...

    def machine(self) -> Machine:
        """Describe this machine, with its threads."""
        ...

    def ratio(self, speed: Speed) -> float | None:
        """Time both models as for ``speed``; return the ratio of their medians."""
        ...


def check_predictions(contents: Contents, candidate: Replayed, teacher: Replayed) -> Finding:
    """Compare predictions one by one, and the verdict that follows from the new ones.

    Ties within the tolerance count as equal: a label that another machine prefers by less than a hair is no difference.
    """
    main, rows = contents.main, contents.rows
    different: list[str] = []
    numbers = [f"example {number} (from 0)" for number in range(len(rows))]
    for role, found in (("candidate", candidate), ("teacher", teacher)):
        different += _different(role, main, numbers, [getattr(row, role) for row in rows], found)
    gold, *_, groups = scored(contents)
    sides = (list(candidate.predictions), list(teacher.predictions))
    outcome = outcome_of(main.task, main.fixed.claim, gold, *sides, groups, main.family)
    if outcome.verdict != main.outcome.verdict:
        different.insert(0, f"the verdict from the new predictions is {outcome.verdict}, not {main.outcome.verdict}")
    return Finding(3, Word.NOT_REPRODUCED if different else Word.VALID, tuple(different))


def check_stress(contents: Contents, again: ReplayedStress) -> Finding:
    """Compare the answers to perturbed texts one by one."""
    main, known = contents.main, contents.perturbed
    if [(each.rule, each.example, each.gold) for each in known] != [*again.asked]:
        return Finding(3, Word.NOT_REPRODUCED, ("the rules perturb other examples here than in the certificate",))
    names = [f"{each.rule}, example {each.example} (from 0)" for each in known]
    different = [
        *_different("candidate", main, names, [each.candidate for each in known], again.candidate),
        *_different("teacher", main, names, [each.reference for each in known], again.teacher),
    ]
    return Finding(3, Word.NOT_REPRODUCED if different else Word.VALID, tuple(different))


def _different(
    role: str, main: Certificate, names: Sequence[str], known: Sequence[dict[str, Any]], found: Replayed
) -> Iterator[str]:
    if len(found.predictions) != len(known):
        yield f"{role}: {quantity(len(found.predictions), 'prediction')} for {quantity(len(known), 'example')}"
        return
    for number, (one, other) in enumerate(zip(known, found.predictions, strict=True)):
        same = equal(one, other, main.tolerances.number)
        if not same and not is_tie(main.task, one, other, found.outputs[number], main.tolerances.tie):
            yield f"{role}, {names[number]}: was {_shown(one)}, now it is {_shown(other)}"


def equal(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two predictions are equal, numbers with a fraction within a tolerance (relative above 1)."""
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return abs(one - other) <= tolerance * max(1.0, abs(one))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name], tolerance) for name in one)
    if isinstance(one, list) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(lambda a, b: equal(a, b, tolerance), one, other))
    return bool(one == other)


def is_tie(
    task: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any], output: Any, tolerance: float
) -> bool:
    """Return whether a model that was run again gives other labels, but hardly prefers them to those of a certificate.

    Only of kinds that predict names or places of labels; a span of a text has to be the same.

    Args:
        task: The task specification.
        one: The prediction of the certificate.
        other: That of the model now.
        output: Its raw output behind it, ``[C]`` or ``[words, C]``.
        tolerance: See ``Tolerances.tie``.
    """
    regret = kind_of(str(task["kind"])).turned(list(task.get("labels", ())), one, other, output)
    if regret is None:
        return False
    rows = np.asarray(output, dtype=np.float64)
    return bool(regret.max(initial=0.0) <= tolerance * max(1.0, float(np.abs(rows).max(initial=0.0))))


def _shown(prediction: Any) -> str:
    text = str(prediction)
    return text if len(text) <= 80 else f"{text[:79]}…"


def check_cost(contents: Contents, candidate: Replayed, teacher: Replayed, replay: Replay) -> Finding:
    """Compare sizes exactly, and speed ratios on the same processor features and threads alone."""
    main = contents.main
    wrong = [*_sizes(main.candidate, candidate), *_sizes(main.teacher, teacher)]
    wrong += _index_sizes(main.index_size, candidate.index)
    if wrong:
        return Finding(4, Word.NOT_REPRODUCED, tuple(wrong))
    if not main.speeds:
        return Finding(4, Word.VALID, ("no speed is claimed",))
    here, there = replay.machine(), main.machine
    if sorted(here.features) != sorted(there.features) or here.threads != there.threads:
        return Finding(
            4,
            Word.NOT_COMPARABLE,
            (
                f"speed: measured with {_described(there)}",
                f"speed: here there is {_described(here)}",
            ),
        )
    slower: list[str] = []
    told: list[str] = []
    for speed in main.speeds:
        ratio = replay.ratio(speed)
        if ratio is None:
            return Finding(4, Word.NOT_COMPARABLE, ("speed: the models cannot be timed here",))
        line = f"speedup at batch size {speed.batch}: {ratio:.2f} here, {speed.ratio:.2f} in the certificate"
        (slower if ratio * main.tolerances.ratio < speed.ratio else told).append(line)
    return Finding(4, Word.NOT_REPRODUCED if slower else Word.VALID, tuple(slower or told))


def _sizes(model: Model, found: Replayed) -> Iterator[str]:
    counted = {
        "bytes": (found.bytes, model.bytes),
        "parameters": (found.parameters, model.parameters),
        "multiply-accumulates": (found.macs, model.macs),
        "tokens of the input they are counted for": (found.macs_length, model.macs_length),
    }
    for what, (now, before) in counted.items():
        if None not in (now, before) and now != before:
            yield f"{model.name}: {what}: {now:,} here, {before:,} in the certificate"


def _index_sizes(known: IndexSize | None, found: IndexSize | None) -> Iterator[str]:
    before, now = ({} if size is None else asdict(size) for size in (known, found))
    for what in {**before, **now}:
        if before.get(what) != now.get(what):
            yield f"index: {what}: {now.get(what, 0):,} here, {before.get(what, 0):,} in the certificate"


def _described(machine: Machine) -> str:
    threads = ", ".join(f"{name} {count}" for name, count in sorted(machine.threads.items())) or "threads not named"
    return f"{', '.join(machine.features) or 'no named features'}; {threads}"
