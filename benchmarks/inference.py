"""Latency and throughput of a model on this processor: every engine a user could pick, and this project's exports.

    COMPRESS_DATA=… python -m benchmarks.inference --model TEACHER --fill      # the record of this processor, the page
    python -m benchmarks.inference [--model FOLDER] [--seconds 1] [--threads 2] [--only NAME] [--cases …]

Every engine (``benchmarks.engines``) runs in its own process, in an environment of its own where its packages do not go
with the project's, and with the same number of threads. They take turns in a random order, round after round until
rounds agree (``eval.cost.timing``), so that other load on the machine slows all of them; each process measures its own
seconds. Figures are medians over rounds, ratios are medians of the rounds' ratios with their interval of order
statistics. An engine that cannot be installed or run is listed with the reason, and the run goes on.

The model is MiniLM-L6, which learns from 2,048 texts first, a fine-tuned one (``--model``), or ``--shape base``: the
shape of BERT-base with random weights. Sentences are SST-2's if COMPRESS_DATA is set, else synthetic ones of similar
lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import inference_report
from benchmarks.archive import RESULTS, commit
from benchmarks.distillation_step import base
from benchmarks.engines.catalogue import ENGINES, REFERENCE
from benchmarks.engines.engine import Array, Engine, Files
from benchmarks.engines.environment import EngineError
from benchmarks.engines.process import Process, prepare, start
from benchmarks.inference_report import CASES, RATED, SHAPES, STREAMS, Measured, gigaflops, record_name, report
from compress.artifact.artifact import Artifact
from eval.cost.machine import load_average, machine, usable_cores
from eval.cost.timing import Times, interleave
from eval.data.loading import Task, load_task
from eval.files.writing import atomic_write
from eval.task import Examples

BATCH = 16
GIVEN = 256
"""Training examples for calibration, and as many others for the gate of an export."""
LEARNED = 2048
"""Training examples that the default model learns from."""
COMPARED = "compared"
"""The case of the sentences whose labels are compared; they are those of the validation split."""


def write_files(files: Files, model: Artifact, task: Task, streamed: int = 128, compared: int = 1000) -> None:
    """Write what all engines start from: the model, its plain graph, texts and batches.

    Args:
        files: A folder.
        model: What is measured.
        task: Training examples for streams, calibration and gates; validation examples whose labels are compared.
        streamed: Sentences of a stream.
        compared: Most validation examples.
    """
    model.save(files.model)
    write_graph(files)
    for number, use in enumerate(("calibration", "gate")):
        files.write_texts(use, task.train.sample(2 * GIVEN, seed=13)[number * GIVEN : (number + 1) * GIVEN])
    chance, tokens = np.random.default_rng(13), model.model.config.vocab_size
    for name, (rows, length) in SHAPES.items():
        ids = chance.integers(tokens // 30, min(20000, tokens), (rows, length))
        files.write_batches(name, [{"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}])
    stream, others = map(model.encoder.encode, (task.train.sample(streamed, seed=14), task.validation[:compared]))
    ordered = [sorted(features, key=lambda feature: len(feature.ids)) for features in (stream, others)]
    given = model.encoder.encode(files.texts("calibration"))
    for name, features in zip((*STREAMS, COMPARED, "calibration"), (stream, *ordered, given), strict=True):
        parts = [features[start : start + BATCH] for start in range(0, len(features), BATCH)]
        files.write_batches(name, [dict(model.encoder.collate(part)) for part in parts])


def write_graph(files: Files) -> None:
    """Write the model as torch's exporter does, without anything of this project: what a user's peers start from."""
    import torch
    from transformers import AutoModelForSequenceClassification

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForSequenceClassification.from_pretrained(files.model)

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            found = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return found.logits

    names = ("input_ids", "attention_mask", "token_type_ids")
    ids = torch.arange(32).reshape(2, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is called legacy, and is the one whose graphs ONNX Runtime's tools fuse
        torch.onnx.export(
            Logits().eval(),
            (ids, torch.ones_like(ids), torch.zeros_like(ids)),
            str(files.graph),
            input_names=names,
            output_names=("logits",),
            dynamic_axes={name: {0: "batch", 1: "length"} for name in names},
            opset_version=17,
            dynamo=False,
        )


def compare(
    files: Files, engines: Sequence[type[Engine]], cases: Sequence[str], threads: int, seconds: float
) -> dict[str, Any]:
    """Run every engine on every case, alternately; the first engine is the one whose labels are the reference.

    Args:
        files: What ``write_files`` wrote.
        engines: What is measured.
        cases: What it is measured on.
        threads: Threads of each.
        seconds: For each engine and case, at least.

    Returns:
        The parts of a record that were measured: ``engines``, ``not_measured`` and ``load``, by case.
    """
    running: dict[str, Process] = {}
    found: dict[str, Measured] = {}
    reasons: dict[str, str] = {}
    labels: Array | None = None
    made = [kind() for kind in engines]
    with ThreadPoolExecutor(usable_cores()) as pool:
        prepared = [pool.submit(prepare, engine, files) for engine in made]
    for engine, preparation in zip(made, prepared, strict=True):
        try:
            preparation.result()
            process, loaded = start(engine, files, threads)
            own = process.logits(COMPARED).argmax(-1)
            for case in SHAPES:
                process.run(case)
            if labels is not None and own.shape != labels.shape:
                process.close()
                raise EngineError(f"answers with labels {list(own.shape)}, not {list(labels.shape)}")
        except EngineError as error:
            reasons[engine.name] = str(error)
            print(f"{engine.name}: not measured: {error}", flush=True)
            continue
        labels = own if labels is None else labels
        running[engine.name] = process
        row = Measured(engine.name, process.told["bytes"] / 1e6, round(loaded, 2))
        row.agreement, row.versions = float((own == labels).mean()), process.told["versions"]
        found[engine.name] = row
        print(f"{engine.name}: loaded in {loaded:.1f} s, agreement {row.agreement:.1%}", flush=True)
    if engines[0].name not in found:
        raise SystemExit(f"{engines[0].name}, which all others are compared with, cannot be measured")
    load = {}
    for case in cases:
        for name, taken in _times(running, reasons, case, seconds).items():
            found[name].seconds[case] = np.median(taken, axis=1).tolist()
        load[case] = load_average()
        print(f"{case}: {len(found[engines[0].name].seconds[case])} rounds, load {load[case]}", flush=True)
    for name, process in running.items():
        found[name].resident_megabytes = process.megabytes
        process.close()
    return {"engines": [asdict(found[name]) for name in running], "not_measured": reasons, "load": load}


def _times(running: dict[str, Process], reasons: dict[str, str], case: str, seconds: float) -> dict[str, Times]:
    """Return the seconds that the processes measured, without the time of the pipe; what dies is left out from now on.

    Args:
        running: The processes by name; those that die are removed.
        reasons: Why engines are not measured; those that die are added.
        case: What they run.
        seconds: For each, at least.
    """

    def run(name: str, number: int) -> float:
        del number
        try:
            return running[name].run(case)
        except EngineError as error:
            reasons[name] = f"{case}: {error}"
            raise

    while True:
        try:
            return interleave({name: partial(run, name) for name in running}, seconds)
        except EngineError:
            for name in running.keys() & reasons:
                print(f"{name}: not measured: {reasons[name]}", flush=True)
                del running[name]
            if not running:
                raise


def rates(config: Any, threads: int, seconds: float = 0.5) -> dict[str, dict[str, float]]:
    """Return the measured rates of matrix products at the model's shapes, in 10^9 operations per second."""
    import onnx
    import onnxruntime
    import torch

    torch.set_num_threads(threads)
    found = {}
    rows, width, wide = int(np.prod(SHAPES[RATED])), config.hidden_size, config.intermediate_size
    for inner, columns in ((width, width), (width, wide), (wide, width)):
        work_of = 2e-9 * rows * inner * columns
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        kinds = onnx.TensorProto
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("MatMulInteger", ["u", "q"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("u", kinds.UINT8, [rows, inner])],
            [onnx.helper.make_tensor_value_info("y", kinds.INT32, [rows, columns])],
            [onnx.numpy_helper.from_array(np.full((inner, columns), 3, np.int8), "q")],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        u = np.full((rows, inner), 7, np.uint8)
        found[f"{rows} x {inner} x {columns}"] = {
            "fp32": work_of / min(_passes(lambda a=a, b=b: a @ b, seconds)),
            "u8 x s8": work_of / min(_passes(lambda s=session, u=u: s.run(None, {"u": u}), seconds)),
        }
    return found


def _passes(run: Any, seconds: float) -> Iterator[float]:
    run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        yield time.perf_counter() - start


def synthetic(count: int, seed: int = 13) -> list[dict[str, Any]]:
    """Return synthetic sentences, whose words make them positive or negative; 1 to 50 words, median 9, as in SST-2."""
    chance = np.random.default_rng(seed)
    words = (
        "a",
        "the",
        "film",
        "story",
        "is",
        "not",
        "good",
        "bad",
        "very",
        "dull",
        "cast",
        "plot",
        "time",
        "it",
        "of",
    )
    lengths = np.clip(np.rint(chance.lognormal(2.2, 0.75, count)), 1, 50).astype(int)
    drawn = [chance.choice(words, size).tolist() for size in lengths]
    praise = [own.count("good") - own.count("bad") - own.count("dull") for own in drawn]
    return [
        {"text": " ".join(own), "label": "negative" if less < 0 else "positive"}
        for own, less in zip(drawn, praise, strict=True)
    ]


def the_task() -> Task:
    """Return SST-2 if COMPRESS_DATA is set, else synthetic sentences."""
    if os.environ.get("COMPRESS_DATA"):
        return load_task("classification", data=str(Path(os.environ["COMPRESS_DATA"]) / "sst2"))
    from eval.task import TaskSpec

    spec = TaskSpec(kind="classification", labels=("negative", "positive"))
    sizes = (("train", LEARNED, 1), ("validation", 512, 2))
    return Task(spec, {name: Examples(synthetic(count, seed), name) for name, count, seed in sizes})


def the_model(given: argparse.Namespace, task: Task) -> Artifact:
    """Return the model to measure."""
    if given.model:
        return Artifact.from_pretrained(given.model, task)
    if given.shape == "base":
        from compress.student.student import Student

        shape = Student(layers=12, hidden_size=768, heads=12, intermediate_size=3072, init="random")
        model = Artifact.from_pretrained(base(), task)
        return Artifact.from_model(shape.build(model), origin="random weights")
    from teachers.finetuning.finetune import finetune
    from teachers.training.config import Training

    # Under a new head the logits of both labels are nearly equal for every text, which is no case 8 bits are made for.
    few = Task(task.spec, {"train": task.train[:LEARNED]}, source=task.source)
    _, folder = finetune(base(), few, Training(epochs=2, learning_rate=1e-4, batch_size=32, warmup_steps=0.1))
    return Artifact.from_pretrained(folder, task)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--model", help="an artifact that classifies; by default MiniLM-L6, which learns from a few texts first"
    )
    parser.add_argument("--shape", choices=["minilm", "base"], default="minilm")
    parser.add_argument("--seconds", type=float, default=1.0, help="per engine and case")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sentences", type=int, default=128, help="sentences of the streams")
    parser.add_argument("--compared", type=int, default=1000, help="most sentences whose labels are compared")
    parser.add_argument("--only", default="", help="engines whose name contains this, and torch")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument(
        "--fill", action="store_true", help="keep the record in benchmarks/results, write the page anew"
    )
    parser.add_argument("--work", type=Path, help="keep the prepared files here")
    given = parser.parse_args()
    if given.fill and (set(given.cases) != set(CASES) or given.only or not (given.model or given.shape == "base")):
        parser.error("--fill: the page shows all engines and cases of a fine-tuned model or of the shape of BERT-base")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    task = the_task()
    model = the_model(given, task)
    engines = [engine for engine in ENGINES if given.only in engine.name or engine is REFERENCE]
    with tempfile.TemporaryDirectory() as temporary:
        files = Files((given.work or Path(temporary)).resolve())
        files.folder.mkdir(parents=True, exist_ok=True)
        if not files.graph.exists():
            write_files(files, model, task, given.sentences, given.compared)
        found: dict[str, Any] = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "weights": model.digest}
        found |= {"machine": machine(), "threads": given.threads}
        found |= {"sentences": given.sentences, "compared": given.compared}
        found |= compare(files, engines, given.cases, given.threads, given.seconds)
    found |= {"rates": rates(model.model.config, given.threads)}
    found |= {"billions": gigaflops(model.model.config, *SHAPES[RATED])}
    print(report(found))
    if given.fill:
        name = record_name("fine-tuned" if given.model else given.shape, found["machine"])
        atomic_write(RESULTS / f"{name}.json", (json.dumps(found, indent=1) + "\n").encode("utf-8"))
        inference_report.write()


if __name__ == "__main__":
    main()
