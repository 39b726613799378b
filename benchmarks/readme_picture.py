"""The picture of README.md: prediction agreement with float32 against latency, every engine of the inference bench.

The vertical axis is the share of sentences that get the label which the same model gives them in torch and float32:
what an engine changes, not how good the model is, which no record of this bench scores. ``python -m
benchmarks.figures`` compares the picture with the record, and draws it with ``--write``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.archive import RESULTS, ROOT
from benchmarks.engines.engine import tool_of
from benchmarks.inference_report import OURS, Measured
from eval.report.plots import darkened, render, write_themes

RECORD = "inference-fine-tuned-avx2.json"
CASE = "1 x 32"
FOLDER, NAME = ROOT / "docs" / "pictures", "agreement-by-milliseconds"
SAID = re.compile(r"<text [^>]*>(?P<text>.*?)</text>|<use [^>]*x=\"(?P<x>[\d.]+)\" y=\"(?P<y>[\d.]+)\"", re.DOTALL)
MARKS = "so^Dvp"
NEAR = 0.5
"""Milliseconds between points whose names would cover each other."""


@dataclass(frozen=True)
class Place:
    """One engine: the tool it belongs to, what it is called there, milliseconds, and agreement in percent."""

    tool: str
    name: str
    milliseconds: float
    agreement: float


def places(folder: Path = RESULTS) -> list[Place]:
    """Return all engines of the record in ``folder``, the fastest first."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    rows = [Measured(**row) for row in record["engines"]]
    found = [
        Place(
            tool=tool_of(row.name),
            name=row.name.removeprefix(f"{tool_of(row.name)}, "),
            milliseconds=1000 * median(row.seconds[CASE]),
            agreement=100 * row.agreement,
        )
        for row in rows
    ]
    return sorted(found, key=lambda place: place.milliseconds)


def draw(folder: Path = RESULTS) -> bytes:
    """Return the picture as SVG for light pages."""
    found = places(folder)
    peers = list(dict.fromkeys(place.tool for place in found if place.tool != OURS))

    def paint(figure: Any, theme: Any) -> None:
        axes = figure.add_subplot()
        for number, tool in enumerate([*peers, OURS]):
            own = [place for place in found if place.tool == tool]
            spots = [place.milliseconds for place in own], [place.agreement for place in own]
            look: dict[str, Any] = {"s": 42, "marker": MARKS[number % len(MARKS)], "facecolors": "none"}
            look |= {"edgecolors": theme.series[1 + number % (len(theme.series) - 1)], "linewidths": 1.5}
            if tool == OURS:
                look |= {"s": 70, "marker": "o", "facecolors": theme.series[0], "edgecolors": theme.series[0]}
            axes.scatter(*spots, label=tool, zorder=3, **look)
        last = Place(OURS, "", 0.0, 0.0)
        for place in (place for place in found if place.tool == OURS):
            beside = place.agreement == last.agreement and place.milliseconds - last.milliseconds < NEAR
            offset = {"xytext": (0, -16 if beside else 8), "textcoords": "offset points", "ha": "center"}
            axes.annotate(place.name, (place.milliseconds, place.agreement), color=theme.series[0], **offset)
            last = place
        axes.set_xlabel("milliseconds for one text of 32 tokens")
        axes.set_ylabel("labels equal to those of torch in float32, %")
        axes.margins(0.08, 0.12)
        axes.legend(frameon=False, labelcolor=theme.ink, loc="lower right")

    return render(paint, width=8.2, height=4.2)


def write(folder: Path = RESULTS) -> None:
    """Draw the picture anew, for light and dark pages, if there is a record."""
    if (folder / RECORD).is_file():
        write_themes(FOLDER, NAME, draw(folder))


def problems(folder: Path = RESULTS) -> list[str]:
    """Return which pictures differ from the record: in a word, or in the place of a mark; none without a record."""
    if not (folder / RECORD).is_file():
        return []
    light = draw(folder)
    found = []
    for name, svg in ((f"{NAME}.svg", light), (f"{NAME}-dark.svg", darkened(light))):
        if said((FOLDER / name).read_bytes()) != said(svg):
            found.append(f"{name}: is not what {RECORD} gives; run python -m benchmarks.figures --write")
    return found


def said(svg: bytes) -> list[tuple[str, int, int]]:
    """Return the words of a picture, and its marks to a pixel: what versions of matplotlib draw alike."""
    found = SAID.finditer(svg.decode("utf-8"))
    return [(mark["text"] or "", round(float(mark["x"] or 0)), round(float(mark["y"] or 0))) for mark in found]
