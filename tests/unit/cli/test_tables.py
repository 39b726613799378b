"""Somebody's table, with columns of other names, through every command that reads data."""

from __future__ import annotations

import json
import re

import pytest

from compress.recipe import read_recipe

NAMED = ("--text", "message", "--label", "team")
ROWS = [f"{number},2024-01-01,ticket {number},{('bad', 'good')[number % 2]}" for number in range(120)]
CURE = "name its column with task: {columns: {label: ...}} in a recipe, or with --label on the command line"


@pytest.fixture
def tickets(tmp_path):
    file = tmp_path / "tickets.csv"
    file.write_text("\n".join(["ticket_id,created_at,message,team", *ROWS]), encoding="utf-8")
    return file


def next_of(err):
    return [line for line in err.splitlines() if line.startswith("next: ")]


def test_teach_init_and_check_read_the_named_columns_of_one_file(call, place, tickets, tmp_path):
    out, recipe = tmp_path / "trained", tmp_path / "recipe.yaml"
    base = ("--base", place / "teacher", "--task", "classification")
    code, _, err = call("teach", *base, "--data", tickets)
    assert (code, CURE in err) == (2, True)
    code, _, err = call("teach", *base, "--data", tickets, *NAMED, "--max-steps", 1, "--batch-size", 8, "--out", out)
    assert code == 0, err
    words = f"compress init --task classification --data {tickets} --text message --label team --teacher {out}"
    assert next_of(err) == [f"next: {words}"]
    assert call(*words.split()[1:], "--layers", 1, "--no-int8", "--out", recipe)[0] == 0
    task = read_recipe(recipe).task
    assert (task.files, task.columns) == ({"train": str(tickets)}, {"text": "message", "label": "team"})
    code, said, err = call("check", recipe, "--json")
    assert code == 0, err
    assert json.loads(said)["data"] == ["train 84", "validation 36"]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("data: {data}, columns: {{group: id}}", None),  # no option names a group
        ("files: {{train: {data}/train.jsonl, validation: {data}/validation.jsonl}}", None),
        ("files: {{train: {data}/train.jsonl}}", "--task classification --data {data}/train.jsonl"),
    ],
)
def test_after_teach_the_next_command_is_one_that_can_be_given(call, place, tmp_path, task, words):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "validation"):
        rows = (place / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        numbered = (json.dumps({**json.loads(row), "id": number}) for number, row in enumerate(rows))
        (data / f"{name}.jsonl").write_text("\n".join(numbered), encoding="utf-8")
    recipe, out = tmp_path / "teach.yaml", tmp_path / "out"
    block = f"task: {{kind: classification, {task.format(data=data)}}}\n"
    recipe.write_text(f"{block}teacher: {{model: {place / 'teacher'}, finetune: {{max_steps: 1}}}}\n", encoding="utf-8")
    code, _, err = call("teach", "--recipe", recipe, "--out", out)
    assert code == 0, err
    expected = [] if words is None else [f"next: compress init {words.format(data=data)} --teacher {out}"]
    assert next_of(err) == expected


def test_teach_refuses_columns_beside_a_recipe_and_those_that_the_task_has_not(call, place):
    code, _, err = call("teach", "--recipe", place / "recipe.yaml", *NAMED)
    assert (code, err) == (2, "--text, --label: the recipe says this already; change it with --set\n")
    code, _, err = call("teach", "--base", "b", "--task", "masked-lm", "--data", "d", "--label", "team")
    assert (code, err) == (2, "label: a masked-lm task has no labels; leave it out\n")


def test_init_writes_no_recipe_whose_columns_cannot_be_found(call, place, tickets, tmp_path):
    flags = ("--task", "classification", "--teacher", place / "teacher", "--layers", 1, "--no-int8")
    recipe = tmp_path / "recipe.yaml"
    code, _, err = call("init", *flags, "--data", tickets, "--out", recipe)
    assert (code, recipe.exists()) == (2, False)
    assert err == (
        f"{tickets}:2: the field 'label' is missing; there are 'ticket_id', 'created_at', 'message', 'team'; {CURE}\n"
    )
    code, _, err = call("init", *flags, "--data", tickets, "--label", "tam", "--out", recipe)
    assert (code, recipe.exists(), "the field 'tam' is missing" in err) == (2, False, True)


def test_export_and_verify_need_no_labels_and_tuning_does(call, place, tickets, tmp_path):
    out = tmp_path / "out"
    flags = ("export", place / "teacher", "--out", out, "--data", tickets)
    code, said, err = call(*flags, "--int8", "--agreement", "0.5")
    assert code == 0, err
    assert re.search(r"of the predictions on 120 examples; largest", said)
    code, said, err = call("verify", out, "--against", place / "teacher", "--data", tickets, "--json")
    assert (code, {each["runtime"] for each in json.loads(said)} >= {"torch model"}) == (0, True), err
    code, _, err = call(*flags, "--tune", "latency")
    assert (code, CURE in err) == (2, True)
    code, said, err = call(*flags, "--fp32", *NAMED)
    assert (code, "on 120 examples" in said) == (0, True), err
    code, _, err = call(*flags, "--fp32", "--label", "nosuch")
    assert (code, "the field 'nosuch' is missing" in err) == (2, True)


def test_columns_of_no_data_are_refused(call, place, tmp_path):
    code, _, err = call("export", place / "teacher", "--out", tmp_path / "out", *NAMED)
    assert (code, err) == (2, "--text and --label: name columns of --data; give it too, or leave them out\n")
    (tmp_path / "export.json").write_text("{}", encoding="utf-8")
    code, _, err = call("verify", tmp_path, *NAMED)
    assert (code, err) == (2, "--text and --label: are for --against, and there is none; add --against MODEL\n")


def test_augment_reads_named_columns(call, tickets, tmp_path):
    out = tmp_path / "more.jsonl"
    flags = ("--rule", "bilstm", "--pos", 0, "--copies", 1, "--out", out)
    code, _, err = call("augment", tickets, *flags, *NAMED)
    assert code == 0, err
    first = json.loads(out.read_text(encoding="utf-8").splitlines()[0])
    assert first == {"text": "ticket 0", "label": "bad"}
