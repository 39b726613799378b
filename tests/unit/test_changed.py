"""Answers that differ: each kind of task says them in words, and the table counts all and lists a few."""

import pytest

from eval.predictions import Kept
from eval.report import changed as module
from eval.report.changed import changed
from eval.task import TaskSpec


def kept(answers, gold, values):
    return Kept(answers, gold, [float(value) for value in values])


def labels(words, truths):
    gold = [{"label": truth} for truth in truths.split()]
    answers = [{"label": word, "probability": 0.5} for word in words.split()]
    return kept(answers, gold, (word == truth for word, truth in zip(words.split(), truths.split(), strict=True)))


def texts(found):
    return [[cell.text for cell in row] for row in found.table.rows]


CLASSES = TaskSpec(kind="classification", labels=("a", "b"))


def test_a_label_that_changed_stands_with_its_text_the_truth_and_who_is_right():
    truth = "a a b b"
    examples = [{"text": f"text {place}"} for place in range(4)]
    sides = {"teacher": labels("a b b a", truth), "small": labels("a a a a", truth)}
    found = changed(CLASSES, sides, examples)
    assert found.said == "2 of 4 answers differ (50.0%); right: teacher 1, small 1, none 0"
    assert [heading for heading, _ in found.table.columns] == ["number", "text", "truth", "teacher", "small", "right"]
    assert texts(found) == [["2", "text 1", "a", "b", "a", "small"], ["3", "text 2", "b", "b", "a", "teacher"]]
    assert (found.places, found.table.sortable) == ((1, 2), True)
    without = changed(CLASSES, sides)
    assert texts(without)[0] == ["2", "a", "b", "a", "small"]


def test_of_several_models_each_is_counted_where_it_is_right():
    truth = "a a"
    sides = {"x": labels("a b", truth), "y": labels("a c", truth), "z": labels("b b", truth)}
    found = changed(CLASSES, sides)
    assert found.said.endswith("right: x 1, y 1, z 0, none 1")
    assert [row[-1] for row in texts(found)] == ["x, y", "none"]


def test_equal_answers_are_said_and_not_listed():
    same = {"x": labels("a b", "a a"), "y": labels("a b", "a a")}
    assert changed(CLASSES, same) == module.Changed("All 2 answers are the same", None)


def test_of_many_the_first_of_each_sort_are_listed(monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    truth = "a " * 10
    found = changed(CLASSES, {"x": labels("a " * 8 + "b b", truth), "y": labels("b " * 8 + "a a", truth)})
    assert found.said.endswith("x 8, y 2, none 0. 4 of them are listed, the first of each sort")
    assert [row[0] for row in texts(found)] == ["1", "2", "9", "10"]
    assert len(found.places) == 10


def test_a_long_text_is_shortened():
    sides = {"x": labels("a", "a"), "y": labels("b", "a")}
    assert len(texts(changed(CLASSES, sides, [{"text": "t" * 9000}]))[0][1]) == module.LONGEST


def test_a_pair_shows_its_second_text_below_the_first():
    sides = {"x": labels("a", "a"), "y": labels("b", "a")}
    spec = TaskSpec(kind="classification", labels=("a", "b"), pair=True)
    (row,) = changed(spec, sides, [{"text_a": "one", "text_b": "two"}]).table.rows
    assert (row[1].text, row[1].small) == ("one", "two")


def test_tags_are_shown_of_the_words_that_differ():
    gold = [{"tags": ["B-PER", "O", "B-LOC"]}]
    sides = {
        "x": kept([{"tags": ["B-PER", "O", "B-LOC"]}], gold, [1]),
        "y": kept([{"tags": ["B-PER", "O", "O"]}], gold, [0]),
    }
    spec = TaskSpec(kind="tagging", labels=("O", "B-PER", "B-LOC"), metric="entity_f1")
    found = changed(spec, sides, [{"tokens": ["Ann", "in", "Oslo"]}])
    assert texts(found) == [["1", "Ann in Oslo", "Oslo B-LOC", "Oslo B-LOC", "Oslo O", "x"]]
    assert texts(changed(spec, sides)) == [["1", "3 B-LOC", "3 B-LOC", "3 O", "x"]]


def test_numbers_differ_when_they_are_further_apart_than_a_tie():
    gold = [{"label": 4.0}, {"label": 1.0}]
    sides = {
        "x": kept([{"score": 4.0}, {"score": 1.0}], gold, [0, 0]),
        "y": kept([{"score": 3.9}, {"score": 1.5}], gold, [-0.01, -0.25]),
    }
    found = changed(TaskSpec(kind="regression", metric="spearman"), sides)
    assert texts(found) == [["2", "1.000", "1.000", "1.500", "x"]]
    assert "; better: x 1, y 0" in found.said


def test_answers_of_questions_are_their_texts():
    gold = [{"id": "1", "answers": [{"text": "Oslo", "answer_start": 0}, {"text": "in Oslo", "answer_start": 0}]}]
    sides = {
        "x": kept([{"text": "Oslo", "start": 0, "end": 4, "score": 1.0}], gold, [1]),
        "y": kept([{"text": "", "start": 0, "end": 0, "score": 0.0}], gold, [0]),
    }
    spec = TaskSpec(kind="qa", metric="f1")
    (row,) = changed(spec, sides, [{"id": "1", "question": "Where?", "context": "Oslo"}]).table.rows
    assert [cell.text for cell in row] == ["1", "Where?", "Oslo / in Oslo", "Oslo", "(nothing)", "x"]
    assert row[1].small == "Oslo"


def test_choices_are_said_with_their_texts():
    gold = [{"label": 0}]
    sides = {
        "x": kept([{"label": 0, "probability": 0.9}], gold, [1]),
        "y": kept([{"label": 1, "probability": 0.9}], gold, [0]),
    }
    found = changed(TaskSpec(kind="multiple-choice"), sides, [{"text": "it", "choices": ["falls", "sings"]}])
    assert texts(found) == [["1", "it", "0: falls", "0: falls", "1: sings", "x"]]


@pytest.mark.parametrize(("kind", "why"), [("embedding", "vectors"), ("masked-lm", "hidden")])
def test_kinds_without_answers_to_list_say_why(kind, why):
    found = changed(TaskSpec(kind=kind, metric="x"), {"x": kept([], [], []), "y": kept([], [], [])})
    assert found.table is None
    assert found.said.startswith("Answers that differ are not listed: ")
    assert why in found.said
