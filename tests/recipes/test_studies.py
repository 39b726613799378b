"""Studies: many rows, one table; nothing is made twice, and a row that fails does not take the others with it."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.results import DOCS, PAGES, fill, kept
from benchmarks.study import Study, draw_plots, run_study, table
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "benchmarks" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_row_of_a_shipped_study_is_a_recipe(path):
    study = Study.read(path)
    assert set(study.baselines) <= set(study.rows)
    for row in study.rows:
        recipe = study.recipe_of(row, study.seeds_of(row)[0])
        assert recipe.steps or recipe.student or recipe.teacher.finetune
        assert set(study.seeds_of(row)) <= set(study.seeds)


@pytest.mark.parametrize("page", [page for page in PAGES if (DOCS / f"{page}.md").is_file()])
def test_a_page_has_a_place_for_each_of_its_studies(page, tmp_path):
    assert "distillation" in PAGES
    copy = tmp_path / "page.md"
    copy.write_text((DOCS / f"{page}.md").read_text(encoding="utf-8"), encoding="utf-8")
    for name in PAGES[page]:
        assert (ROOT / "benchmarks" / "studies" / f"{name}.yaml").is_file()
        fill(copy, name, f"| table \\1 of {name} |")
    text = copy.read_text(encoding="utf-8")
    programs = ("pretrained", "multitask", "against-teacher")  # which have tables of their own
    others = sum(text.count(f"<!-- study {name} -->") for name in programs)
    assert text.count("| table \\1 of ") == text.count("<!-- study ") - others == len(PAGES[page])
    with pytest.raises(SystemExit, match="has no place for nothing"):
        fill(copy, "nothing", "")


def test_rows_that_were_not_run_stay_as_the_page_has_them():
    earlier = "| method | score |\n|---|---|\n| a | 0.5 |\n| b | 0.6 |\n| gone | 0.7 |"
    new = "| method | score |\n|---|---|\n| a | not run yet |\n| b | 0.9 |\n| c | not run yet |"
    assert kept(new, earlier).splitlines()[2:] == ["| a | 0.5 |", "| b | 0.9 |", "| c | not run yet |"]
    other = earlier.replace("score |", "score | bytes |")
    assert kept(new, other) == new


def test_a_row_stays_if_it_has_more_seeds():
    head, more = "| method | score |\n|---|---|", "| a | 0.5 ± 0.1 (3) |"
    for row, stays in {"| a | 0.6 (1) |": True, "| a | 0.6 (3) |": False, "| a | not run: no data |": False}.items():
        assert kept(f"{head}\n{row}", f"{head}\n{more}").splitlines()[2] == (more if stays else row)


def test_a_name_chooses_its_row_and_a_part_of_one_all_that_have_it(study, tmp_path):
    longer = replace(study, rows={**study.rows, "labels only, longer": {}})
    for only, rows in {"labels only": 1, "labels": 2, "": 5, "nothing": 0}.items():
        assert len(run_study(longer, tmp_path, only, train=False)) == rows


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


def test_a_folder_of_another_recipe_is_told_and_left_alone(study, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    folder = tmp_path / "out" / "labels only-1"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: other\n")
    for train in (True, False):
        (outcome,) = run_study(study, tmp_path / "out", only="labels only", seeds=1, train=train).values()
        assert "holds a run of another recipe" in outcome.failure
    assert [path.name for path in folder.iterdir()] == ["recipe.yaml"]


def test_a_study_is_run_once_and_told_in_one_table(study, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    found = run_study(study, tmp_path / "out")
    *lines, blank, note = table(study, found).splitlines()
    assert (blank, note.split(";")[0]) == ("", "2 comparisons with a baseline")  # one row cannot be run
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
    assert light != dark
    known = run_study(study, tmp_path / "out", train=False)
    assert table(study, known) == table(study, found), "failures are known too"
    part = {row: outcome for row, outcome in found.items() if row != "logits, KL"}
    draw_plots(study, part, tmp_path / "partial")
    assert not list((tmp_path / "partial").iterdir()), "a picture of some of its rows would replace that of all"
    with caplog.at_level(logging.INFO):
        again = run_study(study, tmp_path / "out", seeds=1)
    assert "started" not in caplog.text
    assert again["logits, KL"].students[0].scores == found["logits, KL"].students[0].scores
    assert found["logits, KL"].students[0].kept is not None
