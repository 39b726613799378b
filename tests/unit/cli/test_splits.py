"""``compress check`` says which split a file became, and what is carved where splits are missing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from compress.engine.preparation import roles_of
from compress.recipe import Recipe
from compress.recipe.blocks import EvaluateBlock
from eval import Task, TaskSpec
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_taskmodel

ROWS = [f"film {number},{('bad', 'good')[number % 2]}" for number in range(120)]


@pytest.fixture
def check(place, tmp_path, call, monkeypatch):
    """Check the recipe with other data; return exit code, what was found, and the problems."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "only").mkdir()
    for file in ("films.csv", "only/train.csv"):
        (tmp_path / file).write_text("\n".join(["sentence,sentiment", *ROWS]), encoding="utf-8")

    def run(*sets):
        flags = [word for given in sets for word in ("--set", given)]
        code, out, _ = call("check", place / "recipe.yaml", *flags, "--json")
        found = json.loads(out)
        return code, found, found["problems"]

    return run


def test_of_a_folder_with_train_alone_check_says_what_is_carved(check):
    code, found, _ = check("task.data=only")
    assert code == 0
    assert found["roles"] == [
        "train 84, test: validation 36 carved from train, the only split with labels.",
        "Nothing is chosen, and the last epoch of every training is kept: train has 84 examples, 84 of them with "
        "labels, and a part is carved from 200 on. Give more examples with labels, or others that choose with task: "
        "{files: {select: FILE}}.",
    ]
    assert found["data"] == ["train 84", "validation 36"]


def test_one_file_is_said_to_be_validation_and_what_makes_it_train(check):
    code, _, problems = check("task.data=films.csv")
    assert code == 2
    assert problems[0].endswith("step 1, distill.logits: needs a task with training data, and there is none")
    assert problems[-1].endswith(
        "task.data: films.csv is one file and was read as validation; files: {train: films.csv} makes it what is "
        "learned from."
    )
    code, found, _ = check("task.data=films.csv", "task.files={train: films.csv}")
    assert (code, found["data"]) == (0, ["train 84", "validation 36"])


def test_odd_labels_are_no_error_and_are_told(check, tmp_path):
    rows = [*ROWS, *("film a,Good ", "film b,Good ", "film c,superb")]
    (tmp_path / "only" / "train.csv").write_text("\n".join(["sentence,sentiment", *rows]), encoding="utf-8")
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    labels = ("Good ", "bad", "good", "superb")
    save_taskmodel(tiny_taskmodel("bert", TaskSpec(kind="classification", labels=labels)), teacher)
    code, found, problems = check("task.data=only", f"teacher.model={teacher}")
    assert code == 0, problems
    assert found["roles"][:2] == [
        "Labels that differ by case or blanks at their ends alone are labels of their own: 'Good ' beside 'good'; "
        'label_map: {"Good ": "good"} makes them one.',
        "Labels of a single example in train, too few to learn from: 'superb'; label_map can join them to others.",
    ]


def test_where_too_few_examples_could_report_the_cure_is_named(check, tmp_path):
    (tmp_path / "only" / "train.csv").write_text("\n".join(["sentence,sentiment", *ROWS[:50]]), encoding="utf-8")
    code, _, problems = check("task.data=only")
    assert code == 2
    (problem,) = problems
    assert (
        "evaluate.split: Nothing reports: only has no validation or test split with labels, and train has 50 "
        in problem
    )
    assert problem.endswith("Add such a split, or leave evaluate out.")


@pytest.mark.parametrize("evaluate", [None, EvaluateBlock()])
def test_the_notes_of_a_run_begin_with_what_a_file_became(evaluate):
    films = [{"text": row.split(",")[0], "label": row.split(",")[1]} for row in ROWS]
    task = replace(Task.from_list({"validation": films}), source="films.csv")
    notes = roles_of(Recipe(evaluate=evaluate), task).notes
    assert notes[0].startswith("films.csv is one file and was read as validation; ")
    silent = "Without an evaluate block nothing reports, and validation 120 chooses."
    assert notes[1:] == (silent if evaluate is None else "test: validation 120.",)


def test_without_an_evaluate_block_nothing_reports():
    films = [{"text": "a film", "label": "good"}, {"text": "no film", "label": "bad"}]
    task = Task.from_list({"train": films * 2})
    assert roles_of(Recipe(), task).notes == (
        "Without an evaluate block nothing reports, and the last epoch of every training is kept.",
    )
