"""How often 8-bit exports without data agree with their model: per-tensor, mixed and per-token ranges.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.dynamic_forms

The models are the teachers of the study ``distil-recommended``, which are fine-tuned if they are not kept yet; at most
1,000 examples of each set's test split, or of validation where there is none, are asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.study import Study
from compress.engine.preparation import read_task, roles_of, teachers_of
from compress.export import export
from compress.export.runtime.answering import Runtime
from compress.modules.int8_scheme import Int8
from compress.quantize.dynamic import mixed
from eval.task import Examples
from teachers.taskmodel import TaskModel

STUDY = Path(__file__).with_name("studies") / "distil-recommended.yaml"
ASKED = 1000


def agreements(model: TaskModel, examples: Examples) -> dict[str, float]:
    """Return form -> share of the predicted labels that are those of the float32 export."""
    forms: Mapping[str, Int8 | bool] = {
        "float32": False,
        "per-tensor": Int8(activations="tensor"),
        "mixed": mixed(model),
        "per-token": Int8(),
    }
    labels = {}
    with tempfile.TemporaryDirectory() as place:
        for name, scheme in forms.items():
            export(model, Path(place) / name, "onnx", int8=scheme, agreement=0.0)
            answers = Runtime(Path(place) / name).predict(list(examples)).answers
            labels[name] = np.array([answer["label"] for answer in answers])
    exact = labels.pop("float32")
    return {name: float((found == exact).mean()) for name, found in labels.items()}


def main() -> None:
    """Print a table, and the mean over all examples."""
    study, weighted = Study.read(STUDY), []
    for name in study.each:
        recipe = study.recipe_of(f"labels only, {name}", study.seeds[0])
        read = read_task(recipe)
        if read is None or name.startswith("WikiANN"):  # whose texts have many labels each
            continue
        task = roles_of(recipe, read).task
        (teacher,) = teachers_of(recipe, task)
        held = task.test if len(task.test) else task.validation
        examples = held.sample(ASKED, seed=5) if len(held) > ASKED else held
        found = agreements(teacher, examples)
        weighted.append([len(examples) * share for share in found.values()] + [len(examples)])
        print(f"| {name} | {len(examples):,} | {' | '.join(f'{share:.2%}' for share in found.values())} |", flush=True)
    *shares, count = np.sum(weighted, axis=0)
    print(f"| all | {count:,.0f} | {' | '.join(f'{share / count:.2%}' for share in shares)} |")


if __name__ == "__main__":
    main()
