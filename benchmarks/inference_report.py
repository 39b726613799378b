"""Sections, tables and pictures of the records of ``benchmarks.inference``: one record a processor.

Everything here is made from the records alone: ``python -m benchmarks.figures`` compares the page with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.archive import RESULTS
from benchmarks.engines.catalogue import ENGINES, REFERENCE
from benchmarks.engines.engine import tool_of
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from eval.cost.machine import VNNI, in_one_line
from eval.cost.timing import Median, paired_ratio
from eval.errors import quantity

NAME = "inference"
"""Name of the part of docs/results/inference.md that is made here, and the beginning of the records' names."""
SHAPES = {"1 x 32": (1, 32), "1 x 128": (1, 128), "16 x 128": (16, 128)}
STREAMS = ("throughput, unsorted", "throughput, length-sorted")
CASES = (*SHAPES, *STREAMS)
RATED = "16 x 128"
"""The case that is compared with the peak rates of the machine."""
OURS = "ours"
DRAWN = {
    "1 x 32": "one text of 32 tokens",
    RATED: "16 texts of 128 tokens",
    STREAMS[0]: "a stream of sentences, unsorted",
}
"""Cases of the picture, and their titles."""
LEAST_AGREEMENT = 0.99
"""Prediction agreement below which the table marks an engine."""
MODELS = {"fine-tuned": "MiniLM-L6, fine-tuned on SST-2", "base": "the shape of BERT-base, random weights"}
"""Names of models in the names of records, and what the page calls them, in its order."""
SATURATING = {engine.name for engine in ENGINES if engine.saturates}
STREAMED_BEFORE = 512
"""Sentences of the streams in records from before they said it."""


@dataclass
class Measured:
    """Measurements of one engine.

    Attributes:
        name: The engine.
        megabytes: Size of what is loaded; 0 if that exists in memory alone.
        load_seconds: From the start of the process to the first prediction, compilation included.
        resident_megabytes: Peak memory of its process, including the sentences whose labels are compared.
        agreement: Prediction agreement with torch in float32, 0 to 1.
        versions: Package -> its version.
        seconds: Case -> seconds of each round.
    """

    name: str
    megabytes: float
    load_seconds: float = 0.0
    resident_megabytes: float = 0.0
    agreement: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether it is part of this project."""
        return tool_of(self.name) == OURS


def gigaflops(config: Any, rows: int, length: int) -> float:
    """Return 10^9 floating-point operations of a BERT encoder: two for each product of its layers."""
    width, inner = config.hidden_size, config.intermediate_size
    token: int = config.num_hidden_layers * (4 * width**2 + 2 * width * inner + 2 * length * width)
    return 2e-9 * rows * length * token


def kind_of_processor(features: Sequence[str]) -> tuple[str, str]:
    """Return what decides how fast 8 bits are on a processor: short for names of files, and in words.

    Example:
        >>> kind_of_processor(["avx2"])
        ('avx2', 'AVX2 alone')
    """
    present = set(features)
    kinds = (
        ({"amx_int8"}, "amx", "AMX"),
        ({"avx_vnni"}, "avx-vnni", "VNNI and AVX-VNNI"),
        (VNNI, "vnni", "VNNI"),
        ({"avx512f"}, "avx512", "AVX-512 without VNNI"),
        ({"avx2"}, "avx2", "AVX2 alone"),
        ({"asimddp"}, "arm", "Arm dot products"),
    )
    return next(((short, words) for marks, short, words in kinds if marks & present), ("other", "no 8-bit products"))


def record_name(model: str, machine: Mapping[str, Any]) -> str:
    """Return the name of a record without its ending."""
    return f"{NAME}-{model}-{kind_of_processor(machine['features'])[0]}"


def records(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, model and content of the records of the page: those with all peers first."""
    found = []
    for place, model in enumerate(MODELS):
        for file in sorted(folder.glob(f"{NAME}-{model}-*.json")):
            record = json.loads(file.read_text(encoding="utf-8"))
            found.append((place, len(unknown_to(record)), file.stem, model, record))
    for *_, name, model, record in sorted(found, key=lambda one: one[:3]):
        yield name, model, record


def unknown_to(record: Mapping[str, Any]) -> list[str]:
    """Return the peers that were not yet in the bench when a record was made."""
    known = {row["name"] for row in record["engines"]} | set(record.get("not_measured", ()))
    return [engine.name for engine in ENGINES if tool_of(engine.name) != OURS and engine.name not in known]


