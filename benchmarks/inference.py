"""Latency and throughput of a model on this processor: current tools and this one, timed alternately in one run.

    python -m benchmarks.inference [--model FOLDER] [--seconds 10] [--threads 2] [--cases …]

Every engine runs in its own process, with the same number of threads, and they take turns in a random order, round
after round until rounds agree (``eval.cost.timing``), so that other load on the machine slows all of them; figures are
medians over rounds, ratios are medians of the rounds' ratios with their interval of order statistics.
The model is MiniLM-L6 with a new head, a fine-tuned artifact (``--model``), or ``--shape base``: the shape of BERT-base
with random weights. Sentences are SST-2's if COMPRESS_DATA is set, else synthetic with similar lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.archive import commit
from benchmarks.distillation_step import base
from benchmarks.engines import ENGINES, Array, Engine, peers
from benchmarks.inference_report import (
    CASES,
    RATED,
    REFERENCE,
    SHAPES,
    STREAMED,
    STREAMS,
    Measured,
    bars,
    gigaflops,
    report,
)
from benchmarks.results import DOCS, fill
from compress.artifact.artifact import Artifact
from compress.export import export, export_onnx
from compress.modules.int8_scheme import Int8
from compress.technique import Inputs as TechniqueInputs
from eval.cost.machine import load_average, machine
from eval.cost.timing import interleave
from eval.data.loading import load_task
from eval.report.plots import render, write_themes
from eval.task import Examples, Task

BATCH = 16
COMPARED = "compared"
"""Sentences whose labels are compared: more than for throughput, because engines differ on a few in a thousand."""


class Process:
    """An engine in its own process.

    Attributes:
        load_seconds: From its start to its first prediction.
        megabytes: Its peak memory so far.
    """

    def __init__(self, engine: Engine, folder: Path, threads: int) -> None:
        start = time.perf_counter()
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.engines", engine.name, str(folder), str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.megabytes = 0.0
        self._read()
        self.load_seconds = time.perf_counter() - start

    def run(self, case: str, repeat: int) -> float:
        """Return the seconds that the case takes; with ``repeat`` 0 it only writes its logits."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([case, repeat]) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def _read(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"ended with {self.process.wait()}")
        found = json.loads(line)
        self.megabytes = found["megabytes"]
        return float(found["seconds"])


class EngineError(Exception):
    """An engine that cannot load or run the model."""


