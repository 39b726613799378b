"""How far 8 bits move a network's answers before any training: Q8BERT's rounding as in the paper, and as by default.

    COMPRESS_DATA=… python -m benchmarks.untrained_rounding MODEL [MODEL …] [--data ag_news_titles] [--count 400]

MODEL is the folder of a classifier. Ranges of activations and smoothing are those of training examples; the answers
that are compared are to COUNT examples of ``test``, whose labels nothing reads. --fill writes the table into
docs/results/quantization.md.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.archive import keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from compress.modules.fake_quant import FakeQuantLinear, MovingRange
from compress.quantize.q8bert import Q8Bert
from compress.sample_inputs import visit_inputs
from eval.cost.machine import in_one_line
from eval.data.loading import load_task
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import layer_parts, layers
from teachers.taskmodel import TaskModel, load_taskmodel

NAME = "untrained-rounding"
WEIGHTS = "7-bit weights, per-channel scales, activations in float32"
FORMS: dict[str, dict[str, Any]] = {
    "8 bits, as in the paper": {"per_channel": False, "smooth": None, "reduce_range": False},
    "7-bit weights": {"per_channel": False, "smooth": None},
    "8 bits, per-channel scales": {"smooth": None, "reduce_range": False},
    "7-bit weights, per-channel scales": {"smooth": None},
    WEIGHTS: {"smooth": None, "requantize_output": "none"},
    "7-bit weights, per-channel scales, smoothed (the default)": {},
}
"""Name -> options of ``quantize.q8bert``."""
SEEN = 96
"""Training examples that ranges are taken from."""


def answers(model: TaskModel, examples: Examples) -> Any:
    """Return the logits of every example, ``[N, C]``."""
    return np.stack(predict(model, examples).logits)


def rounded(model: TaskModel, examples: Examples, form: str) -> TaskModel:
    """Return a copy of a network that rounds, with the ranges that examples show."""
    own = replace(model, model=copy.deepcopy(model.model))
    Q8Bert(**FORMS[form]).prepare(own, examples)
    if form == WEIGHTS:
        for part in own.model.modules():
            if isinstance(part, FakeQuantLinear):
                part.register_module("input_range", torch.nn.Identity())
        return own
    moving = [part for part in own.model.modules() if isinstance(part, MovingRange)]
    for part in moving:
        part.training = True
    answers(own, examples)
    for part in moving:
        part.training = False
    return own


def compared(model: TaskModel, seen: Examples, judged: Examples) -> Iterator[dict[str, Any]]:
    """Yield for each of ``FORMS`` how often the prediction stays, and the change of logits by their own size."""
    before = answers(model, judged)
    size = np.sqrt(np.square(before).mean())
    for form in FORMS:
        after = answers(rounded(model, seen, form), judged)
        agreement = float((after.argmax(1) == before.argmax(1)).mean())
        yield {"form": form, "agreement": agreement, "change": float(np.sqrt(np.square(after - before).mean()) / size)}


def outliers(model: TaskModel, examples: Examples) -> list[float]:
    """Return for each layer the largest channel by the median one, of what its second feed-forward part is given."""
    every = [layer_parts(model.model, layer)["ffn_out"] for layer in layers(model.model)]
    largest: dict[torch.nn.Module, torch.Tensor] = {}

    def see(part: torch.nn.Module, x: torch.Tensor, states: torch.Tensor) -> None:
        del x
        own = states.abs().amax(dim=0)
        largest[part] = torch.maximum(largest.get(part, own), own)

    visit_inputs(model, every, examples, see)
    return [round(float(largest[part].max() / largest[part].median()), 1) for part in every]


def report(found: Mapping[str, Any]) -> str:
    """Return a Markdown table: a row per form, two columns per model."""
    names = list(found["models"])
    heads = [f"{name}: {what}" for name in names for what in ("same prediction", "change of logits")]
    rows = [["form", *heads]]
    for place, form in enumerate(FORMS):
        own = (found["models"][name][place] for name in names)
        rows.append([form, *(f"{row[figure]:.1%}" for row in own for figure in ("agreement", "change"))])
    said = f"{found['count']} texts of {found['data']}, test; ranges of {SEEN} training texts."
    for name, ratios in found["outliers"].items():
        shown = ", ".join(f"{ratio:g}" for ratio in ratios)
        said += f" Largest channel by the median one, inputs of the second feed-forward parts, {name}: {shown}."
    return "\n\n".join([markdown_table(rows), f"{said} {in_one_line(found['machine'])}; commit {found['commit']}."])


def main() -> None:
    """Measure, keep and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--data", default="ag_news_titles", help="data set below COMPRESS_DATA (%(default)s)")
    parser.add_argument("--count", type=int, default=400, help="test examples (%(default)s)")
    parser.add_argument("--fill", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    ratios: dict[str, list[float]] = {}
    for folder in given.models:
        model = load_taskmodel(str(folder))
        task = load_task("classification", Path(os.environ["COMPRESS_DATA"]) / given.data)
        assert task.train is not None
        assert task.test is not None
        seen, judged = task.train.sample(SEEN, 13), task.test.sample(given.count, 13)
        name = f"{model.model.config.num_hidden_layers} x {model.model.config.hidden_size}"
        found[name], ratios[name] = list(compared(model, seen, judged)), outliers(model, seen)
    kept = keep(NAME, {"data": given.data, "count": given.count, "models": found, "outliers": ratios})
    print(report(kept))
    if given.fill:
        fill(DOCS / "quantization.md", NAME, report(kept))


if __name__ == "__main__":
    main()
