"""What a pretraining says of itself: a model card and a page with its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.cost.machine import machine
from eval.files.writing import write_beside
from eval.report.markdown import escape
from eval.report.markup import data_uri, element
from eval.report.page import document
from eval.report.plots import render, training_curves

CARD = """---
library_name: transformers
tags: [{family}, pretrained]
---

# {name}

A network of {layers} layers ({family}) that learnt from text alone: {tokens:,} tokens in {documents:,} documents,
{text}.

{table}

{tokens_per_second:,.0f} tokens a second on {device}, {utilisation:.0%} of its measured rate of matrix products (three
times the encoder's forward products are counted). Seed {seed}; `pretraining.json` holds all settings and the whole
history, `report.html` the curves.

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained("this folder", num_labels=2)  # a new head: fine-tune it
tokenizer = AutoTokenizer.from_pretrained("this folder")
```

It is small and has seen little text; it knows what this text says and the language in which it says it, and nothing is
known of what it should not be used for.
"""


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
    speed = stages[-1]["speed"]
    rows = [_row(number, stage["history"][-1]) for number, stage in enumerate(stages, start=1)]
    card = CARD.format(
        name=escape(name),
        family=family,
        layers=layers,
        tokens=facts["text"]["tokens"],
        documents=facts["text"]["documents"],
        text=", ".join(escape(Path(text).name) for text in facts["block"]["text"]),
        table="\n".join(["| stage | updates | losses | on validation text |", "|---|---|---|---|", *rows]),
        device=escape(device),
        seed=facts["seed"],
        **{key: speed[key] for key in ("tokens_per_second", "utilisation")},
    )
    write_beside(folder / "README.md", card.encode())
    write_beside(folder / "report.html", _page(name, stages, device).encode())


def _row(number: int, entry: Mapping[str, Any]) -> str:
    return f"| {number} | {entry['step']:,} | {_listed(entry['terms'])} | {_listed(entry.get('scores') or {})} |"


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())


def _page(name: str, stages: Sequence[Mapping[str, Any]], device: str) -> str:
    curves = {f"stage {number}": stage["history"] for number, stage in enumerate(stages, start=1)}
    parts = [element("h1", name), element("p", f"Trained on {device}.")]
    for key in ("loss", "score"):
        known = {one: history for one, history in curves.items() if any(key in entry for entry in history)}
        if known:
            drawn = element("img", src=data_uri(render(training_curves(known, key))), alt=f"{key} by update")
            parts.append(element("figure", drawn, element("figcaption", f"{key} by update")))
    for number, stage in enumerate(stages, start=1):
        parts += [element("h2", f"Stage {number}"), _table(stage["history"])]
        figures = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in stage["speed"].items())
        parts.append(element("p", figures))
    return document(name, parts)


def _table(history: Sequence[Mapping[str, Any]]) -> Any:
    def row(tag: str, *cells: object) -> Any:
        return element("tr", [element(tag, str(cell)) for cell in cells])

    body = [
        row("td", entry["step"], f"{entry['loss']:.4f}", _listed(entry["terms"]), _listed(entry.get("scores") or {}))
        for entry in history
    ]
    return element("table", row("th", "update", "loss", "of which", "on validation text"), body)
