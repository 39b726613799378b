"""What a pretraining says of itself: a model card and a page with its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.cost.machine import machine
from eval.files.writing import atomic_write
from eval.report.hub_header import with_header
from eval.report.page_tables import Grid, grid
from eval.report.pictures import Picture, picture
from eval.report.plots import training_curves
from eval.report.templating import render_template

HOME = "teachers.pretraining"
"""Package of the templates."""


def write_report(folder: Path, name: str, facts: Mapping[str, Any], family: str, layers: int) -> None:
    """Write ``README.md`` and ``report.html``.

    Args:
        folder: Where to.
        name: Heading.
        facts: What ``pretraining.json`` holds.
        family: Of the network.
        layers: Of the network.
    """
    stages = facts["stages"]
    device = str(machine(accelerator=True)["gpu"] or machine()["cpu"])
    atomic_write(folder / "README.md", _card(name, facts, family, layers, device).encode())
    page = render_template(
        "pretraining_page.html.j2",
        HOME,
        title=name,
        device=device,
        curves=_curves(stages),
        stages=[{"history": _history(stage["history"]), "speed": _listed(stage["speed"])} for stage in stages],
    )
    atomic_write(folder / "report.html", page.encode())


def _card(name: str, facts: Mapping[str, Any], family: str, layers: int, device: str) -> str:
    stages = facts["stages"]
    speed, last = stages[-1]["speed"], [stage["history"][-1] for stage in stages]
    body = render_template(
        "pretraining_card.md.j2",
        HOME,
        name=name,
        family=family,
        layers=layers,
        tokens=f"{facts['text']['tokens']:,}",
        documents=f"{facts['text']['documents']:,}",
        texts=[Path(text).name for text in facts["block"]["text"]],
        stages=[
            {
                "steps": f"{entry['step']:,}",
                "losses": _listed(entry["terms"]),
                "scores": _listed(entry.get("scores") or {}),
            }
            for entry in last
        ],
        tokens_per_second=f"{speed['tokens_per_second']:,.0f}",
        utilisation=f"{speed['utilisation']:.0%}",
        device=device,
        seed=facts["seed"],
    )
    return with_header(body, library_name="transformers", tags=[family, "pretrained"])


def _curves(stages: Sequence[Mapping[str, Any]]) -> list[Picture]:
    curves = {f"stage {number}": stage["history"] for number, stage in enumerate(stages, start=1)}
    known = {
        key: {one: history for one, history in curves.items() if any(key in entry for entry in history)}
        for key in ("loss", "score")
    }
    return [picture(training_curves(found, key), f"{key} by optimizer step") for key, found in known.items() if found]


def _history(history: Sequence[Mapping[str, Any]]) -> Grid:
    rows = [
        (str(entry["step"]), f"{entry['loss']:.4f}", _listed(entry["terms"]), _listed(entry.get("scores") or {}))
        for entry in history
    ]
    return grid(("optimizer step", "loss", "of which", "on validation text"), rows, words=(0, 2, 3))


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
