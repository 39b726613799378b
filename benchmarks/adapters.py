"""One encoder with the adapters of several tasks as one export, against an export of each task's merged model.

    COMPRESS_DATA=… COMPRESS_BASE=… compress teach --recipe compress/recipes/five-adapters.yaml … --out runs/five
    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.adapters runs/five [--seconds 2] [--texts 200] [--fill]

Bytes of the network against those of one task's; the score of each task by its merged model and by the one graph, on
the examples of its test split, or of validation where there is no labelled one (marked: they also chose the epoch);
and processor time of one thread for the answers of all tasks to one text: the graph once, with a row a task, and the
merged models one after the other, run alternately in a random order.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.archive import keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from compress.engine.several_tasks import load_tasks
from compress.export.folder import export
from compress.export.runtime.answering import Runtime
from compress.export.runtime.task_set import TaskSet
from compress.export.several_adapters import export_adapters
from compress.modules.int8_scheme import Int8
from compress.recipe import read_recipe
from eval.cost.machine import in_one_line
from eval.cost.timing import interleave, paired_ratio
from eval.data.loading import Task
from eval.inference import predict
from eval.scores import score
from eval.task import Examples
from teachers.taskmodel import load_taskmodel

NAME = "adapters"
"""Name of the record, and of the part of the page that is made here."""
RECIPE = Path(__file__).parents[1] / "compress" / "recipes" / "five-adapters.yaml"
FORMS = {"float32": False, "int8": True}


def judged(task: Task, texts: int) -> tuple[Examples, bool]:
    """Return the examples that a task is judged on, and whether nothing was chosen on them."""
    test = task.splits.get("test")
    final = test is not None and len(test) > 0
    return (test if test is not None and final else task.select).sample(texts, seed=0), final


def measured(
    base: str, folder: Path, tasks: Mapping[str, Task], texts: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each form.

    Args:
        base: The folder of the base.
        folder: What ``compress teach`` wrote: a folder a task.
        tasks: Data by the same names.
        texts: Most examples of each task.
        seconds: For timing each way.
    """
    places = {name: folder / name for name in tasks}
    with tempfile.TemporaryDirectory() as temporary:
        for form, int8 in FORMS.items():
            rows = {name: [*task.train][:200] for name, task in tasks.items()}
            whole = Path(temporary) / form
            written = export_adapters(base, places, whole, int8=int8, examples=rows)
            alone = {}
            for name in tasks:
                own, scheme = Path(temporary) / f"{form}-{name}", Int8() if int8 else None
                export(load_taskmodel(places[name]), own, int8=scheme or False, examples=rows[name])
                alone[name] = Runtime(own, 1)
            found = {
                name: _task(name, task, whole / name, alone[name], places[name], texts) for name, task in tasks.items()
            }
            sizes = [(one.folder / "model.onnx").stat().st_size for one in alone.values()]
            yield {
                "form": form,
                "bytes": written.bytes,
                "bytes_of_one": max(sizes),
                "bytes_of_all": sum(sizes),
                "tasks": found,
                "speed": [_timed(whole, alone, tasks, rows, seconds) for rows in (1, 8)],
            }


def _task(name: str, task: Task, place: Path, alone: Runtime, source: Path, texts: int) -> dict[str, Any]:
    examples, final = judged(task, texts)
    by_torch, together, by_itself = (
        predict(one, examples) for one in (load_taskmodel(source), Runtime(place, 1), alone)
    )
    metric = str(task.spec.metric)
    answers = [one.answers for one in (by_torch, together, by_itself)]
    return {
        "metric": metric,
        "examples": len(examples),
        "final": final,
        "score": [score(task.spec, one, examples)[metric] for one in answers],
        "difference": max(float(np.abs(a - b).max()) for a, b in zip(by_torch.logits, together.logits, strict=True)),
        "scale": max(float(np.abs(a).max()) for a in by_torch.logits),
        "equal": float(np.mean([_same(a, b) for a, b in zip(answers[0], answers[1], strict=True)])),
    }


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in ("label", "labels"))


