"""``compress compare`` on folders of real, tiny runs."""

import hashlib
import json
import shutil

import pytest

from compress.cli import main
from tests.recipes.test_resume import finish

RUN = "give the folder that 'compress run' wrote"


@pytest.fixture
def runs(made_once, tmp_path, monkeypatch):
    """A run, and a copy of it whose recipe and one of whose answers are others."""
    shutil.copytree(made_once("finished", finish), tmp_path / "scene")
    monkeypatch.chdir(tmp_path / "scene")
    out, other = tmp_path / "scene" / "out", tmp_path / "scene" / "other"
    shutil.copytree(out, other)
    (other / "recipe.yaml").write_text((out / "recipe.yaml").read_text().replace("alpha: 0.9", "alpha: 0.8"))
    kept = other / "results" / "onnx-int8"
    rows = [json.loads(line) for line in (kept / "predictions.jsonl").read_text().splitlines()]
    for run in (out, other):  # how fast tiny models are is chance; what ships shall be the same
        file = run / "results" / "onnx-int8" / "result.json"
        values = json.loads(file.read_text())
        for row in values["latency"]:
            row["p50_ms"] = 1e-6
        file.write_text(json.dumps(values))
    rows[3]["answer"]["label"] = "good" if rows[3]["answer"]["label"] == "bad" else "bad"
    rows[3]["value"] = 1.0 - rows[3]["value"]
    (kept / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures = json.loads((kept / "result.json").read_text())
    (kept / "result.json").write_text(json.dumps(figures | {"predictions": sha256(kept / "predictions.jsonl")}))
    return tmp_path / "scene"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_runs_are_compared_in_a_table_and_on_a_page(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = json.loads((runs / "data" / "test.jsonl").read_text().splitlines()[3])["text"]
    assert main(["compare", "out", "other", "--out", "both.html"]) == 0
    shown = capsys.readouterr().out
    assert "onnx-int8" in shown  # what ships, not the torch model
    assert "1 of 40 answers differ (2.5%)" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("steps.1.alpha")] == [
        ["steps.1.alpha", "0.9", "0.8"]
    ]
    page = (runs / "both.html").read_text("utf-8")
    assert text in page
    assert "steps.1.alpha" in page


def test_the_comparison_as_json(runs, capsys):
    assert main(["compare", "out", "other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (group,) = found["groups"]
    assert [(run["name"], run["ships"]) for run in group["runs"]] == [("out", "onnx-int8"), ("other", "onnx-int8")]
    assert group["answers_differ"] == [3]
    assert found["settings"] == {"steps.1.alpha": {"out": "0.9", "other": "0.8"}}


def test_changed_data_is_said_and_the_texts_are_left_out(runs, capsys):
    shutil.rmtree(runs / "data")
    assert main(["compare", "out", "other"]) == 0
    assert "so examples are shown by number" in capsys.readouterr().out


def test_every_folder_that_is_no_finished_run_is_named(runs, capsys):
    shutil.rmtree(runs / "other" / "results")
    assert main(["compare", "out", "data", "other", "out", "recipe.yaml", "othr", "--out", "both.html"]) == 2
    *lines, last = capsys.readouterr().err.splitlines()
    assert last == "5 errors"
    assert [line.split(":")[0] for line in lines] == ["out", "othr", "data", "other", "recipe.yaml"]
    said = ("twice", "there is no such folder; did you mean 'other'?", "no run", "not measured", "no run")
    assert [word in line for word, line in zip(said, lines, strict=True)] == [True] * 5
    assert not (runs / "both.html").exists()


def test_what_is_no_run_is_left_out_and_a_run_is_found_where_distill_keeps_it(runs, capsys):
    (runs / "student").mkdir()
    (runs / "other").rename(runs / "student" / "run")
    shutil.copy(runs / "student" / "run" / "recipe.yaml", runs / "student")
    shutil.copytree(runs / "out", runs / "unmeasured")
    shutil.rmtree(runs / "unmeasured" / "results")
    everything = sorted(path.name for path in runs.iterdir() if path.is_dir())
    assert main(["compare", *everything, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in found["groups"][0]["runs"]] == ["out", "student"]
    assert f"Left out: teacher: holds no run (no recipe.yaml here); {RUN}" in found["notes"]
    assert any(note.startswith("Left out: unmeasured: its models were not measured") for note in found["notes"])


def test_certify_and_reuse_find_the_run_that_distill_keeps(runs, capsys):
    (runs / "student").mkdir()
    shutil.copytree(runs / "out", runs / "student" / "run")
    shutil.copy(runs / "recipe.yaml", runs / "student")
    assert main(["certify", "student", "--out", "a.cert", "--model", "onnx-int8"]) == 0
    assert main(["certify", "student", "--model", "onx-int8"]) == 2
    assert "--model: student/run has no result of 'onx-int8'; did you mean 'onnx-int8'?" in capsys.readouterr().err
    assert main(["certify", "studnt"]) == 2
    assert capsys.readouterr().err == "studnt: there is no such folder; did you mean 'student'?\n"
    assert main(["run", "recipe.yaml", "--out", "again", "--reuse", "student"]) == 0
    assert main(["run", "recipe.yaml", "--out", "student", "--resume"]) == 0
    assert not (runs / "student" / "steps").exists(), "it goes on with the run in it"
    shutil.rmtree(runs / "student" / "run" / "results")
    assert main(["certify", "student"]) == 2
    assert "student: its models were not measured" in capsys.readouterr().err


def test_one_run_is_no_comparison(runs, capsys):
    assert main(["compare", "out"]) == 2
    assert "two runs or more" in capsys.readouterr().err


def test_the_page_of_a_run_lists_what_its_export_answers_otherwise(runs):
    page = (runs / "out" / "report.html").read_text("utf-8")
    assert "<h2>What changed</h2>" in page
    assert page.index("onnx-int8 retains") < page.index("small retains")