def sections(folder: Path) -> str:
    """Return the part of the page that records make: a section each, with picture and tables."""
    parts = []
    for name, model, record in records(folder):
        cpu = record["machine"]["cpu"].replace("(R)", "").removesuffix(" Processor")
        kind = kind_of_processor(record["machine"]["features"])[1]
        parts.append(f"## {cpu} with {kind}: {MODELS[model]}")
        if missing := unknown_to(record):
            parts.append(f"*Measured with fewer peers, before these were in the bench: {'; '.join(missing)}.*")
        picture = f"plots/{name}.svg"
        parts += [f"![Texts a second, tool by tool, {cpu} with {kind}]({picture})", report(record)]
    return "\n\n".join(parts)


def write(folder: Path = RESULTS, pages: Path = DOCS) -> None:
    """Write the page's part and the pictures anew."""
    from eval.report.plots import write_themes

    fill(pages / f"{NAME}.md", NAME, sections(folder))
    for name, _, record in records(folder):
        write_themes(pages / "plots", name, picture(record))


def report(found: Mapping[str, Any]) -> str:
    """Return all tables of a record."""
    measured = [Measured(**row) for row in found["engines"]]
    rates = found.get("rates")
    complete = any(row.ours for row in measured)
    parts = [against_peers(measured)] if complete else []
    parts.append(table(measured, found.get("sentences", STREAMED_BEFORE)))
    if any(row.name in SATURATING for row in measured):
        parts.append("¹ u8 x s8 sums of this engine saturate on processors with AVX2 and without VNNI.")
    if any(row.agreement < LEAST_AGREEMENT for row in measured):
        parts.append(f"² It agrees with torch in float32 on fewer than {LEAST_AGREEMENT:.0%} of the sentences.")
    if reasons := found.get("not_measured"):
        parts.append("\n".join(["Not measured:", "", *(f"- {name}: {reason}" for name, reason in reasons.items())]))
    if complete and rates and RATED in measured[0].seconds:
        parts.append(share(measured, rates, found["billions"]))
    parts.append(circumstances(found, measured))
    return "\n\n".join(parts)


def best(measured: Sequence[Measured], case: str, ours: bool) -> Measured:
    """Return the fastest of the peers, or of ours with at least its agreement (or all, if none has it)."""
    peers, own = ([row for row in measured if row.ours == one] for one in (False, True))
    peer = min(peers, key=lambda row: median(row.seconds[case]))
    if not ours:
        return peer
    alike = [row for row in own if row.agreement >= peer.agreement]
    return min(alike or own, key=lambda row: median(row.seconds[case]))


def against_peers(measured: Sequence[Measured]) -> str:
    """Return the speedup of our engines over the fastest peer, case by case; bold is ``best`` of ours."""
    ours = [row for row in measured if row.ours]
    rows = [["case", "best peer", *(row.name for row in ours)]]
    coverage = 1.0
    for case in measured[0].seconds:
        peer = best(measured, case, ours=False)
        cells = []
        for row in ours:
            found = ratio(peer, row, case)
            text = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
            cells.append(f"**{text}**" if row is best(measured, case, ours=True) else text)
            coverage = min(coverage, found.coverage)
        rows.append([case, f"{peer.name}, agreement {peer.agreement:.1%}", *cells])
    told = f"intervals hold the median of the rounds' ratios in {coverage:.1%} of cases."
    told = f"How many times as fast as the best peer ours are; bold: the fastest with at least its agreement; {told}"
    return "\n\n".join([markdown_table(rows), told])


def ratio(slower: Measured, faster: Measured, case: str) -> Median:
    """Return how many times as fast one engine is as another, from the same rounds."""
    return paired_ratio(slower.seconds[case], faster.seconds[case])


