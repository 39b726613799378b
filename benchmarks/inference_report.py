"""Tables and plot of the measurements of ``benchmarks.inference``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.engines import ENGINES, Engine
from eval.cost.machine import in_one_line
from eval.cost.timing import paired_ratio

SHAPES = {"1 x 32": (1, 32), "1 x 128": (1, 128), "16 x 128": (16, 128)}
STREAMS = ("throughput, unsorted", "throughput, length-sorted")
CASES = (*SHAPES, *STREAMS)
RATED = "16 x 128"
"""The case that is compared with the peak rates of the machine."""
STREAMED = 512
REFERENCE = "torch, eager"
DRAWN = ("1 x 32", RATED, "throughput, unsorted")
"""Cases of the plot."""


@dataclass
class Measured:
    """Measurements of one engine.

    Attributes:
        name: The engine.
        megabytes: Size of what is loaded.
        load_seconds: From the start of the process to the first prediction.
        resident_megabytes: Peak memory of its process, including the sentences whose labels are compared.
        agreement: Prediction agreement with torch in float32, 0 to 1.
        seconds: Case -> seconds of each round.
    """

    name: str
    megabytes: float
    load_seconds: float = 0.0
    resident_megabytes: float = 0.0
    agreement: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=dict)


def gigaflops(config: Any, rows: int, length: int) -> float:
    """Return 10^9 floating-point operations of a BERT encoder: two for each product of its layers."""
    width, inner = config.hidden_size, config.intermediate_size
    token = config.num_hidden_layers * (4 * width**2 + 2 * width * inner + 2 * length * width)
    return 2e-9 * rows * length * token


def report(found: Mapping[str, Any]) -> str:
    """Return all tables of a measurement, from what ``benchmarks.inference`` writes to benchmarks/results."""
    measured = [Measured(**row) for row in found["engines"]]
    rates, billions = found.get("rates"), found.get("billions")
    return "\n\n".join(
        [
            table(measured, ENGINES),
            "¹ u8 x s8 sums of this engine saturate on processors with AVX2 and without VNNI.",
            against_peers(measured, ENGINES),
            *([shares(measured, rates, billions)] if rates and RATED in measured[0].seconds else []),
            f"{found['threads']} threads of {in_one_line(found['machine'])}",
        ]
    )


def table(measured: Sequence[Measured], engines: Sequence[Engine]) -> str:
    """Return the Markdown table of the measurements."""
    reference = next(row for row in measured if row.name == REFERENCE)
    heads = ["engine", "MB", "load s", "resident MB", "agreement"]
    heads += [f"{name}, {'ms' if name in SHAPES else 'sentences/s'}" for name in reference.seconds]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    exact = {engine.name: engine.exact for engine in engines}
    for row in measured:
        cells = [
            row.name + ("" if exact[row.name] else " ¹"),
            f"{row.megabytes:.1f}" if row.megabytes else "",
            f"{row.load_seconds:.1f}",
        ]
        cells += [f"{row.resident_megabytes:.0f}", f"{row.agreement:.1%}"]
        for name in reference.seconds:
            value, times = median(row.seconds[name]), median(reference.seconds[name]) / median(row.seconds[name])
            cells.append(
                f"{1000 * value:.2f} ({times:.2f})" if name in SHAPES else f"{STREAMED / value:.0f} ({times:.2f})"
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def against_peers(measured: Sequence[Measured], engines: Sequence[Engine]) -> str:
    """Return the speedup of our engines over the fastest peer that is exact everywhere, case by case."""
    known = {engine.name: engine for engine in engines}
    rows = {row.name: row for row in measured}
    ours = [name for name in rows if known[name].ours]
    others = [name for name in rows if not known[name].ours and known[name].exact]
    lines = ["| case | best peer | " + " | ".join(ours) + " |", "|---|---|" + "---|" * len(ours)]
    coverage = 1.0
    for case in rows[REFERENCE].seconds:
        best = min(others, key=lambda name: median(rows[name].seconds[case]))
        cells = []
        for name in ours:
            found = paired_ratio(rows[best].seconds[case], rows[name].seconds[case])
            cells.append(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]")
            coverage = min(coverage, found.coverage)
        lines.append(f"| {case} | {best}, agreement {rows[best].agreement:.1%} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Intervals hold the median of the rounds' ratios in {coverage:.1%} of cases."])


def shares(measured: Sequence[Measured], known: Mapping[str, Mapping[str, float]], billions: float) -> str:
    """Return the machine's rates at the model's shapes, and the share of them that each engine reaches."""
    kinds = next(iter(known.values()))
    best = {kind: sum(rate[kind] for rate in known.values()) / len(known) for kind in kinds}
    lines = ["| product | " + " | ".join(f"{kind}, 10^9 operations/s" for kind in kinds) + " |", "|---|---|---|"]
    lines += [f"| {shape} | {' | '.join(f'{rate[kind]:.0f}' for kind in kinds)} |" for shape, rate in known.items()]
    lines += [
        "",
        f"{RATED} is {billions:.1f} x 10^9 operations. Share of the mean of these rates that it reaches there:",
    ]
    lines += [
        "",
        "| engine | 10^9 operations/s | " + " | ".join(f"of {kind}" for kind in kinds) + " |",
        "|---|---|---|---|",
    ]
    for row in measured:
        reached = billions / median(row.seconds[RATED])
        lines.append(f"| {row.name} | {reached:.0f} | {' | '.join(f'{reached / best[kind]:.0%}' for kind in kinds)} |")
    return "\n".join(lines)


def bars(measured: Sequence[Measured], engines: Sequence[Engine]) -> Any:
    """Return a function that draws the speedup of each engine over torch, one panel per case.

    Ours are coloured; of the others, those that are exact on every processor are filled.
    """
    known = {engine.name: engine for engine in engines}
    rows = {row.name: row for row in measured}
    names = [name for name in rows if name != REFERENCE][::-1]

    def draw(figure: Any, theme: Any) -> None:
        panels = figure.subplots(1, len(DRAWN), sharey=True)
        for axes, case in zip(panels, DRAWN, strict=True):
            found = [paired_ratio(rows[REFERENCE].seconds[case], rows[name].seconds[case]) for name in names]
            for place, (name, speed) in enumerate(zip(names, found, strict=True)):
                colour = theme.series[0] if known[name].ours else theme.muted
                face = colour if known[name].exact else "none"
                axes.barh(place, speed.value, height=0.62, color=face, edgecolor=colour, linewidth=1)
                axes.plot([speed.low, speed.high], [place, place], color=theme.ink, linewidth=1.2)
            axes.axvline(1.0, color=theme.ink, linewidth=0.8)
            axes.set_yticks(range(len(names)), names)
            axes.set_xlabel(case)
        figure.suptitle("speedup over torch in eager mode", color=theme.ink, fontsize=10)

    return draw
