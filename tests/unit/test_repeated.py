"""Examples that read the same are one group: in intervals, and where a split is divided."""

import json

import pytest

from eval import TaskSpec
from eval.data.loading import load_task
from eval.data.repeated import with_groups_of_copies
from eval.data.roles import assign_roles
from eval.proof.paired_predictions import paired_scores
from eval.task import Examples


def rows(texts, times):
    lines = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(texts)]
    return [line for line in lines for _ in range(times)]


def written(folder, lines, name="train"):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_copies_are_groups_and_others_stand_alone(tmp_path, caplog):
    task = load_task("classification", written(tmp_path, [*rows(20, 3), {"text": "another", "label": "a"}]))
    groups = task.train.groups
    assert len(set(groups)) == 21
    assert groups[-1] is None
    assert all(len(set(groups[3 * place : 3 * place + 3])) == 1 for place in range(20))
    assert "train: 60 of 61 examples repeat what another reads; copies are one group" in caplog.text
    roles = assign_roles(task, "auto", "auto")
    read = [{example["text"] for example in split} for split in roles.task.splits.values()]
    assert sum(map(len, read)) == len(set().union(*read)) == 21


@pytest.mark.parametrize(
    "lines",
    [
        [*rows(100, 1), *rows(2, 1)],
        [{**line, "group": f"own {number % 7}"} for number, line in enumerate(rows(20, 3))],
    ],
    ids=["few", "groups of its own"],
)
def test_few_copies_and_groups_of_its_own_stay(lines, tmp_path):
    examples = Examples(lines, "train")
    assert with_groups_of_copies("classification", {"train": examples}, "data")["train"] is examples


@pytest.mark.parametrize("kind", ["retrieval", "masked-lm"])
def test_kinds_without_answers_of_their_own_stay(kind):
    examples = Examples([{"text": "a"}] * 40, "train")
    assert with_groups_of_copies(kind, {"train": examples}, "data")["train"] is examples


def test_what_30_texts_cannot_show_is_not_shown_by_three_copies_of_each():
    spec = TaskSpec(kind="classification", metric="accuracy", labels=("a", "b"))
    one = Examples(rows(30, 1), "test")
    three = with_groups_of_copies("classification", {"test": Examples(rows(30, 3), "test")}, "data")["test"]

    def width(examples):
        gold = [{"label": example["label"]} for example in examples]
        wrong = [
            {"label": "a"} if example["text"] in ("text 1", "text 3", "text 5") else answer
            for example, answer in zip(examples, gold, strict=True)
        ]
        found = paired_scores(spec, [(wrong, gold)], gold, examples.groups).difference.interval()
        return found.high - found.low

    assert three.groups is not None
    assert width(three) == pytest.approx(width(one), rel=0.35)
    assert width(three) > 1.4 * width(Examples([{k: v for k, v in e.items() if k != "group"} for e in three], "test"))
