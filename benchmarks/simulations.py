"""Simulate how often the intervals of a paired difference hold the truth, and how often a loss passes unseen.

    python -m benchmarks.simulations [--quick] [--out benchmarks/results/statistics.json]
                                     [--page docs/results/statistics.md]

*Coverage*: from a population of 200,000 examples whose true difference is known, samples are drawn and compared as
``eval.measurement.pair`` does. *False non-inferiority*: the true loss is the margin, so that each "non-inferior" is an
error; for single examples that are right or wrong the probability is computed exactly, by going through all possible
counts. Each cell has a seed of its own and is kept when it is done, so that an interrupted run goes on with the next.
The page is written from what is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.markdown_table import markdown_table
from eval.files.writing import atomic_write
from eval.metrics.correlation import pearson
from eval.metrics.scorers import f1
from eval.proof.contributions import contributions, units_of
from eval.proof.paired_difference import PairedDifference
from eval.proof.paired_proportions import Discordance, score
from eval.proof.paired_statistics import Metric

HERE = Path(__file__).parent
DATA, PAGE = HERE / "results" / "statistics.json", HERE.parent / "docs" / "results" / "statistics.md"
SIZES = (200, 400, 872, 2000)
FALSE_SIZES = (100, 200, 400, 872, 2000)
DISAGREEMENTS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
MARGINS = (0.005, 0.01, 0.02, 0.03, 0.05)
POPULATION = 200_000
SHARES, SLOW_SHARES = {872: 2, 2000: 4}, {872: 3, 2000: 6}
"""Of larger samples so many times fewer are drawn; the second of Spearman, which takes longest."""
CLASSES = 77
Array = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """Both models on some examples of a population.

    Attributes:
        candidate: The metric of the candidate on given indices.
        reference: That of the reference.
        examples: How many there are.
        groups: The group of each example, if they have one.
        alike: ``[N]``, equal for examples that are alike in all that the metrics read; None if all differ.
        binary: Whether every example is right or wrong for itself.
    """

    candidate: Metric
    reference: Metric
    examples: int
    groups: Array | None = None
    alike: Array | None = None
    binary: bool = False

    def difference(self) -> PairedDifference:
        """Return what ``pair`` finds for these examples."""
        everything = np.arange(self.examples)
        units = units_of(self.examples, None if self.groups is None else self.groups.tolist())
        sides = [self._contributions(metric, units) for metric in (self.candidate, self.reference)]
        value = self.candidate(everything) - self.reference(everything)
        return PairedDifference.of(sides[0], sides[1], [value], self.binary and self.groups is None)

    def _contributions(self, metric: Metric, units: Sequence[Array]) -> Array:
        """Return ``[1, units]``; of single examples that are alike, one is left out for all of them."""
        if self.alike is None or len(units) < self.examples:
            return contributions(metric, self.examples, units)[None]
        _, first, back = np.unique(self.alike, return_index=True, return_inverse=True)
        return contributions(metric, self.examples, list(first[:, None]), self.examples)[back][None]


def means(candidate: Array, reference: Array, groups: Array | None = None) -> Sample:
    """Return a sample whose metric is the mean of one value an example."""
    alike = None if groups is not None else np.unique(np.stack([candidate, reference]), axis=1, return_inverse=True)[1]
    binary = bool(np.isin(candidate, (0, 1)).all() and np.isin(reference, (0, 1)).all())

    def metric(side: Array) -> Metric:
        return lambda rows: float(side[rows].mean())

    alike = None if alike is None else alike.reshape(-1)
    return Sample(metric(candidate), metric(reference), len(candidate), groups, alike, binary)


def ratios(candidate: Array, reference: Array, groups: Array | None = None) -> Sample:
    """Return a sample whose metric is the F1 of three counts ``[N, 3]`` an example."""
    alike = None
    if groups is None:
        alike = np.unique(np.concatenate([candidate, reference], axis=1), axis=0, return_inverse=True)[1].reshape(-1)

    def metric(side: Array) -> Metric:
        return lambda rows: f1(*side[rows].sum(axis=0).tolist())

    return Sample(metric(candidate), metric(reference), len(candidate), groups, alike)


@dataclass(frozen=True)
class Population:
    """Examples with what both models make of them, as columns of numbers, and how samples of them are drawn.

    Attributes:
        columns: ``[N, k]``.
        sample: Makes a sample of rows of the columns, given the group of each.
        groups: First row of each group, and one behind the last; None where examples stand alone.
    """

    columns: Array
    sample: Callable[[Array, Array | None], Sample]
    groups: Array | None = None

    @property
    def truth(self) -> float:
        """The difference on all examples."""
        everything = self.sample(self.columns, None)
        rows = np.arange(len(self.columns))
        return everything.candidate(rows) - everything.reference(rows)

    def draw(self, examples: int, chance: np.random.Generator) -> Sample:
        """Draw single examples, or so many whole groups that there are about so many examples."""
        if self.groups is None:
            return self.sample(self.columns[chance.integers(0, len(self.columns), examples)], None)
        sizes = np.diff(self.groups)
        chosen = chance.integers(0, len(sizes), max(2, round(examples / sizes.mean())))
        rows = np.concatenate([np.arange(self.groups[group], self.groups[group + 1]) for group in chosen])
        return self.sample(self.columns[rows], np.repeat(np.arange(len(chosen)), sizes[chosen]))


def accuracy(chance: np.random.Generator) -> Population:
    """Two classifiers of about 90%, of which one is right alone on 6% of the examples."""
    kind = chance.random(POPULATION)
    reference = np.where(kind < 0.06, kind < 0.035, chance.random(POPULATION) < 0.93)
    candidate = np.where(kind < 0.06, ~reference, reference)
    return Population(np.stack([candidate, reference], axis=1).astype(float), lambda c, g: means(c[:, 0], c[:, 1], g))


def binary_f1(chance: np.random.Generator) -> Population:
    """Two classifiers of paraphrases, 68% positive, that differ on about 6%."""
    truth = chance.random(POPULATION) < 0.68
    reference = truth ^ (chance.random(POPULATION) < 0.15)
    candidate = reference ^ (chance.random(POPULATION) < np.where(reference == truth, 0.036, 0.14))
    counts = [np.stack([side & truth, side, truth], axis=1) for side in (candidate, reference)]
    return Population(np.concatenate(counts, axis=1).astype(float), lambda c, g: ratios(c[:, :3], c[:, 3:], g))


def many_classes(chance: np.random.Generator) -> Population:
    """77 intents of equal share and unequal difficulty; errors fall on one of three near ones."""
    truth = chance.integers(0, CLASSES, POPULATION)
    hard = 0.2 * chance.random(CLASSES)
    others = [(truth + chance.integers(1, 4, POPULATION)) % CLASSES for _ in range(2)]
    reference = np.where(chance.random(POPULATION) < hard[truth], others[0], truth)
    again = np.where(chance.random(POPULATION) < 0.8, truth, others[1])
    candidate = np.where(chance.random(POPULATION) < 0.1, again, reference)
    return Population(np.stack([truth, candidate, reference], axis=1), _macro)


def rare_classes(chance: np.random.Generator) -> Population:
    """Three classes of 9 : 3 : 1, whose F1 counts alike; the candidate gives 3% of the examples a label by chance."""
    truth = chance.choice(3, POPULATION, p=np.array([9, 3, 1]) / 13)
    reference = np.where(chance.random(POPULATION) < 0.1, chance.integers(0, 3, POPULATION), truth)
    candidate = np.where(chance.random(POPULATION) < 0.03, chance.integers(0, 3, POPULATION), reference)
    return Population(np.stack([truth, candidate, reference], axis=1), _macro)


def unequal_groups(chance: np.random.Generator) -> Population:
    """Groups of ten on average, some of them large; the candidate fails in a few of them, on many of their examples."""
    sizes = np.maximum(1, np.round(10 * np.exp(chance.normal(0, 0.7, POPULATION // 10) - 0.245))).astype(int)
    fails = np.repeat(chance.beta(1, 1 / 0.03 - 1, len(sizes)), sizes)
    reference = chance.random(len(fails)) < 0.9
    candidate = reference & (chance.random(len(fails)) >= fails)
    columns = np.stack([candidate, reference], axis=1).astype(float)
    first = np.concatenate([[0], np.cumsum(sizes)])
    return Population(columns, lambda c, g: means(c[:, 0], c[:, 1], g), first)


def _macro(columns: Array, groups: Array | None) -> Sample:
    truth, sides = columns[:, 0], (columns[:, 1], columns[:, 2])

    def metric(side: Array) -> Metric:
        def of(rows: Array) -> float:
            found, wanted = side[rows], truth[rows]
            both = np.bincount(found, minlength=CLASSES) + np.bincount(wanted, minlength=CLASSES)
            right = np.bincount(wanted[found == wanted], minlength=CLASSES)
            return float((2 * right[both > 0] / both[both > 0]).mean())

        return of

    alike = (truth * CLASSES + sides[0]) * CLASSES + sides[1]
    return Sample(metric(sides[0]), metric(sides[1]), len(columns), groups, alike)


def entities(chance: np.random.Generator) -> Population:
    """Sentences of news in documents of 15 on average; some documents are hard for both models, some for one."""
    sizes = 2 + chance.negative_binomial(1.2, 1.2 / 14.2, POPULATION // 15)
    document = np.repeat(np.arange(len(sizes)), sizes)
    wanted = chance.poisson(1.8, len(document))
    both = chance.normal(2.6, 0.8, len(sizes))[document]
    own = [both + chance.normal(mean, 0.35, len(sizes))[document] for mean in (-0.15, 0.0)]
    shared = chance.random((len(document), 8))  # an entity is as hard for one model as for the other
    limit = np.arange(8) < np.minimum(wanted, 8)[:, None]
    counts = []
    for strength in own:
        noise = np.where(chance.random(shared.shape) < 0.2, chance.random(shared.shape), shared)
        right = ((noise < 1 / (1 + np.exp(-strength))[:, None]) & limit).sum(axis=1)
        missed = np.minimum(wanted, 8) - right
        counts.append(np.stack([right, right + chance.binomial(missed, 0.8), np.minimum(wanted, 8)], axis=1))
    columns = np.concatenate(counts, axis=1).astype(float)
    return Population(columns, lambda c, g: ratios(c[:, :3], c[:, 3:], g), np.concatenate([[0], np.cumsum(sizes)]))


def similarity(chance: np.random.Generator) -> Population:
    """Scores of pairs of sentences from 0 to 5 in steps of 0.2, and two models that follow them about as well."""
    latent = chance.normal(size=POPULATION)
    truth = np.round(np.clip(1.3 * latent + 2.6, 0, 5) * 5) / 5
    reference = latent + 0.6 * chance.normal(size=POPULATION)
    candidate = reference + 0.2 * chance.normal(size=POPULATION)
    return Population(np.stack([truth, candidate, reference], axis=1), _spearman)


def _spearman(columns: Array, groups: Array | None) -> Sample:
    truth, candidate, reference = (np.unique(column, return_inverse=True)[1].reshape(-1) for column in columns.T)

    def ranks(place: Array) -> Array:
        count = np.bincount(place)
        return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])

    def metric(place: Array) -> Metric:
        return lambda rows: pearson(ranks(place[rows]), ranks(truth[rows]))

    return Sample(metric(candidate), metric(reference), len(columns), groups)


def questions(exact: bool) -> Callable[[np.random.Generator], Population]:
    """Return questions in paragraphs of five on average, answered rightly, partly or wrongly."""

    def make(chance: np.random.Generator) -> Population:
        sizes = 1 + chance.poisson(4, POPULATION // 5)
        paragraph = np.repeat(np.arange(len(sizes)), sizes)
        ease = chance.normal(1.2, 0.8, len(sizes))[paragraph]
        noise, partly = chance.logistic(size=len(paragraph)), chance.beta(2, 2, len(paragraph))
        sides = []
        for mean in (-0.1, 0.0):
            own = np.where(chance.random(len(paragraph)) < 0.15, chance.logistic(size=len(paragraph)), noise)
            sure = ease + chance.normal(mean, 0.2, len(sizes))[paragraph] + own
            sides.append(np.where(sure > 0, 1.0, np.where((sure > -1.2) & (not exact), partly, 0.0)))
        first = np.concatenate([[0], np.cumsum(sizes)])
        return Population(np.stack(sides, axis=1), lambda c, g: means(c[:, 0], c[:, 1], g), first)

    return make


POPULATIONS: dict[str, tuple[Callable[[np.random.Generator], Population], int]] = {
    "accuracy": (accuracy, 2000),
    "F1": (binary_f1, 2000),
    "macro-F1, 77 classes": (many_classes, 600),
    "entity F1 by document": (entities, 1000),
    "Spearman": (similarity, 300),
    "exact match by paragraph": (questions(exact=True), 1000),
    "answer F1 by paragraph": (questions(exact=False), 1000),
    "macro-F1, classes of 9 : 3 : 1": (rare_classes, 600),
    "accuracy, groups of unequal size": (unequal_groups, 2000),
}
"""What is simulated: how a population is made, and how many samples are drawn of it."""


def chance_of(*words: object) -> np.random.Generator:
    """Return the chance of one cell, the same whichever cells were made before."""
    return np.random.default_rng(zlib.crc32(repr(words).encode()))


def coverage(name: str, examples: int, quick: bool = False) -> dict[str, Any]:
    """Draw samples and count on which side of the truth the 95% interval lies."""
    make, samples = POPULATIONS[name]
    samples = samples // 20 if quick else samples // (SLOW_SHARES if name == "Spearman" else SHARES).get(examples, 1)
    population = make(chance_of(name))
    truth, chance = population.truth, chance_of(name, examples)
    found = [population.draw(examples, chance).difference() for _ in range(samples)]
    ends = [one.interval() for one in found]
    return {
        "samples": samples,
        "units": found[0].counts.examples,
        "truth": truth,
        "above": sum(one.low > truth for one in ends),
        "below": sum(one.high < truth for one in ends),
        "width": float(np.mean([one.high - one.low for one in ends])),
    }


def false_exact(examples: int, disagreement: float, margin: float) -> dict[str, Any]:
    """Return the probability that the score test of accuracies shows a margin that is the true loss."""
    worse, better = (disagreement + margin) / 2, (disagreement - margin) / 2
    most = min(examples, math.ceil(examples * disagreement + 8 * math.sqrt(examples * disagreement)) + 8)
    log = np.cumsum(np.log(np.arange(1, examples + 1)))
    factorial = np.concatenate([[0.0], log])
    total, quantile = 0.0, NormalDist().inv_cdf(0.975)
    for lost in range(most + 1):
        for won in range(min(most, examples) - lost + 1 if better > 0 else 1):
            rest = examples - lost - won
            if score(Discordance(examples, won, lost), -margin) <= quantile:
                continue
            logs = factorial[examples] - factorial[lost] - factorial[won] - factorial[rest]
            logs += lost * math.log(worse) + (won * math.log(better) if won else 0.0)
            total += math.exp(logs + rest * math.log1p(-disagreement))
    return {"samples": None, "rate": total}


def false_drawn(kind: str, examples: int, disagreement: float, margin: float, quick: bool = False) -> dict[str, Any]:
    """Draw samples whose true loss is the margin, and count how often it is said to be smaller.

    Args:
        kind: ``partial``: answers that differ do so by a part, twice of three times, or wholly. ``groups``: groups of
            five, in which one example of two differs if one of them may.
        examples: Examples of a sample.
        disagreement: Share of examples that differ.
        margin: The true loss.
        quick: Draw a tenth of the samples.
    """
    chance, samples = chance_of(kind, examples, disagreement, margin), 100 if quick else 1000
    shown = 0
    for _ in range(samples):
        if kind == "partial":
            differs = chance.random(examples) < disagreement
            size = np.where(chance.random(examples) < 2 / 3, chance.beta(2, 2, examples), 1.0)
            sign = np.where(chance.random(examples) < (1 + margin / (disagreement * PARTIAL)) / 2, -1.0, 1.0)
            values: Array = differs * size * sign
        else:
            count = examples // GROUP
            open_to = chance.random(count) < 2 * disagreement
            sign = np.where(chance.random(count) < (1 + margin / disagreement) / 2, -1.0, 1.0)
            values = open_to * sign * (chance.random((GROUP, count)) < 0.5).mean(axis=0)
        other = np.maximum(0.0, -values)[None]  # with the candidate's score where it is worse 0
        found = PairedDifference.of(1 - other, 1 - other - values[None], [float(values.mean())], binary=False)
        shown += found.p_value(-margin) < 0.025
    return {"samples": samples, "rate": shown / samples}


PARTIAL, GROUP = 2 / 3, 5
"""Mean effect of an answer that differs in ``partial``; examples of a group in ``groups``."""
LARGEST = {"single": 1.0, "partial": PARTIAL, "groups": 1.0}
"""Loss of a metric, as a share of the disagreement, if the candidate is never better."""
FALSE = {
    "single": "accuracy, single examples (exact)",
    "partial": "scores from 0 to 1, single examples",
    "groups": "accuracy, groups of five",
}


def cells(quick: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the name of each cell and what computes it."""
    for examples in SIZES[:2] if quick else SIZES:
        for name in POPULATIONS:
            yield f"coverage|{name}|{examples}", partial(coverage, name, examples, quick)
    for kind, largest in LARGEST.items():
        for examples in FALSE_SIZES[:2] if quick else FALSE_SIZES:
            for disagreement in DISAGREEMENTS:
                for margin in (margin for margin in MARGINS if margin <= largest * disagreement):
                    yield (
                        f"false|{kind}|{examples}|{disagreement}|{margin}",
                        partial(false_exact, examples, disagreement, margin)
                        if kind == "single"
                        else partial(false_drawn, kind, examples, disagreement, margin, quick),
                    )