def _timed(
    whole: Path, alone: Mapping[str, Runtime], tasks: Mapping[str, Task], rows: int, seconds: float
) -> dict[str, Any]:
    """Return milliseconds for the answers of all tasks to so many texts, each way, and how much faster the graph is."""
    task = next(iter(tasks.values()))
    texts = [example["text"] for example in [*task.select][: 64 * rows]]
    lots = [texts[start : start + rows] for start in range(0, len(texts) - rows + 1, rows)]
    together = TaskSet(whole, 1)

    def merged(number: int) -> None:
        for runtime in alone.values():
            runtime.predict(lots[number % len(lots)])

    def clocked(run: Callable[[int], Any]) -> Callable[[int], float]:
        def once(number: int) -> float:
            start = time.process_time()
            run(number)
            return time.process_time() - start

        return once

    times = interleave(
        {"one graph": clocked(lambda number: together.predict(lots[number % len(lots)])), "merged": clocked(merged)},
        seconds,
    )
    medians = {name: np.median(taken, axis=1) for name, taken in times.items()}
    factor = paired_ratio(medians["merged"], medians["one graph"])
    return {
        "texts": rows,
        "milliseconds": {name: 1000 * float(np.median(taken)) for name, taken in medians.items()},
        "factor": [factor.value, factor.low, factor.high],
    }


def report(found: Mapping[str, Any]) -> str:
    """Return the tables of what was kept, and what it was measured on."""
    sizes: list[tuple[str, ...]] = [
        ("form", "one graph, MB", "one task's model, MB", "times one task's", "all merged models, MB")
    ]
    speeds: list[tuple[str, ...]] = [("form", "texts", "one graph, ms", "merged models in turn, ms", "factor [95%]")]
    heads = ("merged, torch", "one graph", "merged, export", "equal answers", "largest difference")
    scores: list[tuple[str, ...]] = [("form", "task", "metric", "examples", *heads)]
    for one in found["forms"]:
        size = {key: one[key] / 1e6 for key in ("bytes", "bytes_of_one", "bytes_of_all")}
        share = f"{one['bytes'] / one['bytes_of_one']:.2f}"
        first, second, third = (f"{megabytes:.1f}" for megabytes in size.values())
        sizes.append((one["form"], first, second, share, third))
        for speed in one["speed"]:
            times = [f"{speed['milliseconds'][way]:.2f}" for way in ("one graph", "merged")]
            factor = "{:.2f} [{:.2f}, {:.2f}]".format(*speed["factor"])
            speeds.append((one["form"], str(speed["texts"]), times[0], times[1], factor))
        for name, task in one["tasks"].items():
            count = f"{task['examples']}{'' if task['final'] else '¹'}"
            own = (f"{value:.4f}" for value in task["score"])
            far = f"{task['difference']:.1e} of {task['scale']:.1f}"
            scores.append((one["form"], name, task["metric"], count, *own, f"{task['equal']:.1%}", far))
    made = f"{found['trained']}; {in_one_line(found['machine'])}; commit {found['commit']}."
    return "\n\n".join([*map(markdown_table, (sizes, speeds, scores)), "¹ They also chose the epoch.", made])


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="what compress teach wrote for five-adapters.yaml")
    parser.add_argument("--texts", type=int, default=1000, help="most examples of each task")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--trained", default="as the recipe says", help="how, for the page")
    parser.add_argument("--fill", action="store_true", help="keep the figures and write docs/results/teachers.md")
    given = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    recipe = read_recipe(RECIPE)
    if recipe.teacher is None:
        raise SystemExit(f"{RECIPE}: has no teacher")
    tasks = {name: task for name, task in load_tasks(recipe).items() if (given.folder / name).is_dir()}
    forms = list(measured(recipe.teacher.models[0], given.folder, tasks, given.texts, given.seconds))
    from eval.cost.machine import machine

    print(report({"forms": forms, "trained": given.trained, "machine": machine(), "commit": ""}))
    if given.fill:
        fill(DOCS / "teachers.md", NAME, report(keep(NAME, {"forms": forms, "trained": given.trained})))


if __name__ == "__main__":
    main()
