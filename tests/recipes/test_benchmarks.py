"""The scripts behind the figures in the docs still run; what they measure means nothing at this size."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import (
    adapters,
    against_teacher,
    distillation_step,
    generation,
    multitask,
    processes,
    static_vectors,
    tinybert_step,
    vector_index,
)
from benchmarks.data import long_reviews, squad_documents
from benchmarks.static_vectors import Measured
from compress.artifact.artifact import Artifact
from compress.export import export, export_onnx
from eval import load_task
from eval.cost.latency import LatencyRow, StreamRow
from eval.cost.memory import PeakMemory
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel


@pytest.fixture
def small(tmp_path, monkeypatch):
    task = tiny_task("classification")
    write_data(task, tmp_path / "data" / "sst2")
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec, num_hidden_layers=6), tmp_path / "base")
    monkeypatch.setenv("COMPRESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COMPRESS_BASE", str(tmp_path / "base"))
    monkeypatch.setattr(sys, "argv", ["benchmark", "--rounds", "1"])


def test_the_benchmark_of_a_step_runs(small, monkeypatch, capsys):
    monkeypatch.setattr(distillation_step, "SENTENCES", 32)
    distillation_step.main()
    printed = capsys.readouterr().out
    assert "soft targets / labels only" in printed
    assert "speed of grouped / shuffled" in printed
    assert "1 rounds of 1 batches" in printed


def test_the_benchmark_of_tinybert_runs(small, monkeypatch, capsys):
    monkeypatch.setattr(tinybert_step, "SENTENCES", 32)
    monkeypatch.setattr(tinybert_step, "peak_memory", lambda _: PeakMemory(2**20, 2**19))
    tinybert_step.main()
    assert "| of it for the training, MiB | 0 |" in capsys.readouterr().out


def test_the_benchmark_of_generation_compares_with_torch(tmp_path, monkeypatch, capsys):
    task = tiny_task("causal-lm")
    write_data(task, tmp_path / "data" / "texts")
    model = Artifact.from_model(tiny_taskmodel("gpt2", task.spec))
    model.save(tmp_path / "model")
    export(model, tmp_path / "out", "generator")
    monkeypatch.setenv("COMPRESS_DATA", str(tmp_path / "data"))
    given = ["benchmark", str(tmp_path / "model"), str(tmp_path / "out"), "--data", "texts"]
    monkeypatch.setattr(sys, "argv", [*given, "--tokens", "3", "--seconds", "0.01"])
    generation.main()
    own, exported = (line.split("|") for line in capsys.readouterr().out.splitlines()[2:])
    assert own[1].strip() == generation.EAGER
    assert exported[7].strip() == "100%", "the texts of float32 are those of torch"
    with pytest.raises(SystemExit, match="no text goes on for 3 tokens"):
        generation.beginnings(model, [], 3)


def test_the_benchmark_of_exports_against_their_teacher_runs(tmp_path, monkeypatch, capsys):
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    model = Artifact.from_model(tiny_taskmodel("bert", task.spec))
    model.save(tmp_path / "teacher")
    export_onnx(model, tmp_path / "export", int8=False, examples=task.validation, name="the same in ONNX")
    given = [str(tmp_path / "teacher"), str(tmp_path / "export"), "--data", str(tmp_path / "data")]
    monkeypatch.setattr(sys, "argv", ["benchmark", *given, "--seconds", "0.01", "--threads", "1"])
    against_teacher.main()
    teacher, export = capsys.readouterr().out.splitlines()[2:4]
    assert teacher.split(" | ")[1] == against_teacher.TEACHER
    assert export.split(" | ")[1] == "the same in ONNX"
    assert export.split(" | ")[4] == "100.0%"


def test_a_compressed_model_is_held_against_the_fastest_of_its_teachers_own_exports_in_each_case():
    def row(name: str, alone_ms: float, pass_seconds: float, own: tuple[str, ...] = ()) -> against_teacher.Row:
        alone = LatencyRow(name, 1, "data", 3, alone_ms, None, None, 1000 / alone_ms, 1.0, "a machine")
        stream = StreamRow(name, 16, 10, 3, pass_seconds, 10 / pass_seconds, "a machine", (pass_seconds,) * 3)
        return against_teacher.Row(name, own, 1.0, 0.9, replace(alone, round_ms=(alone_ms,) * 3, threads=1), stream)

    own = ("first, onnx-int8", "first, openvino-int8")
    measured = [row(against_teacher.TEACHER, 80.0, 60.0), row("small", 1.0, 1.0, own)]
    measured += [row(own[0], 9.0, 5.0), row(own[1], 6.0, 7.0)]
    cells = against_teacher.table(measured).splitlines()[3].split(" | ")
    assert cells[7:9] == ["80.0 [80.0, 80.0]", "6.0 [6.0, 6.0]"], "OpenVINO answers one sentence faster"
    assert [cell.strip(" |") for cell in cells[10:]] == ["60.0 [60.0, 60.0]", "5.0 [5.0, 5.0]"], "ONNX Runtime a batch"


@pytest.mark.slow
def test_the_benchmark_of_the_index_runs_and_reads_texts_once(tmp_path, monkeypatch, capsys):
    write_data(tiny_task("retrieval", examples=12), tmp_path / "data" / "scifact")
    for place in ("base", "smaller"):
        (tmp_path / place).mkdir()
        save_taskmodel(tiny_taskmodel("bert", tiny_spec("embedding"), seed=len(place)), tmp_path / place)
    monkeypatch.setenv("COMPRESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COMPRESS_BASE", str(tmp_path / "base"))
    given = [f"half={tmp_path / 'smaller'}", "--work", str(tmp_path / "work"), "--seconds", "0.01"]
    vector_index.main(given)
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")][2:]
    forms = [form.title for form in vector_index.forms(32)]
    assert [row[:2] for row in rows] == [
        [f"{name}, {number}", form]
        for name in ("MiniLM-L6", "half")
        for number in ("float32", "int8")
        for form in forms
    ]
    assert [row[5] for row in rows[:5]] == ["128", "36", "64", "20", "4"], "MB of a million vectors of 32 numbers"
    assert rows[0][-1] == ""
    assert float(rows[7][2]) < float(rows[0][2])
    monkeypatch.setattr(vector_index, "predict", None)  # vectors are there
    vector_index.main(given)
    again = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    assert [row[7:] for row in again] == [line.split("|")[7:] for line in lines if line.startswith("|")][2:]


def test_the_picture_and_the_table_of_the_index_come_from_the_record(tmp_path):
    def row(model, form, size, score):
        ends = {"value": score, "low": score - 0.1, "high": score + 0.1}
        more = {"value": score - 0.6, "low": score - 0.7, "high": score - 0.5}
        ms = {"a": 4.0, "b": 0.03}[model]
        shape = {"model": model, "index": form, "megabytes": 90.0, "bytes": size, "search_ms": 0.5, "query_ms": ms}
        return {**shape, "ndcg": ends, "difference": more}

    rows = [row("a", "float32", 4e9, 0.6), row("a", "int8", 1e9, 0.6), row("b", "int8", 2e9, 0.55)]
    here = {"cpu": "a processor", "features": [], "versions": {}}
    found = {"data": "cisi", "rows": rows, "documents": 2000, "queries": 30, "machine": here, "commit": "abc"}
    text = vector_index.report(found)
    assert "| a | float32 | 90.0 | 4.00 | 0.50 | 4,000 | 0.6000 [0.5000, 0.7000] |  |" in text
    assert "| a | **int8** |" in text, "no other is smaller and better"
    assert "| b | int8 |" in text
    assert "Times as fast as a, a query at a time: b 133." in text
    untimed = [{**row, "search_ms": None, "query_ms": None} for row in rows]
    text = vector_index.report({**found, "rows": untimed})
    assert "| a | float32 | 90.0 | - | - | 4,000 | 0.6000 [0.5000, 0.7000] |  |" in text
    assert "Times as fast" not in text
    drawn = vector_index.draw(found).decode()
    assert "a int8" in drawn
    assert "b int8" not in drawn


def test_questions_and_paragraphs_become_a_search(tmp_path):
    def article(title, *texts):
        asked = [{"context": text, "qas": [{"question": f" which {text}? "}, {"question": "why?"}]} for text in texts]
        return {"title": title, "paragraphs": asked}

    for split, found in {"train": [article("A_film", "warm", "dull")], "validation": [article("B", "warm")]}.items():
        (tmp_path / f"{split}.json").write_text(json.dumps({"data": found}))
    task = load_task("retrieval", squad_documents.written(tmp_path, tmp_path / "out", questions=3))
    assert task.test[0]["corpus"].texts == ("A film warm", "A film dull"), "each paragraph once"
    assert (sum("relevant" in text for text in task.train), len(task.test)) == (3, 2)
    assert all(task.test[0]["corpus"].ids.index(name) == 0 for query in task.test for name in query["relevant"])
    assert {query["text"] for query in task.test} == {"which warm?", "why?"}
    few, whole = (
        load_task("retrieval", squad_documents.written(tmp_path, tmp_path / str(more), questions=1, all_to_learn=more))
        for more in (False, True)
    )
    asked = [[(query["id"], query["text"]) for query in task.test] for task in (few, whole)]
    assert asked[0] == asked[1], "only what is learned from grows"
    assert [sum("relevant" in text for text in task.train) for task in (few, whole)] == [1, 4]
    with pytest.raises(SystemExit, match="in the format of SQuAD"):
        squad_documents.written(tmp_path / "out", tmp_path / "none")


def test_the_tables_of_adapters_come_from_the_record():
    task = {"metric": "accuracy", "examples": 500, "final": False, "score": [0.8, 0.8, 0.79], "equal": 1.0}
    speed = {"texts": 1, "milliseconds": {"one graph": 10.0, "merged": 15.0}, "factor": [1.5, 1.4, 1.6]}
    form = {"form": "float32", "bytes": 95e6, "bytes_of_one": 91e6, "bytes_of_all": 455e6, "speed": [speed]}
    rows = [form | {"tasks": {"sst2": task | {"difference": 2e-6, "scale": 3.0}}}]
    machine = {"cpu": "a processor", "features": [], "versions": {}}
    text = adapters.report({"forms": rows, "trained": "so", "machine": machine, "commit": "abc"})
    assert "| float32 | 95.0 | 91.0 | 1.04 | 455.0 |" in text
    assert "| float32 | 1 | 10.00 | 15.00 | 1.50 [1.40, 1.60] |" in text
    assert "| float32 | sst2 | accuracy | 500¹ | 0.8000 | 0.8000 | 0.7900 | 100.0% | 2.0e-06 of 3.0 |" in text


def test_differences_of_static_vectors_are_paired():
    one = np.eye(40)[0] + 1
    theirs, ours, shifted = (
        Measured(lambda at, values=values: float(values[at].mean()), 40)
        for values in (one, np.full(40, 2.0), one + 0.25)
    )
    rows = static_vectors.compared({"one": theirs, "two": theirs}, {"one": ours, "two": shifted})
    assert [row["set"] for row in rows] == ["one", "two", "mean"]
    assert rows[0]["model2vec"] == pytest.approx(41 / 40)
    assert rows[0]["difference"]["value"] == pytest.approx(39 / 40)
    assert rows[0]["difference"]["low"] < 39 / 40 <= rows[0]["difference"]["high"]
    assert rows[1]["difference"] == pytest.approx({"value": 0.25, "low": 0.25, "high": 0.25})
    assert rows[2]["gain"]["value"] == pytest.approx((2 + 1.275) / 2 / 1.025 - 1)
    here = {"cpu": "a processor", "features": [], "versions": {}}
    known = {"sets": rows, "model2vec": "1.0", "size": 8, "texts": 1000, "split": "test", "machine": here, "commit": ""}
    assert "| two | 40 | 102.50 | 127.50 | +25.00 | +25.00 to +25.00 |" in static_vectors.report(known)
    sides = static_vectors.WITHOUT, static_vectors.WITH
    rows = static_vectors.compared({"one": theirs, "two": theirs}, {"one": ours, "two": shifted}, sides)
    text = static_vectors.words_report({**known, "sets": rows, "words": 500})
    assert "| set | examples | without words | with words | difference | 95% |" in text
    assert "| two | 40 | 102.50 | 127.50 | +25.00 | +25.00 to +25.00 |" in text
    assert "`words: 500` against none: +" in text


@pytest.mark.slow
def test_the_benchmark_of_several_tasks_runs(tmp_path, monkeypatch, capsys):
    kinds = {"cola": "classification", "mrpc": "classification", "rte": "classification", "stsb_en": "regression"}
    for name, kind in kinds.items():
        write_data(tiny_task(kind, pair=name != "cola"), tmp_path / "data" / name)
    base = tiny_taskmodel("bert")
    base.model.bert.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    monkeypatch.setenv("COMPRESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COMPRESS_BASE", str(tmp_path / "base"))
    monkeypatch.setattr(sys, "argv", ["benchmark", "--seeds", "1", "2", "--limit", "8"])
    multitask.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "| training | cola | mrpc | rte | stsb |"
    assert [line.split(" | ")[0] for line in printed[2:]] == [f"| {way}" for way in multitask.WAYS]
    assert printed[2].count("(2)") == 4


def test_the_long_texts_of_a_task_are_kept_split_by_split(tmp_path):
    texts = ["short", "one two\x85three four", "one two three fours"]  # a line of JSON may hold other ends of lines
    for split in long_reviews.SPLITS:
        rows = [{"text": f"{split} {text}", "label": f"{len(text) % 2}"} for text in texts]
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (tmp_path / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    out = long_reviews.written(tmp_path, tmp_path / "out", words=5)
    task = load_task("classification", out)
    assert {split: [one["text"] for one in task.splits[split]] for split in long_reviews.SPLITS} == {
        split: [f"{split} {text}" for text in texts[1:]] for split in long_reviews.SPLITS
    }
    with pytest.raises(SystemExit, match="no text of 9 words or more"):
        long_reviews.written(tmp_path, tmp_path / "none", words=9)
    with pytest.raises(SystemExit, match=r"train\.jsonl: is missing"):
        long_reviews.written(tmp_path / "away", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_throughput_by_processes(tmp_path, monkeypatch, capsys):
    task = tiny_task("classification")
    export(tiny_taskmodel("bert", task.spec), tmp_path / "export", examples=task.validation)
    monkeypatch.delenv("COMPRESS_DATA", raising=False)
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["benchmark", str(tmp_path / "export"), "--lines", "20", "--rounds", "1"])
    processes.main()
    printed = capsys.readouterr().out
    assert [line.split(" | ")[0].strip("| ") for line in printed.splitlines()[2:5]] == list(processes.ways(2))
    assert "20 lines, 1 rounds; fp32, 0." in printed
