"""Plots as SVG images, each drawn in a light and a dark theme."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from eval.report.markup import plain

LONGEST_LABEL = 28
LOG_FROM = 6.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
LABEL_HEIGHT = 0.075
"""Height of a label as a fraction of the axes, for keeping labels apart."""
FONTS = b"ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours of a plot on a page of the same theme."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]


LIGHT = Theme("#1d2733", "#64707f", "#e3e7ec", ("#2563c9", "#c2571a", "#1b8a6b", "#8a4fc4", "#b23a63", "#7a7317"))
DARK = Theme("#e4e9ef", "#94a1b2", "#2d3642", ("#6ea8ff", "#f0965a", "#4cc9a4", "#c197f2", "#ee7fa5", "#cfc35a"))


@dataclass(frozen=True)
class Point:
    """A labelled point of a trade-off.

    Attributes:
        label: Name of the model.
        x: Cost, such as bytes or milliseconds.
        y: Score.
        low: Lower end of an interval of the score, or None.
        high: Upper end.
        reference: Whether it is what the others are held against.
    """

    label: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    reference: bool = False


def render(draw: Callable[[Figure, Theme], None], theme: Theme, width: float = 5.4, height: float = 3.5) -> bytes:
    """Draw a figure and return it as SVG; the same input gives the same bytes."""
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "nlp-compress",
        "font.family": ["DejaVu Sans"],
        "font.size": 9.0,
        "text.parse_math": False,
        "axes.unicode_minus": False,
    }
    # Fonts of the reader's system draw the text, so a glyph missing here is of no matter.
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure, theme)
        for axes in figure.axes:
            _dress(axes, theme)
        out = io.BytesIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue().replace(b"'DejaVu Sans'", FONTS)


def _dress(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor("none")
    axes.grid(visible=True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme.muted)
    axes.tick_params(colors=theme.muted, length=0, labelsize=8.5)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(theme.muted)


def tradeoff(points: Sequence[Point], x_label: str, y_label: str, unit: float = 1.0, floor: float | None = None) -> Any:
    """Return a function that draws score against cost, up and left being better.

    Args:
        points: Models.
        x_label: Name and unit of the cost.
        y_label: Name of the score.
        unit: What the costs are divided by.
        floor: Score below which the margin is broken, drawn as a line.
    """

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.add_subplot()
        costs, scores = [point.x / unit for point in points], [point.y for point in points]
        _scale(axes, costs)
        bounds = [*scores, *(end for point in points for end in (point.low, point.high) if end is not None)]
        bounds += [] if floor is None else [floor]
        space = max(max(bounds) - min(bounds), 0.01) * 0.14
        axes.set_ylim(min(bounds) - space, max(bounds) + space)
        if floor is not None:
            axes.axhline(floor, color=theme.series[1], linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                "margin",
                (0.995, floor),
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                color=theme.series[1],
                fontsize=8,
                ha="right",
            )
        for point, cost in zip(points, costs, strict=True):
            if point.low is not None and point.high is not None:
                axes.plot([cost, cost], [point.low, point.high], color=theme.series[0], linewidth=1.6, alpha=0.55)
            face = "none" if point.reference else theme.series[0]
            axes.scatter([cost], [point.y], s=46, color=face, edgecolors=theme.series[0], linewidths=1.6, zorder=3)
        _label(figure, axes, points, costs, theme)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)

    return draw


def _scale(axes: Axes, values: Sequence[float]) -> None:
    smallest, largest = min(values), max(values)
    if smallest > 0 and largest / smallest >= LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlim(smallest / 1.35, largest * 1.35)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlim(0, largest * 1.12 or 1)


def _label(figure: Figure, axes: Axes, points: Sequence[Point], costs: Sequence[float], theme: Theme) -> None:
    """Write each name beside its point, on the side with room, and keep the names of one side apart."""
    to_axes = axes.transData + axes.transAxes.inverted()
    places = [to_axes.transform((cost, point.y)) for point, cost in zip(points, costs, strict=True)]
    for left in (False, True):
        below = 2.0
        side = [(x, y, point) for (x, y), point in zip(places, points, strict=True) if (x > 0.55) == left]
        for x, y, point in sorted(side, key=lambda entry: -entry[1]):
            height = min(y, below - LABEL_HEIGHT)
            below = height
            axes.annotate(
                plain(point.label, LONGEST_LABEL),
                (x, height),
                xycoords="axes fraction",
                xytext=(-8 if left else 8, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
                color=theme.ink,
                annotation_clip=False,
            )


def training_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Return a function that draws loss and score against step, one line a run.

    Args:
        curves: Histories by name: ``{"step", "loss", "score", ...}`` each; absent values are left out.
    """
    keys = [key for key in ("loss", "score") if any(row.get(key) is not None for run in curves.values() for row in run)]

    def draw(figure: Figure, theme: Theme) -> None:
        for place, key in enumerate(keys):
            axes = figure.add_subplot(1, len(keys), place + 1)
            for number, (name, history) in enumerate(curves.items()):
                rows = [(row["step"], row[key]) for row in history if row.get(key) is not None]
                color = theme.series[number % len(theme.series)]
                # Matplotlib leaves names with a leading underscore out of a legend.
                label = plain(name, LONGEST_LABEL).lstrip("_") or "run"
                axes.plot(
                    [step for step, _ in rows],
                    [value for _, value in rows],
                    color=color,
                    linewidth=1.6,
                    marker="o" if len(rows) < 30 else None,
                    markersize=3.5,
                    label=label,
                )
            axes.set_title(key, loc="left", fontsize=9.5, color=theme.ink)
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            if place == 0 and len(curves) > 1:
                axes.legend(frameon=False, labelcolor=theme.ink, fontsize=8.5)

    return draw