def simulate(out: Path, quick: bool = False) -> dict[str, Any]:
    """Compute what is missing in a file, cell by cell, and return all of it."""
    known: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    for name, compute in cells(quick):
        if name not in known:
            known[name] = compute()
            out.parent.mkdir(parents=True, exist_ok=True)
            lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in known.items())
            atomic_write(out, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return known


def error(rate: float, samples: int | None) -> float:
    """Return twice the standard error of a rate; 0 if it was not drawn."""
    return 2 * math.sqrt(rate * (1 - rate) / samples) if samples else 0.0


HEAD = """# Paired differences: what the intervals and verdicts are worth

Written by `python -m benchmarks.simulations` from `benchmarks/results/statistics.json`, where every count stands. A
percentage has behind it two standard errors of the simulation.

## How often the 95% interval holds the true difference

Samples are drawn from a population of {population:,} synthetic examples on which the difference of two models is
known. *Examples* of a metric by document or by paragraph are drawn in whole groups, about as many as the heading
says. The aim is 93% to 97%.

{coverage}

{limits}

### Wholly above the truth

Where an interval lies wholly above the truth, a loss as large as a margin would pass as smaller. Half of the other
5%, 2.5%, is the aim. It is hardest to keep where few units carry much of the metric: the rarest of three classes in a
macro-F1, a few large groups.

{above}

## How often a loss as large as the margin passes as smaller

The candidate truly loses the margin, so every "non-inferior" is an error; at most 2.5% of the verdicts may be. For
single examples that are right or wrong the probability is exact: all counts were gone through. Disagreement is the
share of examples on which the models differ. Each cell is the largest rate over the margins {margins} that the
disagreement allows, with the margin at which it is reached.

{tables}
"""


def main() -> None:
    """Compute what is missing and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few samples of the smallest sizes")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    known = simulate(arguments.out, arguments.quick)
    atomic_write(arguments.page, page(known).encode())


def page(known: dict[str, Any]) -> str:
    """Return the page of what is known; a cell that is not has a dash."""
    tables = "\n\n".join(
        f"### {title[0].upper()}{title[1:]}\n\n{_false_table(known, kind)}" for kind, title in FALSE.items()
    )
    margins = ", ".join(f"{margin:.1%}" for margin in MARGINS)
    return HEAD.format(
        population=POPULATION,
        coverage=_shares_table(known, held),
        limits=_limits(known),
        above=_shares_table(known, lambda cell: cell["above"] / cell["samples"]),
        margins=margins,
        tables=tables,
    )


def held(cell: dict[str, Any]) -> float:
    """Return the share of intervals that hold the truth."""
    return float(1 - (cell["above"] + cell["below"]) / cell["samples"])


def _shares_table(known: dict[str, Any], share: Callable[[dict[str, Any]], float]) -> str:
    """Return a share of the samples of each cell."""
    rows = [["metric", *(f"{examples:,} examples" for examples in SIZES)]]
    for name in POPULATIONS:
        cells = [known.get(f"coverage|{name}|{examples}") for examples in SIZES]
        rows.append([name, *("-" if cell is None else _share(share(cell), cell["samples"]) for cell in cells)])
    return markdown_table(rows)


def _limits(known: dict[str, Any]) -> str:
    """Return in a sentence which cells lie outside of 93% to 97% by more than the simulation's error."""
    outside = []
    for name in POPULATIONS:
        for examples in SIZES:
            cell = known.get(f"coverage|{name}|{examples}")
            if cell is not None and abs(held(cell) - 0.95) - error(held(cell), cell["samples"]) > 0.02:
                outside.append(f"{name} with {examples:,} examples ({held(cell):.1%})")
    return f"Outside of that by more than the simulation's error: {', '.join(outside) or 'none'}."


def _false_table(known: dict[str, Any], kind: str) -> str:
    rows = [["examples", *(f"{disagreement:.1%} differ" for disagreement in DISAGREEMENTS)]]
    for examples in FALSE_SIZES:
        row = [f"{examples:,}"]
        for disagreement in DISAGREEMENTS:
            start = f"false|{kind}|{examples}|{disagreement}|"
            found = [(cell, key.removeprefix(start)) for key, cell in known.items() if key.startswith(start)]
            if not found:
                row.append("-")
                continue
            cell, margin = max(found, key=lambda one: float(one[0]["rate"]))
            row.append(f"{_share(cell['rate'], cell['samples'])} at {float(margin):.1%}")
        rows.append(row)
    return markdown_table(rows)


def _share(rate: float, samples: int | None) -> str:
    return f"{rate:.1%}" + (f" ± {error(rate, samples):.1%}" if samples else "")


if __name__ == "__main__":
    main()
