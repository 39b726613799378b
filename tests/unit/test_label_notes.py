"""What is said of labels that are no error and still odd."""

from __future__ import annotations

import json

import pytest

from eval import Task
from eval.data.label_notes import label_notes
from eval.data.loading import load_task


def films(*labels):
    return [{"text": f"film {number}", "label": label} for number, label in enumerate(labels)]


def test_labels_that_differ_by_case_or_blanks_are_named_and_the_map_makes_them_one(tmp_path):
    labels = ("Billing", "Billing", "Billing ", "Billing ", "billing", "billing", "Tech", "Tech")
    file = tmp_path / "train.json"
    file.write_text(json.dumps(films(*labels)), encoding="utf-8")
    task = load_task("classification", file)
    (note,) = label_notes(task)
    named = {"Billing ": "Billing", "billing": "Billing"}
    assert note == (
        "Labels that differ by case or blanks at their ends alone are labels of their own: 'Billing ' beside "
        f"'Billing', 'billing' beside 'Billing'; label_map: {json.dumps(named)} makes them one."
    )
    cured = load_task("classification", file, label_map=named)
    assert (cured.spec.labels, label_notes(cured)) == (("Billing", "Tech"), ())


def test_the_most_frequent_form_keeps_its_name():
    assert '{"A": "a"} makes' in label_notes(Task.from_list(films("a", "a", "a", "A", "A", "b", "b")))[0]


def test_labels_of_one_example_are_named_in_the_split_that_is_learned_from():
    task = Task.from_list({"train": films("a", "a", "b", "c"), "validation": films("b", "b", "a")})
    assert label_notes(task) == (
        "Labels of a single example in train, too few to learn from: 'b', 'c'; label_map can join them to others.",
    )
    task = Task.from_list(films("a", "a", *map(str, range(12))))
    assert "'0', '1', '10', '11', '2', '3', '4', '5', '6', '7' and 2 more; label_map" in label_notes(task)[0]


def test_a_label_counts_once_for_an_example_with_several():
    rows = [{"tokens": ["Ann", "Bo"], "tags": ["B-PER", "B-PER"]}, {"tokens": ["a"], "tags": ["O"]}]
    assert "'B-PER', 'O'" in label_notes(Task.from_list({"train": rows}, "tagging"))[0]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("classification", films("a", "a", "b", "b")),
        ("regression", films(1.0, 2.0)),
        ("masked-lm", [{"text": "a"}]),
    ],
)
def test_nothing_is_said_of_sound_labels_and_of_none(kind, rows):
    assert label_notes(Task.from_list({"train": rows}, kind)) == ()