def table(measured: Sequence[Measured], sentences: int) -> str:
    """Return the table of all engines: times, and speedups over torch in eager mode in parentheses."""
    reference = next(row for row in measured if row.name == REFERENCE.name)
    heads = ["engine", "MB", "load s", "resident MB", "agreement"]
    heads += [f"{name}, {'ms' if name in SHAPES else 'sentences/s'}" for name in reference.seconds]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in measured:
        marks = ("¹" if row.name in SATURATING else "") + ("²" if row.agreement < LEAST_AGREEMENT else "")
        cells = [
            f"{row.name} {marks}".strip(),
            f"{row.megabytes:.1f}" if row.megabytes else "",
            f"{row.load_seconds:.1f}",
            f"{row.resident_megabytes:.0f}",
            f"{row.agreement:.1%}",
        ]
        for case in reference.seconds:
            value = median(row.seconds[case])
            figure = f"{1000 * value:.2f}" if case in SHAPES else f"{sentences / value:.0f}"
            cells.append(f"{figure} ({median(reference.seconds[case]) / value:.2f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def share(measured: Sequence[Measured], rates: Mapping[str, Mapping[str, float]], billions: float) -> str:
    """Say what share of the processor's rate of 8-bit products the fastest of ours and the best peer reach."""
    peak = sum(rate["u8 x s8"] for rate in rates.values()) / len(rates)
    reached = []
    for row in (best(measured, RATED, ours=True), best(measured, RATED, ours=False)):
        rate = billions / median(row.seconds[RATED])
        reached.append(f"{row.name}: {rate:.0f}, {rate / peak:.0%}")
    return (
        f"{RATED} is {billions:.1f} x 10^9 operations. 8-bit products alone run at {peak:.0f} x 10^9 a second at these "
        f"shapes; all of it runs at so many, and this share: {'; '.join(reached)}."
    )


def circumstances(found: Mapping[str, Any], measured: Sequence[Measured]) -> str:
    """Say what the record was measured on, and how."""
    rounds = [len(times) for row in measured for times in row.seconds.values()]
    words = [f"{quantity(found['threads'], 'thread')} of {in_one_line(found['machine'])}"]
    shown = found["machine"]["versions"]
    for row in measured:
        others = {name: version for name, version in row.versions.items() if shown.get(name) != version}
        words += [f"{name} {said}{f' for {tool_of(row.name)}' * (name in shown)}" for name, said in others.items()]
    text = ", ".join(dict.fromkeys(words)) + f"; {' to '.join(map(str, sorted({min(rounds), max(rounds)})))} rounds"
    if load := [value for value in found.get("load", {}).values() if value is not None]:
        text += f"; load {min(load):.1f} to {max(load):.1f}"
    return f"{text}{', measured ' + found['date'] if 'date' in found else ''}."


def picture(found: Mapping[str, Any]) -> bytes:
    """Draw texts a second as SVG: the fastest engine of each tool, ours above."""
    from eval.report.plots import render

    measured = [Measured(**row) for row in found["engines"]]
    cases = [case for case in DRAWN if case in measured[0].seconds]
    sentences = found.get("sentences", STREAMED_BEFORE)
    peers = "fewer peers" if unknown_to(found) else "the peers"
    tools: dict[str, list[Measured]] = {}
    for row in measured:
        tools.setdefault(row.name if row.name == REFERENCE.name else tool_of(row.name), []).append(row)

    def speed(tool: str, case: str) -> float:
        texts = SHAPES[case][0] if case in SHAPES else sentences
        return max(texts / median(row.seconds[case]) for row in tools[tool])

    order = sorted(tools, key=lambda tool: (tool == OURS, speed(tool, cases[-1])))

    def draw(figure: Any, theme: Any) -> None:
        panels = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
        for axes, case in zip(panels, cases, strict=True):
            speeds = [speed(tool, case) for tool in order]
            first = max(value for tool, value in zip(order, speeds, strict=True) if tool != OURS)
            for place, (tool, value) in enumerate(zip(order, speeds, strict=True)):
                colour = theme.series[0] if tool == OURS else theme.muted if value == first else theme.grid
                axes.barh(place, value, height=0.68, color=colour)
                beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8.5}
                axes.annotate(f"{value:,.0f}", (value, place), color=theme.ink, **beside)
            axes.set_yticks(range(len(order)), order)
            axes.set_xticks([])
            axes.set_xlim(0, max(speeds) * 1.18)
            axes.set_title(f"{DRAWN[case]}\n", fontsize=9.5, color=theme.ink, loc="left")
            times = ratio(best(measured, case, ours=False), best(measured, case, ours=True), case).value
            told = {"xytext": (0, 5), "textcoords": "offset points", "fontsize": 9.5, "fontweight": "bold"}
            axes.annotate(
                f"ours {times:.2f} \u00d7 the best of {peers}",
                (0, 1),
                xycoords="axes fraction",
                color=theme.series[0],
                **told,
            )
        figure.suptitle("texts per second, longer is better", color=theme.muted, fontsize=9.5, x=0.01, ha="left")

    return render(draw, width=9.6, height=1.2 + 0.3 * len(order))
