"""A task from a DataFrame, a data set of the datasets library or a list of dicts."""

from __future__ import annotations

import datasets
import numpy
import pandas
import pytest

from eval import Task, UserError, load_task

FILMS = [{"said": "a warm film", "stars": "good"}, {"said": "a dull film", "stars": "bad"}]
TAGS = datasets.Features(
    {
        "id": datasets.Value("string"),
        "tokens": datasets.Sequence(datasets.Value("string")),
        "ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER", "I-PER"])),
    }
)
TAGGED = [{"id": "0", "tokens": ["Ann", "Lee", "left"], "ner_tags": [1, 2, 0]}]
EXPECTED = {"tokens": ("Ann", "Lee", "left"), "tags": ("B-PER", "I-PER", "O")}


def plain(example):
    return {name: tuple(value) if isinstance(value, list) else value for name, value in example.items()}


def test_a_frame_with_named_columns_becomes_splits():
    frame = pandas.DataFrame(FILMS)
    task = Task.from_pandas({"train": frame, "test": frame[:1]}, text="said", label="stars", max_length=32)
    assert [plain(item) for item in task.train] == [
        {"text": "a warm film", "label": "good"},
        {"text": "a dull film", "label": "bad"},
    ]
    assert (len(task.test), task.spec.labels, task.spec.max_length, task.source) == (1, ("bad", "good"), 32, "")


def test_a_frame_that_names_a_column_twice_is_refused_as_a_file_is():
    frame = pandas.DataFrame([["a warm film", "a cold film", "good"]], columns=["text", "text", "label"])
    with pytest.raises(UserError, match="data: train: names the column 'text' twice; give each column a name of its"):
        Task.from_pandas({"train": frame})


def test_a_list_alone_is_validation_and_pairs_name_two_columns():
    rows = [{"claim": "Ann left.", "proof": "She is gone.", "y": str(number % 2)} for number in range(4)]
    task = Task.from_list(rows, text=("claim", "proof"), label="y")
    assert plain(task.validation[0]) == {"text_a": "Ann left.", "text_b": "She is gone.", "label": "0"}
    assert task.spec.pair


def test_another_kind_may_be_asked_for():
    task = Task.from_list([{"said": "a cat", "score": 4.5}], "regression", text="said", label="score")
    assert plain(task.validation[0]) == {"text": "a cat", "label": 4.5}


def test_class_labels_of_a_dataset_become_their_names():
    data = datasets.DatasetDict(train=datasets.Dataset.from_list(TAGGED, features=TAGS))
    for task in (
        Task.from_datasets(data, "tagging"),
        Task.from_datasets(data, "tagging", text="tokens", label="ner_tags"),
    ):
        assert plain(task.train[0]) == EXPECTED
        assert task.spec.labels == ("O", "B-PER", "I-PER")


def test_class_labels_of_a_saved_folder_become_their_names(tmp_path):
    data = datasets.DatasetDict(
        train=datasets.Dataset.from_list(TAGGED, features=TAGS),
        validation=datasets.Dataset.from_list(TAGGED, features=TAGS),
    )
    data.save_to_disk(str(tmp_path / "tags"))
    task = load_task("tagging", tmp_path / "tags")
    assert [plain(item) for item in (*task.train, *task.validation)] == [EXPECTED, EXPECTED]
    data["train"].save_to_disk(str(tmp_path / "one"))
    assert plain(load_task("tagging", tmp_path / "one", labels=["O", "B-PER", "I-PER"]).validation[0]) == EXPECTED


@pytest.mark.parametrize("form", ["numpy", "torch", "pandas"])
def test_a_dataset_is_read_as_it_is_whatever_its_format(form):
    data = datasets.Dataset.from_list(TAGGED, features=TAGS).with_format(form, columns=["ner_tags"])
    assert plain(Task.from_datasets(data, "tagging").validation[0]) == EXPECTED


def test_arrays_and_numbers_of_numpy_are_those_of_a_file(tmp_path):
    """A frame that was read from parquet holds its lists as arrays."""
    asked = {"id": "1", "question": "who?", "context": "Ann left", "answers": {"text": ["Ann"], "answer_start": [0]}}
    for kind, row in (
        ("tagging", {"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}),
        ("multilabel", {"text": "a warm, sad film", "labels": ["joy", "sadness"]}),
        ("qa", asked),
    ):
        pandas.DataFrame([row]).to_parquet(tmp_path / "one.parquet")
        found = Task.from_pandas(pandas.read_parquet(tmp_path / "one.parquet"), kind).validation
        assert found.digest == Task.from_list([row], kind).validation.digest
    numbers = [{"text": "a", "label": numpy.int64(1)}, {"text": "b", "label": numpy.int64(0)}]
    assert Task.from_list(numbers).spec.labels == ("0", "1")
    assert Task.from_list([{"text": "a", "label": numpy.float32(0.5)}], "regression").validation[0]["label"] == 0.5


@pytest.mark.parametrize(
    ("make", "given", "problem"),
    [
        (Task.from_pandas, FILMS, "from_pandas: got list; give a pandas DataFrame, alone or by split"),
        (Task.from_datasets, {"train": FILMS}, "from_datasets: got list; give a datasets.Dataset, alone or by split"),
        (Task.from_list, pandas.DataFrame(FILMS), "from_list: got DataFrame; give a list of dicts, alone or by split"),
        (Task.from_list, {}, "data: has no split"),
    ],
)
def test_what_is_no_such_table_is_refused(make, given, problem):
    with pytest.raises(UserError) as refused:
        make(given)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("kind", "columns", "problem"),
    [
        ("tagging", {"text": ("a", "b")}, "text: a tagging task reads tokens; name 1 column"),
        ("masked-lm", {"label": "stars"}, "label: a masked-lm task has no labels; leave it out"),
    ],
)
def test_columns_that_a_kind_has_not_are_refused(kind, columns, problem):
    with pytest.raises(UserError) as refused:
        Task.from_list(FILMS, kind, **columns)
    assert str(refused.value) == problem