def write_batches(folder: Path, model: Artifact, train: Examples, compared: int) -> None:
    """Write the batches that all engines run."""
    chance = np.random.default_rng(13)
    for name, (rows, length) in SHAPES.items():
        ids = chance.integers(1000, min(20000, model.model.config.vocab_size), (rows, length))
        _save(folder / f"{name}.npz", [{"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}])
    streamed, others = (model.encoder.encode(train.sample(count, seed=13)) for count in (STREAMED, compared))
    by_length = [sorted(features, key=lambda feature: len(feature.ids)) for features in (streamed, others)]
    for name, ordered in zip((*STREAMS, COMPARED), (streamed, *by_length), strict=True):
        parts = [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]
        _save(folder / f"{name}.npz", [dict(model.encoder.collate(part)) for part in parts])


def _save(file: Path, batches: Sequence[dict[str, Array]]) -> None:
    np.savez(file, **{f"{number}/{key}": array for number, batch in enumerate(batches) for key, array in batch.items()})


def prepare(folder: Path, model: Artifact, task: Task, engines: Sequence[Engine], compared: int) -> None:
    """Write every file that the engines load, and the batches; the labels of ``compared`` sentences are compared."""
    from compress.quantize.static import StaticQuantization

    model.save(folder / "model")
    examples = task.validation
    write_batches(folder, model, task.train, compared)
    inputs = TechniqueInputs(calibration=task.train[:256])
    ranges = StaticQuantization(keep_float="none").apply(model, inputs, None)  # type: ignore[arg-type]
    static = Int8.model_validate(ranges.export_scheme)
    schemes = {"token": Int8(), "tensor": Int8(activations="tensor"), "static": static}
    export_onnx(model, folder / "ours-fp32", int8=False, examples=examples)
    (folder / "plain.onnx").write_bytes((folder / "ours-fp32" / "model.onnx").read_bytes())
    for name, scheme in schemes.items():
        export_onnx(model, folder / f"ours-{name}", int8=scheme, examples=examples, agreement=0.0)
        if name != "tensor" and any(engine.file.startswith("ours-openvino") for engine in engines):
            place = folder / f"ours-openvino-{name}"
            export(model, place, "openvino", int8=scheme, examples=examples, agreement=0.0)
    peers(folder, model.model.config)


def compare(
    folder: Path, engines: Sequence[Engine], cases: Sequence[str], threads: int, seconds: float
) -> list[Measured]:
    """Run every engine on every case, alternately, for so many seconds or more each."""
    running: dict[str, Process] = {}
    found: dict[str, Measured] = {}
    for engine in engines:
        try:
            process = Process(engine, folder, threads)
            process.run(COMPARED, 0)
        except EngineError as error:
            print(f"{engine.name}: not measured, {error}")
            continue
        running[engine.name] = process
        size = (folder / engine.file).stat().st_size if engine.file else 0
        agreement = float((_labels(folder, engine.name) == _labels(folder, REFERENCE)).mean())
        found[engine.name] = Measured(engine.name, size / 1e6, process.load_seconds, process.megabytes, agreement)
    for case in cases:
        times = interleave({name: partial(_run, process, case) for name, process in running.items()}, seconds)
        for name, taken in times.items():
            found[name].seconds[case] = np.median(taken, axis=1).tolist()
        print(f"{case}: {len(next(iter(times.values())))} rounds, load {load_average()}", flush=True)
    for process in running.values():
        process.close()
    return list(found.values())


def _run(process: Process, case: str, number: int) -> float:
    """Return the seconds that the process itself measured, without the time of the pipe."""
    del number
    return process.run(case, 1)


def _labels(folder: Path, name: str) -> Array:
    with np.load(folder / f"{name}.npz") as file:
        return np.concatenate([file[key].argmax(-1) for key in file])


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
            "fp32": work_of / min(_times(lambda a=a, b=b: a @ b, seconds)),
            "u8 x s8": work_of / min(_times(lambda s=session, u=u: s.run(None, {"u": u}), seconds)),
        }
    return found


def _times(run: Any, seconds: float) -> Iterator[float]:
    run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        yield time.perf_counter() - start


def synthetic(count: int, seed: int = 13) -> list[dict[str, Any]]:
    """Return synthetic sentences with lengths like SST-2's: 1 to 50 words, median 9."""
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
    return [{"text": " ".join(chance.choice(words, size)), "label": "positive"} for size in lengths]


def the_task() -> Task:
    """Return SST-2 if COMPRESS_DATA is set, else synthetic sentences."""
    if os.environ.get("COMPRESS_DATA"):
        return load_task("classification", data=str(Path(os.environ["COMPRESS_DATA"]) / "sst2"))
    from eval.task import TaskSpec

    spec = TaskSpec(kind="classification", labels=("negative", "positive"))
    sizes = (("train", 2048, 1), ("validation", 512, 2))
    return Task(spec, {name: Examples(synthetic(count, seed), name) for name, count, seed in sizes})


def the_model(given: argparse.Namespace, task: Task) -> Artifact:
    """Return the model to measure."""
    if given.model:
        return Artifact.from_pretrained(given.model, task)
    model = Artifact.from_pretrained(base(), task)
    if given.shape == "base":
        from compress.student.student import Student

        shape = Student(layers=12, hidden_size=768, heads=12, intermediate_size=3072, init="random")
        model = Artifact.from_model(shape.build(model), origin="random weights")
    return model


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="an artifact that classifies; by default MiniLM-L6 with a new head")
    parser.add_argument("--shape", choices=["minilm", "base"], default="minilm")
    parser.add_argument("--seconds", type=float, default=10.0, help="per engine and case")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compared", type=int, default=2048, help="sentences whose labels are compared")
    parser.add_argument("--only", default="", help="engines whose name contains this, and torch")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--fill", action="store_true", help="put the tables into docs/results/inference.md")
    parser.add_argument("--work", type=Path, help="keep the prepared files here")
    parser.add_argument("--processor", help="name of this processor, for tables beside another's")
    given = parser.parse_args()
    if given.fill and len(set(given.cases)) < len(CASES):
        parser.error("--fill: the page shows all cases; leave --cases out")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    task = the_task()
    model = the_model(given, task)
    engines = [e for e in ENGINES if e.installed and (given.only in e.name or e.name == REFERENCE)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "fused-reduced.onnx").exists():
            prepare(folder, model, task, engines, given.compared)
        measured = compare(folder, engines, given.cases, given.threads, given.seconds)
    name = "fine-tuned" if given.model else given.shape
    if len(measured[0].seconds) < len(CASES):  # beside the full result, not in its place
        name = "-".join([name, *(case.replace(" ", "") for case in measured[0].seconds)])
    name = f"{name}-{given.processor}" if given.processor else name
    found = {"commit": commit(), "machine": machine(), "threads": given.threads}
    found["rates"] = rates(model.model.config, given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    found |= {"billions": gigaflops(model.model.config, *SHAPES[RATED]), "engines": [asdict(row) for row in measured]}
    (given.out / f"inference-{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    tables = report(found)
    print(tables)
    if given.fill:
        fill(DOCS / "inference.md", f"inference-{name}", tables)
        picture = render(bars(measured, engines), width=9.6, height=4.6)
        write_themes(DOCS / "plots", f"inference-{name}", picture)


if __name__ == "__main__":
    main()
