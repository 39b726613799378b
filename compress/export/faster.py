"""Whether another export that could be written here would be much faster than the one that was: timed, shortly."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compress.export.check.probes import synthetic_examples
from compress.export.folder import ExportReport, export
from compress.export.runtime.answering import Runtime
from compress.export.runtime.manifest import target_of
from compress.export.targets.target_registry import get_target, tuned_targets
from eval.cost.latency import latency, speedup
from eval.errors import CompressError
from eval.inference import Predictor
from teachers.taskmodel import TaskModel

WORTH_TELLING = 1.2
"""How many times as fast another export must be."""
SECONDS = 0.5
"""How long each is timed."""
TIMED = 32
"""Examples that are timed, one by one."""
WRITTEN = "what was written"


def faster(
    model: TaskModel,
    report: ExportReport,
    examples: Sequence[Mapping[str, Any]] = (),
    calibration: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return a sentence that names the fastest of the other exports if it is much faster; else nothing.

    Others are those for targets whose libraries are installed, in the same number format and in float32, that pass the
    same gate. All are timed alternately on texts one by one.

    Args:
        model: What was exported.
        report: What was written.
        examples: Real inputs; without any, synthetic ones are timed.
        calibration: Examples that 8 bits take their ranges from.
    """
    ours = Runtime(report.folder, spinning=False)
    written = target_of(ours.manifest)
    with tempfile.TemporaryDirectory() as temporary:
        models: dict[str, Predictor] = {WRITTEN: ours}
        for target, int8 in _others(written, report.scheme == "int8"):
            name = f"{target} in {'8 bits' if int8 else 'float'}"
            try:
                given: dict[str, Any] = {"examples": examples, "calibration": calibration}
                place = export(model, Path(temporary) / name, target, int8=int8, **given).folder
            except CompressError:
                continue  # it does not answer as the model does
            models[name] = Runtime(place, ours.threads, spinning=False)
        if len(models) == 1:
            return ""
        texts = examples[:TIMED] if len(examples) else synthetic_examples(model.encoder, TIMED)
        rows = latency(models, texts, batch=(1,), seconds=SECONDS)
        ratios = {name: found.value for name in models if (found := speedup(rows, name, WRITTEN)) is not None}
    best = max(ratios, key=lambda name: ratios[name])
    if ratios[best] <= WORTH_TELLING:
        return ""
    return f"{best} would be {ratios[best]:.1f} times as fast on this machine, one text at a time; see --to fastest"


def _others(written: str, int8: bool) -> Iterator[tuple[str, bool]]:
    """Yield targets, other than the one written, that run here; each in 8 bits if wanted, and in float32."""
    for name in tuned_targets():
        library = get_target(name).library
        if name != written and library is not None and find_spec(library.package) is not None:
            yield from ((name, kind) for kind in ({int8, False} if get_target(name).activations else {False}))
