"""Which examples train, which choose, and which report."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from compress.testing.tiny import tiny_spec, tiny_task
from eval.data.loading import Task, balanced_weights, load_task
from eval.data.roles import LEAST, MOST, assign_roles, group_of, groups_together, read_as
from eval.errors import UserError
from eval.task import Examples, TaskSpec

KINDS = ("classification", "regression", "tagging", "qa", "masked-lm", "embedding", "multiple-choice")


def films(count: int, **more: object) -> list[dict[str, object]]:
    return [{"text": f"film {number}", "label": ("bad", "good")[number % 2], **more} for number in range(count)]


def task_of(**splits: list[dict[str, object]]) -> Task:
    return Task(tiny_spec(), {name: Examples(items, name) for name, items in splits.items()}, "films")


def test_a_labelled_test_split_reports_and_validation_chooses() -> None:
    roles = assign_roles(task_of(train=films(300), validation=films(50), test=films(60)))
    assert roles.report == "test"
    assert roles.task.select.digest == roles.task.validation.digest
    assert len(roles.task.train) == 300
    assert roles.notes == ("train 300, select 50 of validation, test 60.",)


def test_without_a_test_split_validation_reports_and_a_part_of_train_chooses() -> None:
    roles = assign_roles(task_of(train=films(300), validation=films(50)))
    assert (roles.report, len(roles.task.train), len(roles.task.select)) == ("validation", 270, 30)
    assert roles.notes == ("train 270, select 30 carved from train, test: validation 50.",)
    both = sorted(str(item) for item in (*roles.task.train, *roles.task.select))
    assert both == sorted(str(item) for item in films(300))


def test_of_train_alone_a_part_reports_and_another_chooses() -> None:
    roles = assign_roles(task_of(train=films(300)))
    parts = {name: {item["text"] for item in split} for name, split in roles.task.splits.items()}
    assert (roles.report, {name: len(part) for name, part in parts.items()}) == (
        "validation",
        {"train": 189, "validation": 90, "select": 21},
    )
    assert not parts["train"] & parts["validation"]
    assert not parts["select"] & parts["validation"]
    assert roles.notes == (
        "train 189, select 21 carved from train, test: validation 90 carved from train, the only split with labels.",
    )
    again = assign_roles(task_of(train=films(300)[::-1])).task
    assert sorted(map(str, again.validation)) == sorted(map(str, roles.task.validation))


def test_balanced_weights_of_train_alone_are_those_of_what_is_left() -> None:
    items = [{"text": f"film {number}", "label": "bad" if number % 10 else "good"} for number in range(300)]
    task = task_of(train=items)
    task = replace(task, spec=task.spec.model_copy(update={"class_weights": balanced_weights(task.spec, task.train)}))
    roles = assign_roles(task)
    assert roles.task.spec.class_weights == balanced_weights(task.spec, roles.task.train)


def test_of_a_small_train_alone_nothing_reports() -> None:
    roles = assign_roles(task_of(train=films(66)))
    assert set(roles.task.splits) == {"train"}
    assert roles.notes == (
        "Nothing reports: films has no validation or test split with labels, and train has 66 examples, 66 of "
        "them with labels, and a part is carved from 67 on.",
    )


@pytest.mark.parametrize("source", ["films", "validation.csv", "films.v2", ""])
def test_only_a_file_without_the_name_of_a_split_is_said_to_be_read_as_one(source: str) -> None:
    assert read_as(replace(task_of(validation=films(5)), source=source)) == ""
    assert read_as(replace(task_of(validation=films(5)), source="films.csv.gz")).startswith("films.csv.gz is one file")
    assert read_as(replace(task_of(train=films(5)), source="films.csv")) == ""


def test_a_test_split_without_labels_does_not_report() -> None:
    unlabelled = [{"text": item["text"]} for item in films(60)]
    assert assign_roles(task_of(train=films(300), validation=films(50), test=unlabelled)).report == "validation"


def test_what_is_carved_does_not_depend_on_order_and_is_limited() -> None:
    items = films(400)
    shuffled = random.Random(5).sample(items, len(items))
    first, second = (assign_roles(task_of(train=given, validation=films(5))).task for given in (items, shuffled))
    assert sorted(map(str, first.select)) == sorted(map(str, second.select))
    more = assign_roles(task_of(train=films(4000), validation=films(5))).task.select
    assert len(more) == 400
    assert len(assign_roles(task_of(train=films(50_000), validation=films(5))).task.select) == MOST


def test_the_very_examples_that_are_carved_never_change() -> None:
    carved = assign_roles(task_of(train=films(300), validation=films(5))).task.select
    assert carved.digest == "758484083027cef7c67d2ca045e8ccd29c10f9c55b60d3adfa0dd4910b9f5bd5"


def test_duplicates_and_groups_stay_on_one_side() -> None:
    doubled = films(300) + films(300)
    roles = assign_roles(task_of(train=doubled, validation=films(5)))
    assert not {item["text"] for item in roles.task.train} & {item["text"] for item in roles.task.select}
    grouped = [item | {"group": f"document {number // 7}"} for number, item in enumerate(films(700))]
    roles = assign_roles(task_of(train=grouped, validation=films(5)))
    assert 60 <= len(roles.task.select) <= 70
    assert not {item["group"] for item in roles.task.train} & {item["group"] for item in roles.task.select}


def test_questions_of_a_paragraph_stay_together() -> None:
    items = [
        {
            "id": str(n),
            "question": f"who {n} ?",
            "context": f"Anna {n // 5}",
            "answers": [{"text": "Anna", "answer_start": 0}],
        }
        for n in range(500)
    ]
    task = Task(tiny_spec("qa"), {"train": Examples(items, "train"), "validation": Examples(items[:5], "validation")})
    roles = assign_roles(task)
    assert len(roles.task.select) == 50
    assert not {item["context"] for item in roles.task.train} & {item["context"] for item in roles.task.select}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_carved(kind: str) -> None:
    task = tiny_task(kind, examples=400)
    task = replace(task, splits={name: task.splits[name] for name in ("train", "validation")})
    roles = assign_roles(task)
    assert LEAST <= len(roles.task.select) <= 40
    assert len(roles.task.train) + len(roles.task.select) == 400
    keys = [{group_of(kind, item) for item in part} for part in (roles.task.train, roles.task.select)]
    assert not keys[0] & keys[1]


def test_a_label_never_leaves_the_training_examples() -> None:
    rare = films(300) + [{"text": f"rare {number}", "label": f"rare {number}"} for number in range(100)]
    left = assign_roles(task_of(train=rare, validation=films(5))).task.train
    assert {f"rare {number}" for number in range(100)} <= {item["label"] for item in left}


@pytest.mark.parametrize("train", [films(100), [{"text": f"film {number}"} for number in range(5000)]])
def test_where_there_is_too_little_to_carve_nothing_is_chosen(train: list[dict[str, object]]) -> None:
    roles = assign_roles(task_of(train=train, validation=films(50)))
    assert (len(roles.task.train), len(roles.task.select), roles.report) == (len(train), 0, "validation")
    assert roles.notes[-1].startswith("Nothing is chosen, and the last epoch of every training is kept: train has ")


def test_why_nothing_is_carved_is_said_with_its_numbers() -> None:
    note = assign_roles(task_of(train=films(100) + [{"text": "a"}] * 5, validation=films(5))).notes[-1]
    assert "train has 105 examples, 100 of them with labels, and a part is carved from 200 on. Give more" in note
    grouped = [{**film, "group": str(number // 100)} for number, film in enumerate(films(500))]
    note = assign_roles(task_of(train=grouped, validation=films(5))).notes[-1]
    assert "train has 500 examples, 500 of them with labels, in 5 groups of 100 to 100, and no part of 20 to 50" in note
    assert note.endswith("others that choose with task: {files: {select: FILE}}.")


@pytest.mark.parametrize("kind", ["reranking", "retrieval"])
def test_pairs_of_queries_and_documents_are_not_said_to_lack_labels(kind: str) -> None:
    pairs = [{"text_a": f"query {n // 10}", "text_b": f"text {n}", "label": float(n % 10 == 0)} for n in range(1000)]
    query = {"id": "q", "text": "a", "corpus": "documents", "relevant": {"d": 1}}
    spec = TaskSpec(kind=kind, metric="ndcg@10")
    task = Task(spec, {"train": Examples(pairs, "train"), "test": Examples([query], "test")}, "folder")
    roles = assign_roles(task)
    assert roles.notes[-1] == (
        "Nothing is chosen, and the last epoch of every training is kept: train has 1,000 examples to learn from, "
        f"pairs of texts, and a {kind} task is scored on queries with their judgements. Give both qrels/dev.tsv and "
        "qrels/test.tsv; the queries of dev then choose."
    )
    documents = Examples([{"text": f"text {n}"} for n in range(64)], "train")
    alone = assign_roles(replace(task, splits={**task.splits, "train": documents})).notes[-1]
    assert f"train has 64 examples to learn from, single texts, and a {kind} task is scored on queries" in alone
    silent = assign_roles(replace(task, splits={"train": task.train})).notes
    assert "a part is carved" not in silent[0]
    assert "scored on queries with their judgements." in silent[0]


def test_a_task_without_training_examples_only_reports() -> None:
    roles = assign_roles(task_of(validation=films(50)))
    assert (roles.report, len(roles.task.select), roles.notes) == ("validation", 0, ("test: validation 50.",))


def test_named_splits_are_taken_and_the_same_twice_is_a_selection() -> None:
    given = task_of(train=films(300), validation=films(50), test=films(60))
    assert len(assign_roles(given, "validation").task.select) == 30
    roles = assign_roles(given, "validation", "validation")
    assert roles.task.select.digest == given.validation.digest
    assert (
        roles.notes[-1] == "validation chooses and reports, so its scores are those of a selection and show no margin."
    )
    with pytest.raises(UserError, match=r"select: there is no split 'dev' in films"):
        assign_roles(given, select="dev")


def test_roles_are_assigned_once() -> None:
    once = assign_roles(task_of(train=films(300), validation=films(50))).task
    again = assign_roles(once).task
    assert (again.select.digest, again.train.digest) == (once.select.digest, once.train.digest)


def test_equal_texts_of_different_groups_are_on_one_side(tmp_path: Path) -> None:
    rows = [{"text": f"text {n % 200}", "label": "ab"[n % 2], "group": f"doc {n}"} for n in range(400)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task("classification", tmp_path)
    roles = assign_roles(task, "auto", "auto")
    sides = [{example["text"] for example in split} for split in roles.task.splits.values()]
    assert len(sides) == 3
    assert sum(map(len, sides)) == 200
    keys = groups_together("classification", task.train)
    assert len(set(keys)) == 200
    alone = Examples([{"text": "a", "label": "b", "group": "g"}, {"text": "c", "label": "b"}], "train")
    assert groups_together("classification", alone) == [group_of("classification", one) for one in alone]


def test_a_truth_that_only_the_first_test_example_lacks_is_a_mistake(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(40)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lacking = [{"text": "first"}, *rows[:9]]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lacking))
    with pytest.raises(UserError, match=r"test\.jsonl:1"):
        load_task("classification", tmp_path)
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in lacking))
    assert not any("label" in example for example in load_task("classification", tmp_path).test)
