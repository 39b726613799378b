"""Data as users have it: columns with other names, and tables in memory."""

import json
import logging
import re
from pathlib import Path

import datasets
import pandas
import pytest

from eval.data.columns import matched_columns
from eval.data.loading import load_task
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of

REVIEWS = [("a warm film", "good"), ("a dull film", "bad"), ("fine, really", "good")]
FRAME = pandas.DataFrame(REVIEWS, columns=["sentence", "sentiment"])


def csv(path, *columns, rows=REVIEWS):
    pandas.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path


class TestNames:
    @pytest.mark.parametrize(
        ("kind", "names", "found"),
        [
            ("classification", ["sentence", "sentiment"], {"text": "sentence", "label": "sentiment"}),
            ("classification", ["Review ", "Stars"], {"text": "Review ", "label": "Stars"}),
            ("classification", ["id", "comment", "label"], {"text": "comment"}),
            ("classification", ["text", "label", "topic"], {}),
            ("classification", ["premise", "hypothesis", "label"], {"text_a": "premise", "text_b": "hypothesis"}),
            ("classification", ["question", "category"], {"text": "question", "label": "category"}),
            ("classification", ["title", "body", "topic"], {"text_a": "title", "text_b": "body", "label": "topic"}),
            ("classification", ["id", "text"], {}),
            ("classification", ["a", "b"], {}),
            ("classification", ["idx", "q1", "q2", "label"], {}),
            (
                "regression",
                ["sentence1", "sentence2", "score"],
                {"text_a": "sentence1", "text_b": "sentence2", "label": "score"},
            ),
            ("embedding", ["query", "passage", "label"], {"text_a": "query", "text_b": "passage"}),
            ("tagging", ["words", "ner_tags"], {"tokens": "words", "tags": "ner_tags"}),
            ("tagging", ["doc_id", "tokens", "ner"], {"tags": "ner"}),
            ("qa", ["id", "question", "passage", "answers"], {"context": "passage"}),
        ],
    )
    def test_usual_ones_are_known(self, kind, names, found):
        assert matched_columns(kind_of(kind), names, {}, labelled=True) == found

    def test_what_was_named_is_kept(self):
        found = matched_columns(
            kind_of("classification"), ["sentence", "review", "y"], {"text": "review"}, labelled=True
        )
        assert found == {"text": "review", "label": "y"}

    def test_no_label_is_looked_for_where_none_is_wanted(self):
        assert matched_columns(kind_of("classification"), ["sentence", "y"], {}, labelled=False) == {"text": "sentence"}


class TestFiles:
    def test_they_are_found_and_told(self, tmp_path, caplog):
        with caplog.at_level(logging.INFO):
            task = load_task("classification", csv(tmp_path / "reviews.csv", "sentence", "sentiment"))
        assert [dict(item) for item in task.validation] == [{"text": text, "label": label} for text, label in REVIEWS]
        assert (
            "data: took column 'sentence' as text, column 'sentiment' as label; columns: (or --text, --label) names"
            in caplog.text
        )

    def test_each_split_may_have_its_own(self, tmp_path):
        csv(tmp_path / "train.csv", "said", "sentiment")
        csv(tmp_path / "validation.csv", "text", "label")
        pandas.DataFrame({"id": [7, 8], "said": ["x", "y"]}).to_csv(tmp_path / "test.csv", index=False)
        task = load_task("classification", tmp_path)
        assert [len(task.splits[name]) for name in ("train", "validation", "test")] == [3, 3, 2]
        assert dict(task.test[0]) == {"text": "x"}

    def test_what_cannot_be_found_is_one_line_with_all_fields(self, tmp_path):
        path = csv(tmp_path / "train.csv", "a", "b", rows=REVIEWS * 40)
        with pytest.raises(UserError) as caught:
            load_task("classification", tmp_path)
        assert caught.value.problems == (
            f"{path}: all 120 items: the fields 'text' and 'label' are missing; there are 'a', 'b'; name their columns "
            "with task: {columns: {text: ..., label: ...}} in a recipe, or with --text and --label on the command line",
        )


class TestMemory:
    def test_a_frame(self):
        task = load_task("classification", FRAME)
        assert dict(task.validation[0]) == {"text": "a warm film", "label": "good"}
        assert task.spec.labels == ("bad", "good")
        assert task.source == ""

    def test_the_same_examples_from_a_file_have_the_same_digest(self, tmp_path):
        path = csv(tmp_path / "reviews.csv", "sentence", "sentiment")
        assert (
            load_task("classification", path).validation.digest == load_task("classification", FRAME).validation.digest
        )

    def test_splits(self):
        rows = FRAME.to_dict("records")
        task = load_task("classification", {"train": FRAME, "test": rows, "unlabeled": [{"sentence": "x"}]})
        assert {name: len(split) for name, split in task.splits.items()} == {"train": 3, "test": 3, "unlabeled": 1}

    def test_datasets_with_class_labels(self):
        features = datasets.Features(
            tokens=datasets.Sequence(datasets.Value("string")),
            ner_tags=datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"])),
        )
        table = datasets.Dataset.from_dict({"tokens": [["Ann", "left"]], "ner_tags": [[1, 0]]}, features=features)
        task = load_task("tagging", datasets.DatasetDict(train=table, validation=table))
        assert dict(task.train[0]) == {"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}
        assert len(load_task("tagging", table, labels=["O", "B-PER"]).validation) == 1

    def test_an_empty_cell_is_no_text(self):
        frame = pandas.DataFrame({"text": ["a", None], "label": ["x", "y"]})
        with pytest.raises(UserError, match="row 2: the field 'text' is empty"):
            load_task("classification", frame)

    @pytest.mark.parametrize("data", [3, {"train": 3}, ["a text"], {}])
    def test_what_is_no_table_is_refused(self, data):
        with pytest.raises(UserError, match="data: "):
            load_task("classification", data)

    def test_files_belong_to_the_disk(self):
        with pytest.raises(UserError, match="files: belongs to data on disk"):
            load_task("classification", FRAME, files={"train": "train.csv"})


class TestPage:
    """docs/data.md says what is true."""

    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")

    def test_its_code_runs(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        programs = re.findall(r"```python\n(.*?)```", self.page, flags=re.DOTALL)
        exec(compile("\n".join(programs), "docs/data.md", "exec"), {})

    @pytest.mark.parametrize("line", [line for line in page.splitlines() if '| `{"' in line])
    def test_its_items_are_read(self, line):
        kind = "classification" if "of pairs" in line else re.findall(r"`([a-z0-9-]+)`", line)[0]
        item = json.loads(re.findall(r"`(\{.*?\})`", line)[0])
        labels = {"classification": [item.get("label"), "other"], "tagging": item.get("tags")}.get(kind)
        task = load_task(kind, [item], labels=labels)
        assert {**task.validation[0], "group": ""} == {**item, "group": ""}
