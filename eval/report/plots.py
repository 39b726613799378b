"""Plots as SVG images, each in a light and a dark theme."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.files.environment import without_variable
from eval.files.writing import atomic_write
from eval.report.plain_text import plain

with without_variable("MPLBACKEND"):  # what it names may not be installed here, and none of it is used
    import matplotlib

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

LONGEST_LABEL = 28
LOG_FROM = 6.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
ROUND = (1, 2, 2.5, 5, 10)
"""Steps between ticks, times a power of ten."""
LABEL_HEIGHT, LETTER_WIDTH = 0.07, 0.0165
"""Size of a label and of one letter as fractions of the axes, for keeping labels apart."""
FRAME = ((-9.0, -9.0, 0.0, 9.0), (1.0, -9.0, 9.0, 9.0), (0.0, -9.0, 1.0, 0.0), (0.0, 1.0, 1.0, 9.0))
"""What lies outside of the axes."""
FONTS = b"ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, as fractions of the axes."""


@dataclass(frozen=True)
class Theme:
    """Colours of a plot on a page of the same theme."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]

    def colours(self) -> tuple[str, ...]:
        """Return all of them; those at the same place of two themes stand for each other."""
        return (self.ink, self.muted, self.grid, *self.series)


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
        reference: Whether it is what the others are held against, or an export of that.
        shipped: Whether it is the one that stands at the top.
    """

    label: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    reference: bool = False
    shipped: bool = False


def frontier(costs: Sequence[float], scores: Sequence[float]) -> list[int]:
    """Return the places of the points that no other beats in both cost and score, the cheapest first.

    Examples:
        >>> frontier([3.0, 1.0, 2.0], [0.9, 0.8, 0.7])
        [1, 0]
    """
    found: list[int] = []
    for place in sorted(range(len(costs)), key=lambda place: (costs[place], -scores[place])):
        if not found or scores[place] > scores[found[-1]]:
            found.append(place)
    return found


def render(draw: Callable[[Figure, Theme], None], width: float = 5.4, height: float = 3.5) -> bytes:
    """Draw a figure in the light theme and return it as SVG; the same input gives the same bytes."""
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
        draw(figure, LIGHT)
        for axes in figure.axes:
            _dress(axes, LIGHT)
        out = io.BytesIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue().replace(b"'DejaVu Sans'", FONTS)


def darkened(svg: bytes) -> bytes:
    """Return the same figure in the dark theme, by its colours."""
    for light, dark in zip(LIGHT.colours(), DARK.colours(), strict=True):
        svg = svg.replace(light.encode(), dark.encode())
    return svg


def write_themes(folder: Path, name: str, svg: bytes) -> None:
    """Write a figure for light pages, NAME.svg, and for dark ones, NAME-dark.svg."""
    atomic_write(folder / f"{name}.svg", svg)
    atomic_write(folder / f"{name}-dark.svg", darkened(svg))


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
        best = frontier(costs, scores)
        if len(best) > 1:
            steps = ([costs[place] for place in best], [scores[place] for place in best])
            axes.plot(
                *steps, color=theme.muted, linewidth=1, alpha=0.5, linestyle=":", drawstyle="steps-post", zorder=1
            )
        for point, cost in zip(points, costs, strict=True):
            if point.low is not None and point.high is not None:
                axes.plot([cost, cost], [point.low, point.high], color=theme.series[0], linewidth=1.6, alpha=0.55)
            colour = theme.series[2 if point.shipped else 0]
            face = "none" if point.reference else colour
            marker, size = ("D", 64) if point.shipped else ("o", 46)
            axes.scatter(
                [cost], [point.y], s=size, marker=marker, color=face, edgecolors=colour, linewidths=1.6, zorder=3
            )
        _label(axes, points, costs, theme, [] if floor is None else [_margin_box(axes, floor)])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)

    return draw


