"""All tasks of an export of several over one base, ready to answer the same texts: the base runs once for a batch.

Like the other parts of ``predict.py`` it imports no more of the toolkit than other parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.export.runtime.answering import Runtime
from compress.export.runtime.batch_threads import BATCH_TOKENS, CALL_TOKENS
from compress.export.runtime.manifest import tasks_of
from compress.export.runtime.windows import WINDOW, Window, windows
from compress.export.targets.library import ExportError
from eval.encoding import TASK_IDS, Array, Feature
from eval.examples import Answer
from eval.inference import Predictions, cheapest_batches, decode, joined


@dataclass(frozen=True)
class TaskAnswers:
    """What several tasks answered.

    Attributes:
        answers: One an example: task -> its answer.
    """

    answers: list[dict[str, Answer]]


class TaskSet:
    """An export of several tasks.

    Args:
        folder: What ``compress export --adapter`` wrote.
        threads: As of ``Runtime``.
        spinning: Likewise.
        tasks: Those that answer; by default all.

    Attributes:
        tasks: Task -> the ``Runtime`` that answers it alone; they share one engine.

    Raises:
        ExportError: If it is no export of several tasks, has none of such a name, or is damaged.
    """

    def __init__(
        self, folder: str | Path, threads: int | None = None, *, spinning: bool = True, tasks: Sequence[str] = ()
    ) -> None:
        folder = Path(folder)
        known = tasks_of(folder)
        if not known:
            raise ExportError(f"{folder}: is an export of one task; open it with Runtime")
        if unknown := [name for name in tasks if name not in known]:
            raise ExportError(f"{folder}: has no task {', '.join(unknown)}; its tasks are {', '.join(known)}")
        self.tasks: dict[str, Runtime] = {}
        for name in tasks or known:
            engine = next(iter(self.tasks.values())).engine if self.tasks else None
            self.tasks[name] = Runtime(folder / name, threads, name=name, spinning=spinning, engine=engine)

    def predict(
        self, examples: Iterable[str | Mapping[str, Any]], batch_size: int | None = None
    ) -> dict[str, Predictions]:
        """Answer examples, or lines as ``example`` reads them, by every task; answers come in the same order.

        Args:
            examples: Any number of them; each must hold what every task reads.
            batch_size: Most rows of a batch, a row for each text and task; by default as many as are fastest.

        Raises:
            ExportError: If an example lacks a field of a task.
        """
        parts = [self._answered(window, batch_size) for window in windows(examples, WINDOW)]
        return {name: joined(part[name] for part in parts) for name in self.tasks}

    def stream(
        self,
        examples: Iterable[str | Mapping[str, Any]],
        chunk: int | None = None,
        batch_size: int | None = None,
    ) -> Iterator[dict[str, Answer]]:
        """Answer any number of examples or lines in bounded memory: task -> its answer, for each.

        Args:
            examples: Read a window at a time.
            chunk: Examples that are read before the first of them is answered.
            batch_size: As in ``predict``.
        """
        for part in self.by_window(windows(examples, chunk or WINDOW), batch_size):
            yield from part.answers

    def by_window(self, parts: Iterable[Window], batch_size: int | None = None) -> Iterator[TaskAnswers]:
        """Answer windows; arguments as in ``Runtime.by_window``."""
        for window in parts:
            found = self._answered(window, batch_size)
            rows = zip(*(predictions.answers for predictions in found.values()), strict=True)
            yield TaskAnswers([dict(zip(found, row, strict=True)) for row in rows])

    def _answered(self, window: Window, batch_size: int | None) -> dict[str, Predictions]:
        first = next(iter(self.tasks.values()))
        held = {name: task.examples(window.items, window.first) for name, task in self.tasks.items()}
        features = {name: task.encoder.encode(held[name]) for name, task in self.tasks.items()}
        rows = [(name, place) for name, own in features.items() for place in range(len(own))]
        lengths = [len(features[name][place].ids) for name, place in rows]
        outputs = {name: [np.empty(0, dtype=np.float32)] * len(own) for name, own in features.items()}
        at_once = first.threads or 1
        for batch in cheapest_batches(lengths, BATCH_TOKENS * at_once, CALL_TOKENS * at_once, batch_size):
            asked = [rows[index] for index in batch]
            found = self._run([(name, features[name][place]) for name, place in asked])
            for (name, place), output in zip(asked, found, strict=True):
                outputs[name][place] = output
        return {
            name: Predictions(*decode(task.encoder.settings, held[name], features[name], outputs[name]))
            for name, task in self.tasks.items()
        }

    def _run(self, rows: Sequence[tuple[str, Feature]]) -> Iterator[Array]:
        """Yield the output of each row: its task's, without padding."""
        first = next(iter(self.tasks.values()))
        inputs = first.encoder.collate([feature for _, feature in rows])
        own = [self.tasks[name].manifest["one_of"] for name, _ in rows]
        numbers = np.array([[one["number"]] for one in own], dtype=np.int64)
        found = first.engine.run({**inputs, TASK_IDS: np.repeat(numbers, inputs["input_ids"].shape[1], axis=1)})
        for place, (name, feature) in enumerate(rows):
            encoder, output = self.tasks[name].encoder, np.asarray(found[own[place]["output"]][place], dtype=np.float32)
            if output.ndim == 2:
                output = output[encoder.place(len(feature.ids), output.shape[0])]
            yield encoder.kind.kept(feature, output)


def opened(
    folder: Path,
    threads: int | None = None,
    *,
    spinning: bool = True,
    speed: float | None = None,
    prompt_name: str | None = None,
) -> Runtime | TaskSet:
    """Return what answers from an export: of one task, or of several.

    Args:
        folder: The export.
        threads: As of ``Runtime``.
        spinning: Likewise.
        speed: Likewise; exports of several tasks have none.
        prompt_name: Likewise.

    Raises:
        ExportError: As ``Runtime`` and ``TaskSet`` do.
    """
    if not tasks_of(folder):
        return Runtime(folder, threads, spinning=spinning, speed=speed, prompt_name=prompt_name)
    if prompt_name is not None:
        raise ExportError(f"{folder}: prompt_name: is for embedders, and this holds several tasks; leave it out")
    if speed is not None:
        raise ExportError(f"{folder}: has no early exits whose speed can be set")
    return TaskSet(folder, threads, spinning=spinning)
