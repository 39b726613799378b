"""Studies: many rows, one table; nothing is made twice, and a row that fails does not take the others with it."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks import figures
from benchmarks.archive import Archive
from benchmarks.results import DOCS, PAGES, blocks, fill, write
from benchmarks.study import Study, block, draw_plots, outcomes, rows_named, run_study, score, table
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "benchmarks" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_row_of_a_shipped_study_is_a_recipe(path):
    study = Study.read(path)
    assert {study.baseline_of(row, baseline) for row in study.rows for baseline in study.baselines} <= set(study.rows)
    for row in study.rows:
        recipe = study.recipe_of(row, study.seeds_of(row)[0])
        assert recipe.steps or recipe.student or recipe.teacher.finetune
        assert set(study.seeds_of(row)) <= set(study.seeds)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_a_place_for_each_study_that_was_measured(page, tmp_path):
    programs = set(figures.REPORTS)  # which have tables of their own
    places = set(blocks(DOCS / f"{page}.md"))
    assert set(PAGES[page]) & set(Archive().studies()) <= places <= {*PAGES[page], *programs}
    assert all((ROOT / "benchmarks" / "studies" / f"{name}.yaml").is_file() for name in PAGES[page])
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in PAGES[page] if name not in places), "what is not measured is named"


def test_a_table_is_put_between_the_marks_of_its_study(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- study one -->\n\nold\n\n<!-- end -->\nafter\n", encoding="utf-8")
    fill(page, "one", "| table \\1 |")
    assert page.read_text(encoding="utf-8") == "before\n<!-- study one -->\n\n| table \\1 |\n\n<!-- end -->\nafter\n"
    with pytest.raises(SystemExit, match="has no place for nothing"):
        fill(page, "nothing", "")


def test_a_study_without_records_needs_no_place(study, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n", encoding="utf-8")
    write(study, page, Archive(tmp_path / "records"))
    assert page.read_text(encoding="utf-8") == "nothing\n"


def test_a_name_chooses_its_row_and_a_part_of_one_all_that_have_it(study):
    longer = replace(study, rows={**study.rows, "labels only, longer": {}})
    for only, rows in {"labels only": 1, "labels": 2, "": 5, "nothing": 0}.items():
        assert len(rows_named(longer, only)) == rows


@pytest.fixture
def study(tmp_path):
    from teachers.taskmodel import save_taskmodel

    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    (tmp_path / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "teacher")
    values = {
        "seeds": [1, 2],
        "recipe": {
            "task": {"kind": "classification", "data": str(tmp_path / "data")},
            "teacher": {"model": str(tmp_path / "teacher")},
            "student": {"from": "teacher", "layers": 2},
            "training": {"max_steps": 3, "batch_size": 8},
            "evaluate": {"latency": None},
        },
        "plots": {
            "p": {"x": "alpha", "lines": {"soft": {0: "labels only", 1: "logits, KL"}, "none": {0: "cannot be"}}}
        },
        "rows": {
            "labels only": {"steps": ["distill.labels"]},
            "logits, KL": {"steps": [{"distill.logits": {"alpha": 1.0}}]},
            "cannot be": {"student": {"from": "teacher", "layers": [0, 9]}, "steps": ["distill.labels"]},
            "one seed": {"seeds": [1], "steps": ["distill.pkd"]},
        },
    }
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return Study.read(file)


def test_each_makes_every_row_once_for_each_name_and_a_study_like_another_has_its_rows(tmp_path):
    values = {
        "seeds": [1],
        "recipe": {"task": {"kind": "classification", "data": "one", "metric": "accuracy"}, "teacher": {"model": "m"}},
        "each": {"10 labels": {"task": {"limit": {"train": 10}}}, "20 labels": {"task": {"limit": {"train": 20}}}},
        "rows": {"labels only": {"steps": ["distill.labels"]}, "distilled": {"steps": ["distill.logits"]}},
        "plots": {"one": {"x": "labels", "lines": {"distilled": {10: "distilled, 10 labels"}}}},
    }
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    other = {"like": "one.yaml", "recipe": {"task": {"kind": "classification", "data": "other"}}}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other, sort_keys=False))
    first, second = (Study.read(tmp_path / name) for name in ("one.yaml", "other.yaml"))
    names = [f"{row}, {number} labels" for row in ("labels only", "distilled") for number in (10, 20)]
    assert list(first.rows) == list(second.rows) == names
    task = first.recipe_of("distilled, 20 labels", 1).task
    assert (task.data, task.metric, task.limit) == ("one", "accuracy", {"train": 20})
    task = second.recipe_of("distilled, 10 labels", 1).task
    assert (task.data, task.metric, task.limit) == ("other", None, {"train": 10})
    assert (list(first.plots), list(second.plots)) == (["one"], ["other"])
    assert first.baseline_of("distilled, 10 labels", "labels only") == "labels only, 10 labels"
    assert set(first.digests.values()).isdisjoint(second.digests.values())


def test_a_folder_of_another_recipe_is_told_and_left_alone(study, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    folder = tmp_path / "out" / "labels only-1"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: other\n")
    archive = Archive(tmp_path / "archive")
    for _ in range(2):
        (outcome,) = run_study(study, tmp_path / "out", archive, only="labels only", seeds=1).values()
        assert "holds a run of another recipe" in outcome.failure
        assert str(tmp_path) not in outcome.failure
    assert [path.name for path in folder.iterdir()] == ["recipe.yaml"]


def test_a_row_whose_steps_change_the_export_alone_has_the_export_for_its_student(study, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    row = {"student": None, "steps": ["quantize.dynamic"], "export": [{"onnx": {"agreement": 0.0}}]}
    alone = replace(study, rows={"dynamic": row}, digests={"dynamic": "of this row"}, baselines=())
    (outcome,) = run_study(alone, tmp_path / "out", Archive(tmp_path / "archive"), seeds=1).values()
    (student,) = outcome.students
    assert (student.name, student.score) == ("onnx-int8", outcome.exports[0].score)


def test_a_study_is_run_once_and_told_in_one_table(study, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    archive = Archive(tmp_path / "archive")
    found = run_study(study, tmp_path / "out", archive)
    *lines, blank, note = table(study, found).splitlines()
    assert (blank, note.split(";")[0]) == ("", "2 comparisons with a baseline")  # one row cannot be run
    one_seed = "Where a row has one seed, the interval of its difference holds for these models, not for training anew."
    assert note.endswith(one_seed)
    several = {row: found[row] for row in ("labels only", "logits, KL")}
    assert one_seed not in table(study, several)
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == list(study.rows)
    assert f"{found['labels only'].students[0].score:.4f}"[:4] in lines[2] or "±" in lines[2]
    assert "(2)" in lines[2]
    assert "(1)" in lines[5]
    assert "not run: student" in lines[4]
    assert len({line.count("|") for line in lines}) == 1
    draw_plots(study, found, tmp_path / "plots")
    light, dark = ((tmp_path / "plots" / name).read_text(encoding="utf-8") for name in ("p.svg", "p-dark.svg"))
    assert all(said in light for said in (">alpha<", ">soft<", ">teacher<", ">accuracy<"))
    assert ">none<" not in light
    one = found["logits, KL"].students
    interval = score(one)
    assert interval.value == pytest.approx(sum(each.score for each in one) / 2)
    assert interval.low < interval.value < interval.high
    assert light.count("stroke-opacity: 0.55") + light.count("opacity: 0.55") >= 2, "each point has its interval"
    assert light != dark
    part = {row: outcome for row, outcome in found.items() if row != "logits, KL"}
    draw_plots(study, part, tmp_path / "partial")
    assert not list((tmp_path / "partial").iterdir()), "a picture of some of its rows would replace that of all"
    (tmp_path / "out").rename(tmp_path / "gone")
    records = {path: path.read_bytes() for path in archive.folder.rglob("*.xz")}
    with caplog.at_level(logging.INFO):
        again = run_study(study, tmp_path / "out", archive)
    started = [line for line in caplog.messages if line.endswith(": started")]
    assert set(started) == {"check and prepare: started"}, "records are enough, but for the row that cannot be"
    assert block(study, again) == block(study, found) != ""
    assert {path: path.read_bytes() for path in archive.folder.rglob("*.xz")} == records
    assert sum(path.parent.name == "examples" for path in records) == 1, "all rows have the same truths"
    assert sum(path.parent.name == "predictions" for path in records) == 1, "and the same teacher"
    changed = replace(study, digests={**study.digests, "one seed": "of another recipe"})
    shorter = table(changed, outcomes(changed, archive))
    assert "| one seed |" not in shorter
    assert shorter.endswith("\n\nNot measured yet: *one seed*.")