def plain_ticks(axis: Axis) -> None:
    """Write 1, 2, 5, 10 … at a logarithmic axis instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _scale(axes: Axes, values: Sequence[float]) -> None:
    smallest, largest = min(values), max(values)
    if smallest > 0 and largest / smallest >= LOG_FROM:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        axes.set_xlim(smallest / 1.35, largest * 1.35)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND))
        axes.set_xlim(0, largest * 1.12 or 1)


def _label(axes: Axes, points: Sequence[Point], costs: Sequence[float], theme: Theme, taken: list[Box]) -> None:
    """Write each name beside its point, where it covers the fewest other names and points."""
    to_axes = axes.transData + axes.transAxes.inverted()
    places = [tuple(to_axes.transform((cost, point.y))) for point, cost in zip(points, costs, strict=True)]
    taken = [*taken, *((x - 0.01, y - 0.02, x + 0.01, y + 0.02) for x, y in places)]
    for (x, y), point in zip(places, points, strict=True):
        text = plain(point.label, LONGEST_LABEL)
        width = 0.04 + LETTER_WIDTH * len(text)
        rises = [step * LABEL_HEIGHT for step in (0, 1, -1, 2, -2, 3, -3)]
        tries = [(left, rise) for rise in rises for left in (x > 0.6, x <= 0.6)]
        boxes = [
            (
                x - width if left else x + 0.015,
                y + rise - LABEL_HEIGHT / 2,
                x - 0.015 if left else x + width,
                y + rise + LABEL_HEIGHT / 2,
            )
            for left, rise in tries
        ]
        costs_of = [sum(_overlap(box, other) for other in [*taken, *FRAME]) for box in boxes]
        best = min(range(len(tries)), key=lambda place: (round(costs_of[place], 4), place))
        left, rise = tries[best]
        taken.append(boxes[best])
        axes.annotate(
            text,
            (x, y + rise),
            xycoords="axes fraction",
            xytext=(-8 if left else 8, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            color=theme.ink,
            annotation_clip=False,
        )


def _margin_box(axes: Axes, floor: float) -> Box:
    low, high = axes.get_ylim()
    height = (floor - low) / (high - low)
    return (0.86, height, 1.0, height + LABEL_HEIGHT)


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)


def loss_by_step(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the losses of a training: as often as they were kept, else one an epoch.

    Args:
        history: An entry an epoch, with ``losses``, pairs of step and loss, or ``step`` and ``loss`` alone.
    """
    ends = ([(row["step"], row["loss"])] if row.get("loss") is not None else [] for row in history)
    pairs = [pair for row, end in zip(history, ends, strict=True) for pair in row.get("losses", end)]
    return [{"step": step, "loss": loss} for step, loss in pairs]


def training_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> Any:
    """Return a function that draws a figure of the training against step, one line a run.

    Args:
        curves: Histories by name: ``{"step", "loss", "score", ...}`` each.
        key: What is drawn, such as ``loss``; rows without it are left out.
    """
    series = {
        name: [(row["step"], row[key]) for row in history if row.get(key) is not None]
        for name, history in curves.items()
    }
    return lines(series, "step", key, whole=True)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    level: tuple[str, float] | None = None,
    whole: bool = False,
    bars: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    log: bool = False,
) -> Any:
    """Return a function that draws lines through points ``(x, y)``.

    Args:
        series: Points of each line by its name.
        x_label: Name and unit of x.
        y_label: Name and unit of y.
        level: Name and height of a reference, drawn across.
        whole: Whether x counts something, so that its ticks are whole numbers.
        bars: Ends of the interval of each point, by the name of its line.
        log: Whether x is logarithmic.
    """

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(series.items()):
            for (x, _), (low, high) in zip(points, (bars or {}).get(name, ()), strict=False):
                aside = 1.02 ** (number - (len(series) - 1) / 2) if log else 1.0  # so that bars stand side by side
                axes.plot([x * aside] * 2, [low, high], color=theme.series[number % len(theme.series)], alpha=0.55)
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=theme.series[number % len(theme.series)],
                linewidth=1.6,
                marker="o" if len(points) < 30 else None,
                markersize=3.5,
                # Matplotlib leaves names with a leading underscore out of a legend.
                label=plain(name, LONGEST_LABEL).lstrip("_") or "run",
            )
        if level is not None:
            axes.axhline(level[1], color=theme.muted, linewidth=1, linestyle=(0, (4, 3)), label=level[0])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if log:
            axes.set_xscale("log")
            plain_ticks(axes.xaxis)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND, integer=whole))
        if len(series) + (level is not None) > 1:
            columns = 1 + (len(series) > 6)
            axes.legend(frameon=False, labelcolor=theme.ink, fontsize=8.5 / columns**0.25, ncols=columns)

    return draw
