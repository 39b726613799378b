"""Predictions from a file as teacher: what rows may say, which examples they answer, and what is refused."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from compress import Inputs, run
from compress.distill.logits import LogitDistillation
from compress.distill.pkd import PatientDistillation
from compress.recipe import Recipe
from eval.data.loading import Task
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.measurement import measure
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.hooks import SignalSpec
from teachers.signals.model_teacher import ModelTeacher
from teachers.signals.predictions_teacher import PredictionsTeacher
from tests.tiny import tiny_task, tiny_taskmodel

FILMS = [{"text": "a warm film", "label": "good"}, {"text": "a dull film", "label": "bad"}]


def films():
    return Task.from_list({"train": FILMS})


def probabilities(teacher, example):
    """Return what a teacher gives for one example."""
    rows = EncodedDataset(films().train, tiny_taskmodel("bert", teacher.spec).encoder, teacher.spec)
    place = [one["text"] for one in FILMS].index(example)
    return torch.softmax(teacher.read(rows)(rows.batch([place])).logits, dim=-1)[0].tolist()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"probabilities": {"good": 0.7, "bad": 0.3}}, [0.3, 0.7]),
        ({"probabilities": [0.25, 0.75]}, [0.25, 0.75]),
        ({"probabilities": {"good": 0.707, "bad": 0.303}}, [0.3, 0.7]),
        ({"votes": {"good": 3, "bad": 1}}, [0.25, 0.75]),
        ({"votes": ["good", "bad", "good", "good"]}, [0.25, 0.75]),
        ({"label": "bad"}, [0.9995, 0.0005]),
        ({"good": 0.9, "bad": 0.1}, [0.1, 0.9]),
    ],
)
def test_what_a_row_may_say(said, expected):
    rows = [{"text": "a dull film", "label": "bad"}, {"text": "a warm film", **said}]
    teacher = PredictionsTeacher.read_from(rows, films())
    assert probabilities(teacher, "a warm film") == pytest.approx(expected, abs=1e-5)


def test_the_rows_of_the_page_on_data_are_read():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in re.search(r"```json\n(.*?)```", page, flags=re.DOTALL)[1].splitlines()]
    labels = ("card_arrival", "lost_card")
    examples = [{"text": row["text"], "label": labels[number % 2]} for number, row in enumerate(rows)]
    task = Task.from_list({"train": examples})
    encoded = EncodedDataset(task.train, tiny_taskmodel("bert", task.spec).encoder, task.spec)
    teacher = PredictionsTeacher.read_from(rows, task)
    given = torch.softmax(teacher.read(encoded)(encoded.batch([0, 1, 2])).logits, dim=-1)
    assert given[:, 1].tolist() == pytest.approx([0.9, 1 / 3, 0.0005], abs=1e-5)


def test_rows_of_one_input_are_averaged():
    rows = [{"text": "a warm film", "label": label} for label in ("good", "good", "bad", "good")]
    rows += [{"text": "a dull film", "label": "bad"}]
    assert probabilities(PredictionsTeacher.read_from(rows, films()), "a warm film") == pytest.approx([0.25, 0.75])


def test_a_table_says_the_same_as_json(tmp_path):
    table = tmp_path / "films.csv"
    table.write_text('sentence,probabilities\na dull film,"[0.9, 0.1]"\na warm film,"{""bad"": 0.2, ""good"": 0.8}"\n')
    lines = tmp_path / "films.jsonl"
    rows = [{"text": "a warm film", "probabilities": [0.2, 0.8]}, {"text": "a dull film", "probabilities": [0.9, 0.1]}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = tmp_path / "columns.csv"
    columns.write_text("text,bad,good\na warm film,0.2,0.8\na dull film,0.9,0.1\n")
    digests = {PredictionsTeacher.read_from(str(file), films()).digest for file in (table, lines, columns)}
    assert len(digests) == 1, "neither order nor format matters"


def test_all_errors_of_a_file_at_once(tmp_path):
    file = tmp_path / "said.jsonl"
    rows = [
        {"text": "a warm film", "probabilities": {"good": 0.5, "bad": 0.2}},
        {"text": "a dull film", "label": "god"},
        {"text": "a dull film", "votes": {"good": 0}},
        {"text": "a dull film", "probabilities": [0.1, 0.2, 0.7]},
        {"text": "a dull film", "probabilities": {"good": -1, "bad": 2}},
        {"text": "a dull film"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError) as error:
        PredictionsTeacher.read_from(file, films())
    sentences = "\n".join(error.value.problems)
    assert len(error.value.problems) == len(rows)
    for number, words in enumerate(
        ("have a sum of 0.7", "did you mean 'good'", "count 0", "list of 2", "0 or more", "predicts nothing"), start=1
    ):
        assert f"said.jsonl:{number}: " in sentences
        assert words in sentences


def test_rows_that_match_no_example_are_counted_and_shown():
    rows = [*FILMS, {"text": "A warm film", "label": "good"}, {"text": "another", "label": "bad"}]
    with pytest.raises(UserError, match=r"2 of 4 inputs match no example of the data, such as .*'A warm film'"):
        PredictionsTeacher.read_from(rows, films())
    teacher = PredictionsTeacher.read_from(rows, films(), unmatched="ignore")
    assert teacher.digest == PredictionsTeacher.read_from(FILMS, films()).digest


def test_examples_without_a_prediction_are_refused_or_left_out():
    teacher = PredictionsTeacher.read_from(FILMS[:1], films())
    with pytest.raises(UserError, match=r"1 of 2 examples of train have no prediction, such as 'a dull film'.*drop"):
        teacher.covered(films().train)
    dropping = PredictionsTeacher.read_from(FILMS[:1], films(), missing="drop")
    assert list(dropping.covered(films().train)) == FILMS[:1]
    with pytest.raises(UserError, match="2 of 2"):
        PredictionsTeacher(teacher.spec, {}, missing="drop").covered(films().train)


@pytest.mark.parametrize("kind", ["classification", "multilabel", "tagging", "regression"])
def test_a_models_own_predictions_teach_what_the_model_teaches(kind):
    """Written to a file in another order, they give the student the same probabilities and the same answers."""
    task = tiny_task(kind)
    model = tiny_taskmodel("bert", task.spec)
    rows = EncodedDataset(task.train, model.encoder, task.spec)
    live, teacher = ModelTeacher(model), PredictionsTeacher.read_from(shuffled(said(model, task)), task)
    batch = rows.batch([3, 0, 2])
    own, other = (source.read(rows)(batch).logits for source in (live, teacher))
    counted = kind_of(kind).soft_rows(batch.targets, batch.mask, only_predicted=False)
    own, other = (own, other) if counted is None else (own[counted], other[counted])
    compared = {"regression": lambda x: x, "multilabel": torch.sigmoid}.get(kind, lambda x: torch.softmax(x, dim=-1))
    assert torch.allclose(compared(own), compared(other), atol=1e-4)
    assert measure(teacher, task).scores == pytest.approx(measure(model, task).scores, abs=1e-4)


def said(model, task):
    """Return what a model predicts of every example, as rows of a file."""
    kind = kind_of(task.spec.kind)
    for split in task.splits.values():
        rows = EncodedDataset(split, model.encoder, task.spec)
        reader = ModelTeacher(model, budget_bytes=0).read(rows)
        for number, example in enumerate(split):
            batch = rows.batch([number])
            logits = reader(batch).logits[0]
            inputs = {name: value for name, value in example.items() if name not in kind.gold}
            if kind.number:
                yield inputs | {"score": float(logits[0])}
            elif kind.independent:
                chances = torch.sigmoid(logits).tolist()
                yield inputs | {"probabilities": dict(zip(task.spec.labels, chances, strict=True))}
            else:
                logits = logits[batch.targets["labels"][0] != -100] if kind.words else logits
                yield inputs | {"probabilities": torch.softmax(logits, dim=-1).tolist()}


def shuffled(rows):
    rows = list(rows)
    random.Random(1).shuffle(rows)
    return rows


def test_tags_teach_at_the_first_token_of_each_word():
    task = tiny_task("tagging")
    teacher = PredictionsTeacher.read_from([dict(example) for example in task.train], task)
    rows = EncodedDataset(task.train, tiny_taskmodel("bert", task.spec).encoder, task.spec)
    batch = rows.batch([0, 1, 2])
    logits, counted = teacher.read(rows)(batch).logits, batch.targets["labels"] != -100
    assert logits[counted].argmax(dim=-1).tolist() == batch.targets["labels"][counted].tolist()
    assert not logits[~counted].any()


def test_soft_targets_are_learned():
    """A student that only sees probabilities comes as near to them as its divergence says."""
    task = tiny_task("classification")
    rows = [
        {"text": example["text"], "probabilities": [0.9, 0.1] if example["label"] == "bad" else [0.2, 0.8]}
        for split in task.splits.values()
        for example in split
    ]
    teacher = PredictionsTeacher.read_from(rows, task)
    step = LogitDistillation(alpha=1.0, temperature=1.0, epochs=20, learning_rate=1e-3, batch_size=8)
    made = run(Recipe(steps=(step,)), tiny_taskmodel("bert", task.spec), Inputs(train=task.train, teacher=teacher))
    assert made.lineage[-1].teacher == teacher.digest
    measured = measure(made, task, split="train")
    assert measured.scores["accuracy"] > 0.95
    wanted = np.array([{"bad": 0.9, "good": 0.8}[example["label"]] for example in task.train])
    assert np.abs([answer["probability"] for answer in measured.kept.answers] - wanted).mean() < 0.1


def test_there_is_no_network_behind_them():
    teacher = PredictionsTeacher.read_from(FILMS, films())
    model = tiny_taskmodel("bert", teacher.spec)
    rows = EncodedDataset(films().train, model.encoder, teacher.spec)
    with pytest.raises(UserError, match=r"has no hidden states.*use distill.logits"):
        teacher.read(rows, SignalSpec(hidden_states=(1,)))
    with pytest.raises(UserError, match=r"step 1, distill.pkd: the teacher is a file of predictions .* has no layers"):
        run(Recipe(steps=(PatientDistillation(),)), model, Inputs(train=films().train, teacher=teacher))


def test_a_kind_without_labels_or_numbers_is_refused():
    with pytest.raises(UserError, match="cannot teach qa; it can teach classification, "):
        PredictionsTeacher.read_from([], tiny_task("qa"))
