"""Peak memory of models, each in a process of its own that loads it as a user would and answers some examples."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.cost.machine import threads_of, usable_cores
from eval.cost.memory import PeakMemory, peak_memory
from eval.errors import CompressError
from eval.progress.stages import one_by_one

if TYPE_CHECKING:
    from eval.inference import Predictor
    from eval.result import Result

EXAMPLES = 64
"""Examples that the process answers: the first of those that are measured."""
BATCH = 32
NO_FOLDER = "it lies in no folder that a new process could load"

ANSWER = f"""
import json
from importlib import import_module
from pathlib import Path
from eval.inference import predict_in_place
{{load}}
examples = json.loads(Path(args[1]).read_text(encoding="utf-8"))
mark()
predict_in_place(open_model(args[0]), examples, {BATCH})
"""
EXPORT = """
from compress.export.runtime.answering import Runtime
import_module(args[3])
def open_model(folder):
    return Runtime(folder, int(args[2]) or None)
"""
FOLDER = """
import torch, compress.modules
from compress.artifact.artifact import load_model
from eval.task import TaskSpec
torch.set_num_threads(int(args[2]) or torch.get_num_threads())
import_module(args[3])
def open_model(folder):
    return load_model(folder, TaskSpec.model_validate_json(args[4]))
"""


def with_memory(
    results: Sequence[Result], models: Mapping[str, Predictor], examples: Sequence[Mapping[str, Any]]
) -> list[Result]:
    """Return the results with the peak memory of their models, or with the reason why one has none.

    The processes run side by side, one a processor: memory does not depend on the time that they take.

    Args:
        results: What was measured.
        models: The models by the names of the results; one that is missing was not measured here, and one that differs
            by the index of its documents alone has the memory of the model without it.
        examples: What the models answer.
    """
    known = [models.get(result.name) for result in results]
    known = [None if getattr(model, "index", None) else model for model in known]
    with ThreadPoolExecutor(usable_cores()) as pool:
        answers = pool.map(lambda model: None if model is None else peak_of(model, examples), known)
        found = [peak for peak, _ in zip(answers, one_by_one(results, "peak memory"), strict=True)]
    return [result if peak is None else _noted(result, peak) for result, peak in zip(results, found, strict=True)]


def _noted(result: Result, peak: PeakMemory | str) -> Result:
    return result.model_copy(update={"no_memory" if isinstance(peak, str) else "memory": peak})


def peak_of(model: Predictor, examples: Sequence[Mapping[str, Any]]) -> PeakMemory | str:
    """Return the peak memory of a fresh process that loads a model and answers ``EXAMPLES``, or why it has none.

    Args:
        model: An export, or a model that was loaded from a folder or saved to one.
        examples: What it answers.
    """
    folder = getattr(model, "folder", None)
    if folder is None or not Path(folder).is_dir():
        return NO_FOLDER
    code, *more = _program(model, Path(folder))
    with tempfile.TemporaryDirectory() as temporary:
        given = Path(temporary) / "examples.json"
        plain = [dict(model.encoder.kind.plain(example)) for example in examples[:EXAMPLES]]
        given.write_text(json.dumps(plain), encoding="utf-8")
        try:
            return peak_memory(code, str(folder), str(given), str(threads_of(model) or 0), *more)
        except CompressError as error:
            return str(error).replace("\n", " ")


def _program(model: Any, folder: Path) -> list[str]:
    """Return the code that loads such a model, what it imports before memory is counted, and for torch the task."""
    from compress.export.runtime.manifest import library_for

    manifest = getattr(model, "manifest", None)
    if manifest is None:
        return [ANSWER.format(load=FOLDER), type(model.model).__module__, model.task.model_dump_json()]
    return [ANSWER.format(load=EXPORT), library_for(folder, manifest).package]
