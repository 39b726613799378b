"""Tasks read from files: what is kept, what is refused and how it is said."""

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from eval.data.loading import load_task
from eval.data.roles import assign_roles
from eval.data.split_reading import SHOWN
from eval.errors import UserError
from eval.measurement import scored_examples
from eval.task import TaskSpec

GOOD = [{"text": "so good", "label": "positive"}, {"text": "so bad", "label": "negative"}]
PAIRS = [{"text_a": "a", "text_b": "b", "label": "same"}, {"text_a": "c", "text_b": "d", "label": "different"}]
SCORES = [{"text_a": "a", "text_b": "b", "label": 1}, {"text_a": "c", "text_b": "d", "label": 2.5}]
SENTENCES = [{"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}, {"tokens": ["in", "Oslo"], "tags": ["O", "B-LOC"]}]
ASKED = [
    {"id": "1", "question": "who?", "context": "Ann left", "answers": [{"text": "Ann", "answer_start": 0}]},
    {"id": "2", "question": "what?", "context": "Ann left", "answers": [{"text": "left", "answer_start": 4}]},
]
PARAGRAPHS = [{"text": "one paragraph"}, {"text": "and one more"}]
BY_KIND = {
    "classification": GOOD,
    "regression": SCORES,
    "tagging": SENTENCES,
    "qa": ASKED,
    "masked-lm": PARAGRAPHS,
}


def lines(path, items):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join((i if isinstance(i, str) else json.dumps(i)) + "\n" for i in items), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path):
    """Writes splits as JSON lines and returns their folder."""

    def write(**splits):
        for name, items in splits.items():
            lines(tmp_path / "data" / f"{name}.jsonl", items)
        return tmp_path / "data"

    return write


def refused(*args, **kwargs):
    """The sentences of the error, with the folder of the test left out."""
    with pytest.raises(UserError) as caught:
        load_task(*args, **kwargs)
    return [re.sub(r"\S*/data/", "", problem) for problem in caught.value.problems]


def plain(examples):
    """Examples without their group."""
    return [{key: item[key] for key in item if key != "group"} for item in examples]


class TestGroups:
    """Examples that are drawn together: a field ``group``, a usual column, a mapped one, or the text they are about."""

    def groups(self, *args, **kwargs):
        return [item.get("group") for item in load_task(*args, **kwargs).validation]

    def test_any_format_may_name_them(self, folder, tmp_path):
        named = [{**item, "group": place} for place, item in enumerate(GOOD)]
        assert self.groups("classification", folder(validation=named))[:2] == ["0", "1"]
        (tmp_path / "validation.csv").write_text("text,label,film\na,good,x\nb,bad,\nc,bad,x\n")
        table = tmp_path / "validation.csv"
        assert self.groups("classification", table) == [None] * 3
        assert self.groups("classification", table, columns={"group": "film"}) == ["x", None, "x"]

    def test_whole_numbers_of_a_table_with_gaps(self, folder):
        named = [{**item, "group": group} for item, group in zip([*GOOD, *GOOD], (1.0, None, 2.0, 1), strict=True)]
        assert self.groups("classification", folder(validation=named)) == ["1", None, "2", "1"]

    def test_a_column_that_is_not_there(self, folder):
        (first, *_) = refused("classification", folder(validation=GOOD), columns={"group": "film"})
        assert "the field 'film' is missing" in first
        wrong = refused("classification", folder(validation=[*GOOD, {**GOOD[0], "group": 0.5}]))
        assert wrong == ["validation.jsonl:3: 'group' must name a group by a text or a whole number, not 0.5"]

    def test_documents_of_sentences(self, folder):
        sentences = [{"tokens": ["a"], "tags": ["O"], "doc": number} for number in (0, 0, 1)]
        assert self.groups("tagging", folder(validation=[*sentences, {**sentences[0], "group": "own"}])) == [
            *"001",
            "own",
        ]

    def test_paragraphs_of_questions(self, folder):
        other = {**ASKED[0], "context": "Ann stayed"}
        first, second, third = self.groups("qa", folder(validation=[*ASKED, other]))
        assert first == second != third

    def test_the_digest_is_that_of_the_data(self, folder, tmp_path):
        alone = load_task("classification", folder(validation=GOOD)).validation.digest
        grouped = lines(tmp_path / "validation.jsonl", [{**item, "group": "a"} for item in GOOD])
        assert load_task("classification", grouped).validation.digest == alone


class TestWhatIsKept:
    @pytest.mark.parametrize("kind", BY_KIND)
    def test_fields_of_the_kind_in_file_order(self, folder, kind):
        items = BY_KIND[kind]
        noisy = [{"extra": 1, **item, "domain": "in", "doc": 3} for item in items]
        task = load_task(kind, folder(train=noisy, validation=items[:1], test=items[1:]))
        assert plain(task.train) == items
        assert plain(task.validation) == items[:1]
        assert plain(task.test) == items[1:]
        assert {name: split.name for name, split in task.splits.items()} == {n: n for n in task.splits}
        assert task.train.skipped == 0

    def test_specification(self, folder):
        path = folder(train=GOOD)
        task = load_task("classification", path)
        assert task.spec == TaskSpec(kind="classification", labels=("negative", "positive"), metric="accuracy")
        assert task.source == str(path)
        given = {"max_length": 64, "stride": 8, "truncation": "only_first", "truncation_side": "left"}
        spec = load_task("classification", path, metric="matthews", **given).spec
        assert spec == TaskSpec(kind="classification", labels=("negative", "positive"), metric="matthews", **given)

    @pytest.mark.parametrize(
        ("kind", "metric", "max_length", "stride"),
        [
            ("regression", "spearman", 128, 32),
            ("tagging", "entity_f1", 128, 32),
            ("qa", "f1", 384, 128),
            ("masked-lm", "masked_accuracy", 128, 32),
        ],
    )
    def test_defaults_of_the_kind(self, folder, kind, metric, max_length, stride):
        spec = load_task(kind, folder(train=BY_KIND[kind])).spec
        assert (spec.metric, spec.max_length, spec.stride) == (metric, max_length, stride)

    def test_the_digest_depends_on_the_content_alone(self, folder, tmp_path):
        task = load_task("regression", folder(train=[{**SCORES[0], "doc": 1}, SCORES[1]]))
        (tmp_path / "train.csv").write_text("id,text_b,text_a,label\n7,b,a,1.0\n8,d,c,2.50\n")
        other = load_task("regression", tmp_path / "train.csv")
        assert other.train.digest == task.train.digest
        assert other.train.digest != load_task("regression", folder(train=SCORES[::-1])).train.digest

    def test_pairs_are_found(self, folder):
        assert load_task("classification", folder(train=PAIRS)).spec.pair
        both = [{**pair, "text": "a b"} for pair in PAIRS]
        task = load_task("classification", folder(train=both))
        assert task.spec.pair
        assert "text" not in task.train[0]

    def test_unlabeled_and_unlabelled_test_items_have_no_label(self, folder):
        bare = [{"text": "who knows"}, {"text": "so good"}]
        task = load_task("classification", folder(train=GOOD, test=bare, unlabeled=GOOD))
        assert [dict(item) for item in task.test] == bare
        assert [dict(item) for item in task.splits["unlabeled"]] == [{"text": "so good"}, {"text": "so bad"}]
        for place, mixed in enumerate(([bare[0], GOOD[0]], [GOOD[0], bare[0]]), start=1):
            assert refused("classification", folder(train=GOOD, test=mixed)) == [
                f"test.jsonl:{place}: the field 'label' is missing; there are 'text'; name its column with task: "
                "{columns: {label: ...}} in a recipe, or with --label on the command line"
            ]

    @pytest.mark.parametrize("kind", ["regression", "embedding"])
    def test_a_test_whose_numbers_are_all_the_same_is_unlabelled(self, folder, caplog, kind):
        """As the test of STS-B on the hub: every label is -1."""
        secret = [{**pair, "label": -1.0} for pair in SCORES]
        task = load_task(kind, folder(validation=SCORES, test=secret))
        assert [dict(item) for item in task.test] == [{"text_a": "a", "text_b": "b"}, {"text_a": "c", "text_b": "d"}]
        assert (
            "test.jsonl: every label is -1, as where the truth is kept secret; it counts as unlabelled" in caplog.text
        )
        assert assign_roles(task).report == "validation"
        assert load_task(kind, folder(validation=SCORES, test=SCORES)).test[0]["label"] == 1.0

    @pytest.mark.parametrize("secret", [-1, -1.0, "-1"])
    def test_a_test_whose_labels_are_all_minus_one_is_unlabelled(self, folder, caplog, secret):
        """As the test of SST-2 in a table without the names of its classes."""
        hidden = [{"text": "who knows", "label": secret}, {"text": "so good", "label": secret}]
        task = load_task("classification", folder(train=GOOD, test=hidden))
        assert [dict(item) for item in task.test] == [{"text": "who knows"}, {"text": "so good"}]
        assert "test.jsonl: every label is -1, as where the truth is kept secret" in caplog.text
        assert refused("classification", folder(train=GOOD, test=[*hidden, {"text": "x", "label": "other"}]))
        named = folder(train=[*GOOD, {"text": "x", "label": -1}], test=hidden)
        assert load_task("classification", named).test[0]["label"] == "-1"


class TestFormats:
    def test_csv_and_tsv(self, tmp_path):
        (tmp_path / "train.csv").write_text('sentence,gold\n"a, b",1\nc,0\n')
        (tmp_path / "validation.tsv").write_text('gold\tsentence\n1\t"quoted\n')
        task = load_task("classification", tmp_path, columns={"text": "sentence", "label": "gold"})
        assert [dict(item) for item in task.train] == [{"text": "a, b", "label": "1"}, {"text": "c", "label": "0"}]
        assert [dict(item) for item in task.validation] == [{"text": '"quoted', "label": "1"}]
        assert task.spec.labels == ("0", "1")

    def test_tagged_csv(self, tmp_path):
        (tmp_path / "train.csv").write_text("tokens,tags\nAnn  left .,B-PER O O\nin Oslo,O\n")
        assert refused("tagging", tmp_path)[0].endswith("train.csv:3: has 2 tokens but 1 tag; give one tag a token")
        task = load_task("tagging", tmp_path, on_bad="skip")
        assert task.train[0] == {"tokens": ["Ann", "left", "."], "tags": ["B-PER", "O", "O"]}

    @pytest.mark.parametrize(
        "cells",
        [
            """"['Ann', ""isn't"", '[in]']","['B-PER', 'O', 'O']"\n""",  # as pandas writes lists
            """"['Ann' ""isn't""\n '[in]']",['B-PER' 'O' 'O']\n""",  # and arrays of a parquet file
            """"[""Ann"", ""isn't"", ""[in]""]","[""B-PER"", ""O"", ""O""]"\n""",
            """Ann isn't [in],B-PER O O\n""",
        ],
    )
    def test_lists_in_the_cells_of_a_table(self, cells, tmp_path):
        (tmp_path / "train.csv").write_text("tokens,tags\n" + cells)
        (example,) = load_task("tagging", tmp_path).train
        assert example == {"tokens": ["Ann", "isn't", "[in]"], "tags": ["B-PER", "O", "O"]}

    def test_numbers_as_tags_and_words_in_brackets(self, tmp_path):
        (tmp_path / "train.csv").write_text("tokens,tags\n\"['Ann' 'left']\",[1 0]\n[1 2],0 0\n")
        task = load_task("tagging", tmp_path, metric="token_accuracy")
        assert [dict(item) for item in task.train] == [
            {"tokens": ["Ann", "left"], "tags": ["1", "0"]},
            {"tokens": ["[1", "2]"], "tags": ["0", "0"]},
        ]

    def test_paragraphs_of_text(self, tmp_path):
        (tmp_path / "train.txt").write_text("one\ntwo\n\nthree\n")
        task = load_task("masked-lm", tmp_path)
        assert [item["text"] for item in task.train] == ["one", "two", "three"]
        assert task.train.groups == ["document 1", "document 1", "document 2"]
        (tmp_path / "unlabeled.txt").write_text("loose text\n")
        lines(tmp_path / "train.jsonl", GOOD)
        (tmp_path / "train.txt").unlink()
        task = load_task("classification", tmp_path)
        assert [dict(item) for item in task.splits["unlabeled"]] == [{"text": "loose text"}]

    def test_parquet(self, tmp_path):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SENTENCES), tmp_path / "train.parquet")
        assert [dict(item) for item in load_task("tagging", tmp_path).train] == SENTENCES

    def test_questions(self, tmp_path):
        asked = [{key: value for key, value in item.items() if key != "context"} for item in ASKED]
        squad = {"data": [{"paragraphs": [{"context": "Ann left", "qas": asked}]}]}
        (tmp_path / "train.json").write_text(json.dumps(squad))
        columns = {"text": ["Ann"], "answer_start": [0]}
        lines(tmp_path / "validation.jsonl", [{**ASKED[0], "answers": columns, "id": 1}])
        task = load_task("qa", tmp_path)
        assert plain(task.train) == ASKED
        assert plain(task.validation) == ASKED[:1]


class TestPlaces:
    def test_a_single_file(self, tmp_path):
        assert set(load_task("classification", lines(tmp_path / "mine.jsonl", GOOD)).splits) == {"validation"}
        assert set(load_task("classification", lines(tmp_path / "test.jsonl", GOOD)).splits) == {"test"}
        path = lines(tmp_path / "dev.jsonl", GOOD)
        assert set(load_task("classification", path, files={"train": "dev.jsonl"}).splits) == {"train"}
        assert load_task("classification", str(path)).source == str(path)

    def test_named_files(self, folder, tmp_path):
        path = folder(train=GOOD, dev=GOOD[:1], old=GOOD[1:])
        elsewhere = lines(tmp_path / "other.jsonl", GOOD[1:])
        task = load_task("classification", path, files={"validation": "dev.jsonl", "hard": elsewhere})
        assert {name: len(split) for name, split in task.splits.items()} == {"train": 2, "validation": 1, "hard": 1}
        alone = load_task("classification", files={"train": path / "train.jsonl", "test": elsewhere})
        assert list(alone.splits) == ["train", "test"]
        assert alone.source == f"{path / 'train.jsonl'}, {elsewhere}"

    def test_labels_come_from_train_wherever_it_is_named(self, folder):
        path = folder(zzz=GOOD, aaa=GOOD[:1])
        files = {"validation": "aaa.jsonl", "train": "zzz.jsonl"}
        assert load_task("classification", path, files=files).spec.labels == ("negative", "positive")

    def test_a_split_of_another_name_is_read_once(self, folder):
        task = load_task("classification", folder(train=GOOD, validation=GOOD), files={"test": "validation.jsonl"})
        assert list(task.splits) == ["train", "test"]

    def test_nothing_there(self, folder, tmp_path):
        (tmp_path / "empty").mkdir()
        assert refused("classification")[0].startswith("load_task: say where the data is")
        assert (
            "no file of a split here; expected train, validation, test or unlabeled"
            in refused("classification", tmp_path / "empty")[0]
        )
        path = folder(dev=GOOD)
        assert refused("classification", path)[0].endswith("there is dev.jsonl; name others with files: {train: ...}")
        assert refused("classification", path, files={"train": "no.jsonl", "test": "x.csv"}) == [
            "files: train: there is no file no.jsonl",
            "files: test: there is no file x.csv",
        ]
        assert refused("classification", "/no/such/place") == [
            "/no/such/place: no such file or folder, and no hub name (owner/name or owner/name:config) either"
        ]

    def test_two_files_of_one_split(self, folder):
        path = folder(train=GOOD)
        (path / "train.csv").write_text("text,label\na,b\n")
        assert refused("classification", path)[0].endswith(
            "several files of train: train.csv, train.jsonl; choose with files: {train: ...}"
        )
        assert len(load_task("classification", path, files={"train": "train.jsonl"}).train) == 2

    def test_unknown_format(self, tmp_path):
        path = lines(tmp_path / "data" / "train.xlsx", GOOD)
        assert refused("classification", path)[0].startswith("train.xlsx: unknown format; allowed: .jsonl")

    def test_empty_files(self, folder):
        assert refused("classification", folder(train=GOOD, validation=[], test=[])) == [
            "validation.jsonl: is empty; put items into it, or take the file away",
            "test.jsonl: is empty; put items into it, or take the file away",
        ]


class TestHub:
    @pytest.fixture
    def data(self):
        features = datasets.Features(
            {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
        )
        splits = {
            "train": {"sentence": ["a", "b", "c"], "label": [0, 1, 1]},
            "validation_matched": {"sentence": ["d"], "label": [1]},
            "test": {"sentence": ["e", "f"], "label": [-1, -1]},
        }
        return datasets.DatasetDict(
            {name: datasets.Dataset.from_dict(split, features=features) for name, split in splits.items()}
        )

    def check(self, source, **options):
        task = load_task(
            "classification",
            source,
            columns={"text": "sentence"},
            files={"validation": "validation_matched"},
            **options,
        )
        assert [dict(item) for item in task.train] == [
            {"text": "a", "label": "neg"},
            {"text": "b", "label": "pos"},
            {"text": "c", "label": "pos"},
        ]
        assert [dict(item) for item in task.validation] == [{"text": "d", "label": "pos"}]
        assert [dict(item) for item in task.test] == [{"text": "e"}, {"text": "f"}]
        assert task.spec.labels == ("neg", "pos")
        assert task.source == str(source)

    def test_a_saved_folder(self, data, tmp_path):
        data.save_to_disk(tmp_path / "saved")
        self.check(tmp_path / "saved")
        data["train"].save_to_disk(tmp_path / "one")
        task = load_task("classification", tmp_path / "one", columns={"text": "sentence"})
        assert {name: len(split) for name, split in task.splits.items()} == {"validation": 3}

    def test_a_hub_name(self, data, monkeypatch):
        asked = []
        monkeypatch.setattr(datasets, "load_dataset", lambda *args: asked.append(args) or data)
        self.check("nyu-mll/glue:sst2")
        self.check("owner/na.me")
        assert asked == [("nyu-mll/glue", "sst2"), ("owner/na.me", None)]

    def test_places_and_unknown_splits(self, data, tmp_path):
        for split in data:
            named = data[split].rename_column("sentence", "said")
            data[split] = named.add_column("who", ["Ann"] * len(named))
        data.save_to_disk(tmp_path / "data")
        wrong = refused("classification", tmp_path / "data")
        assert wrong[0] == (
            f"{tmp_path}/data (train): row 1: the field 'text' is missing; there are 'said', 'label', 'who'; "
            "name its column with task: {columns: {text: ...}} in a recipe, or with --text on the command line"
        )
        assert refused("classification", tmp_path / "data", files={"validation": "validation_match"}) == [
            f"{tmp_path}/data: files: validation: there is no split 'validation_match'; "
            "did you mean 'validation_matched'?"
        ]
        del data["train"], data["test"]
        data.save_to_disk(tmp_path / "other")
        assert refused("classification", tmp_path / "other")[0].endswith(
            "has the splits validation_matched; name one with files: {train: ...}"
        )

    def test_a_hub_that_cannot_be_reached(self, monkeypatch):
        def fail(*_):
            raise ConnectionError("no route")

        monkeypatch.setattr(datasets, "load_dataset", fail)
        assert refused("classification", "nobody/nothing") == [
            "nobody/nothing: there is no such folder, so it was taken as the name of a data set on the hub, "
            "which could not be loaded (ConnectionError: no route); "
            "give a folder that exists, or check the name and the connection"
        ]

    def test_a_broken_saved_folder(self, tmp_path):
        (tmp_path / "dataset_dict.json").write_text("nothing")
        assert "cannot be read by datasets.load_from_disk" in refused("classification", tmp_path)[0]


class TestLabels:
    def test_of_tagging_with_outside_first(self, folder):
        assert load_task("tagging", folder(train=SENTENCES)).spec.labels == ("O", "B-LOC", "B-PER")
        words = [{"tokens": ["a", "dog"], "tags": ["DET", "NOUN"]}]
        spec = load_task("tagging", folder(train=words), metric="token_accuracy").spec
        assert spec.labels == ("DET", "NOUN")

    def test_given_order_is_kept(self, folder):
        given = ["positive", "neutral", "negative"]
        assert load_task("classification", folder(train=GOOD), labels=given).spec.labels == tuple(given)

    def test_numbers_are_names(self, folder):
        items = [{"text": "a", "label": label} for label in (1, 0, "1", 1.0)]
        task = load_task("classification", folder(train=items))
        assert [item["label"] for item in task.train] == ["1", "0", "1", "1"]
        task = load_task("classification", folder(train=items), labels=[1, 0])
        assert task.spec.labels == ("1", "0")

    def test_the_map_comes_first(self, folder):
        items = [{"text": "a", "label": label} for label in (1, 0, 2)]
        task = load_task("classification", folder(train=items), label_map={0: "bad", 1: "good", "2": "good"})
        assert [item["label"] for item in task.train] == ["good", "bad", "good"]
        assert task.spec.labels == ("bad", "good")
        task = load_task("tagging", folder(train=SENTENCES), label_map={"B-LOC": "O"})
        assert task.spec.labels == ("O", "B-PER")

    def test_unknown_labels(self, folder):
        path = folder(train=GOOD, validation=[{"text": "x", "label": "postive"}, {"text": "y", "label": "?"}])
        assert refused("classification", path) == [
            "validation.jsonl:1: unknown label 'postive'; did you mean 'positive'?",
            "validation.jsonl:2: unknown label '?'; allowed: negative, positive",
        ]
        assert refused("classification", path, labels=["negative", "neutral"])[0] == (
            "train.jsonl:1: unknown label 'positive'; allowed: negative, neutral"
        )
        many = [{"text": "a", "label": f"class {i:02}"} for i in range(15)]
        sentence = refused("classification", folder(train=many, validation=[{"text": "x", "label": "?"}]))[0]
        assert sentence.endswith(
            "allowed: class 00, class 01, class 02, class 03, class 04, class 05, class 06, "
            "class 07, class 08, class 09 and 5 more"
        )

    def test_labels_without_a_train_split(self, folder):
        path = folder(validation=GOOD, test=[{"text": "x", "label": "other"}])
        assert refused("classification", path) == ["test.jsonl:1: unknown label 'other'; allowed: negative, positive"]

    def test_no_labels_at_all(self, folder):
        path = folder(unlabeled=[{"text": "x"}], test=[{"text": "y"}])
        assert refused("classification", path) == [
            "labels: no split has any; add a train split, or name them with labels: [...]"
        ]
        assert load_task("classification", path, labels=["a", "b"]).spec.labels == ("a", "b")

    def test_one_label_is_too_few(self, folder):
        assert refused("classification", folder(train=GOOD[:1])) == [
            "train.jsonl: all labels are 'positive'; there must be two or more"
        ]
        bad = folder(train=[GOOD[0], {"label": "negative"}])
        assert all("must be two or more" not in problem for problem in refused("classification", bad))

    def test_truth_values_are_labels(self, folder):
        path = folder(train=[{"text": "buy now", "label": True}, {"text": "hello", "label": False}])
        task = load_task("classification", path)
        assert task.spec.labels == ("False", "True")
        assert [example["label"] for example in task.train] == ["True", "False"]

    @pytest.mark.parametrize("label", [1.5, ["a"], {"a": 1}])
    def test_what_is_no_label(self, folder, label):
        path = folder(train=[*GOOD, {"text": "x", "label": label}])
        assert refused("classification", path) == [
            f"train.jsonl:3: a label must be a string or a whole number, not {label!r}"
        ]


class TestBadItems:
    @pytest.mark.parametrize(
        ("kind", "item", "sentence"),
        [
            ("classification", {"label": "x"}, "the field 'text' is missing; there are 'label'; name its column with "),
            ("classification", {"text": None, "label": "positive"}, "the field 'text' is empty"),
            (
                "classification",
                {},
                "the fields 'text' and 'label' are missing; there are no fields; name their columns",
            ),
            ("classification", {"text": 3, "label": "positive"}, "'text' must hold text, not 3"),
            ("classification", PAIRS[0], "unknown label 'same'; allowed: negative, positive"),
            (
                "classification",
                {**PAIRS[0], "label": "positive"},
                "has a pair of texts, but the items before it have a ",
            ),
            ("classification", {"text": "\ud800", "label": "positive"}, "'text' holds half of a surrogate pair"),
            ("classification", '{"text": "a", "label": ', "is not JSON (Expecting value"),
            ("classification", "[]", "must be a JSON object {...}, not []"),
            (
                "regression",
                {"text": "a", "label": 1},
                "has a single text, but the items before it have a pair of texts",
            ),
            ("regression", {"text_a": "a", "label": 1}, "the field 'text_b' is missing"),
            ("regression", '{"text_a": "a", "text_b": "b", "label": NaN}', "'label' must be a finite number, not nan"),
            ("regression", {**SCORES[0], "label": "3"}, "'label' must be a finite number, not '3'"),
            ("regression", {**SCORES[0], "label": True}, "'label' must be a finite number, not True"),
            ("tagging", {"tokens": ["a", "b"], "tags": ["O"]}, "has 2 tokens but 1 tag; give one tag a token"),
            (
                "tagging",
                {"tokens": "a b", "tags": ["O", "O"]},
                "'tokens' must be a list of one string or more, not 'a b'",
            ),
            ("tagging", {"tokens": [], "tags": []}, "'tokens' must be a list of one string or more, not []"),
            ("tagging", {"tokens": ["a", 5], "tags": ["O", "O"]}, "'tokens' must hold text, not 5"),
            ("tagging", {"tokens": ["a"], "tags": "O"}, "'tags' must be a list of strings, not 'O'"),
            ("tagging", {"tokens": ["a"], "tags": ["I-LOC"]}, "unknown label 'I-LOC'; did you mean 'B-LOC'?"),
            ("tagging", {"tokens": ["a"], "tags": [None]}, "a label must be a string or a whole number, not None"),
            (
                "qa",
                {**ASKED[0], "answers": [{"text": "Bob", "answer_start": 0}]},
                "the answer 'Bob' does not stand at ",
            ),
            (
                "qa",
                {**ASKED[0], "answers": [{"text": "Ann", "answer_start": -8}]},
                "the answer 'Ann' does not stand at ",
            ),
            ("qa", {**ASKED[0], "answers": [{"text": "Ann"}]}, "an answer must have a text and a whole number answer_"),
            (
                "qa",
                {**ASKED[0], "answers": [{"text": "", "answer_start": 0}]},
                "an answer must have a text and a whole",
            ),
            (
                "qa",
                {**ASKED[0], "answers": []},
                "has no answer; kind: qa-with-null reads such questions, on_bad: skip leaves them out",
            ),
            ("qa", {**ASKED[0], "answers": "Ann"}, "'answers' must be a list of {text, answer_start}, not 'Ann'"),
            (
                "qa",
                {**ASKED[0], "answers": {"text": ["Ann"], "answer_start": []}},
                "'answers' has texts and starts of ",
            ),
            ("qa", {**ASKED[0], "question": ["who"]}, "'question' must hold text, not ['who']"),
            ("masked-lm", {"label": "x"}, "the field 'text' is missing"),
        ],
    )
    def test_each_with_its_place(self, folder, kind, item, sentence):
        known = BY_KIND[kind]
        wrong = refused(kind, folder(train=known, validation=[*known, item]))
        assert len(wrong) == 1
        assert wrong[0].startswith(f"validation.jsonl:3: {sentence}")
        task = load_task(kind, folder(train=known, validation=[known[0], item, known[1]]), on_bad="skip")
        assert plain(task.validation) == known
        assert (task.train.skipped, task.validation.skipped) == (0, 1)

    def test_bytes_that_are_not_utf8(self, folder):
        path = folder(train=GOOD)
        (path / "train.jsonl").write_bytes((path / "train.jsonl").read_bytes() + b'{"text": "\xff"}\n')
        assert refused("classification", path) == ["train.jsonl:3: is not valid UTF-8; save the file as UTF-8"]

    @pytest.mark.parametrize(
        ("word", "cure"),
        [(b"f\xfcr", "looks like Windows-1252: save it as UTF-8"), (b"\x83\x81", "save it as UTF-8")],
    )
    def test_many_lines_that_are_not_utf8_are_one_sentence(self, tmp_path, word, cure):
        path = tmp_path / "train.csv"
        rows = [b"text,label", *(b"%s %d,good" % (word, n) for n in range(30)), b"a,bad", b"b,good", b"one cell"]
        path.write_bytes(b"\r\n".join(rows))
        assert refused("classification", path) == [
            *(f"{path}:{line}: is not valid UTF-8; save the file as UTF-8" for line in (2, 3, 4)),
            f"{path}: 30 lines are not valid UTF-8; {cure}",
            f"{path}:34: has 1 cell, but the header names 2 columns: text, label",
        ]

    def test_below_a_header_that_is_not_utf8_no_line_is_taken_for_one(self, tmp_path):
        path = tmp_path / "train.csv"
        path.write_bytes(b"text,label,priorit\xe4t\na,good,1\nb,bad,2\n")
        assert refused("classification", path) == [f"{path}:1: is not valid UTF-8; save the file as UTF-8"]

    @pytest.mark.parametrize("mark", [",", ";", "\t"])
    def test_csv_of_a_spreadsheet_in_any_country(self, tmp_path, mark):
        rows = [("text", "label"), ('"a film, warm; long"', "good"), ("a dull film", "bad")]
        text = "\r\n".join(mark.join(row) for row in rows)
        (tmp_path / "reviews.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
        (first, second) = load_task("classification", tmp_path / "reviews.csv").validation
        assert (first["text"], first["label"]) == ("a film, warm; long", "good")
        assert (second["text"], second["label"]) == ("a dull film", "bad")

    def test_utf16_is_told_once(self, folder):
        path = folder()
        path.mkdir()
        (path / "train.csv").write_bytes("text,label\na film,good\n".encode("utf-16") * 30)
        assert refused("classification", path) == [
            'train.csv: is UTF-16, as spreadsheets save "Unicode text"; save the file as UTF-8'
        ]

    def test_a_file_with_nearly_the_name_is_named(self, tmp_path):
        (tmp_path / "reviews.csv").write_text("text,label\n", encoding="utf-8")
        with pytest.raises(UserError, match=r"did you mean '.*reviews\.csv'\?"):
            load_task("classification", tmp_path / "review.csv")

    def test_a_file_without_a_good_item_is_told_by_its_first(self, folder):
        wrong = refused("regression", folder(train=[{"text": "a", "label": f"good{n}"} for n in range(90)]))
        assert wrong[0].startswith("train.jsonl:1: 'label' must be a finite number, not 'good0'")
        assert wrong[3:] == [
            "train.jsonl: all 90 items are bad, such as these 3; is it data of another kind of task than regression?"
        ]

    def test_all_at_once_up_to_a_number(self, folder):
        path = folder(train=[*GOOD, *["no"] * 15], validation=["no"] * 15, test=[])
        wrong = refused("classification", path)
        assert wrong[0] == "test.jsonl: is empty; put items into it, or take the file away"
        assert len(wrong) == SHOWN + 2
        assert wrong[1].startswith("train.jsonl:3: is not JSON")
        assert wrong[SHOWN].startswith("validation.jsonl:5: is not JSON")
        assert wrong[-1] == "... and 10 more bad items; on_bad: skip leaves them out"

    def test_skipping_is_told_and_counted(self, folder, caplog):
        path = folder(train=[*GOOD, "no", {"text": "x"}], validation=GOOD)
        with caplog.at_level(logging.WARNING, logger="eval"):
            task = load_task("classification", path, on_bad="skip")
        assert task.train.skipped == task.train[:1].skipped == 2
        assert len(caplog.records) == 1
        assert f"{path}/train.jsonl: left out 2 bad items of 4: {path}/train.jsonl:3: is not" in caplog.text

    def test_nothing_left(self, folder):
        wrong = refused("classification", folder(train=GOOD, validation=["no", "no"]), on_bad="skip")
        assert len(wrong) == 1
        assert wrong[0].startswith("validation.jsonl: nothing is left of it but 2 bad items, such as ")

    def test_a_broken_archive_beside_bad_items(self, folder):
        path = folder(train=[*GOOD, "no"])
        (path / "validation.jsonl.gz").write_bytes(b"none")
        wrong = refused("classification", path)
        assert wrong[0].startswith("validation.jsonl.gz: cannot be read: ")
        assert wrong[1].startswith("train.jsonl:3: is not JSON")

    def test_empty_texts_are_texts(self, folder):
        assert (
            load_task("classification", folder(train=[*GOOD, {"text": "", "label": "positive"}])).train[2]["text"] == ""
        )


class TestWeights:
    def test_balanced(self, folder):
        items = [{"text": "a", "label": label} for label in "aaab"]
        path = folder(train=items, validation=items[2:])
        spec = load_task("classification", path, class_weights="balanced").spec
        assert spec.class_weights == pytest.approx((4 / (2 * 3), 4 / (2 * 1)))
        for most in (1, 2, 3):
            limited = load_task("classification", path, class_weights="balanced", limit={"train": most})
            counts = Counter(example["label"] for example in limited.train)
            of_these = tuple(counts.total() / (2 * counts[label]) for label in "ab") if len(counts) == 2 else None
            assert limited.spec.class_weights == pytest.approx(of_these or spec.class_weights)
        spec = load_task(
            "tagging", files={"train": lines(path / "tags.jsonl", SENTENCES)}, class_weights="balanced"
        ).spec
        assert spec.class_weights == pytest.approx((4 / 6, 4 / 3, 4 / 3))

    def test_given(self, folder):
        path = folder(train=GOOD)
        spec = load_task("classification", path, class_weights={"positive": 3}).spec
        assert spec.class_weights == (1.0, 3.0)
        assert load_task("classification", path).spec.class_weights is None
        assert refused(
            "classification", path, class_weights={"postive": 1, "negative": -1, "positive": float("inf")}
        ) == [
            "class_weights: there is no label 'postive'; did you mean 'positive'?",
            "class_weights: negative: got -1; must be a finite number above 0",
            "class_weights: positive: got inf; must be a finite number above 0",
        ]

    def test_a_label_that_never_occurs(self, folder):
        path = folder(train=GOOD)
        labels = ["negative", "positive", "neutral"]
        assert refused("classification", path, labels=labels, class_weights="balanced") == [
            "class_weights: balanced needs every label in the train split; missing: neutral"
        ]


class TestLimits:
    def test_the_same_sample_for_everyone(self, folder):
        items = [{"text": str(i), "label": "ab"[i % 2]} for i in range(50)]
        path = folder(train=items, validation=items)
        task = load_task("classification", path, limit={"train": 7})
        assert len(task.train) == 7
        assert len(task.validation) == 50
        assert [int(item["text"]) for item in task.train] == sorted(int(item["text"]) for item in task.train)
        assert task.train.digest == load_task("classification", path, limit={"train": 7, "validation": 99}).train.digest
        assert task.train.digest != load_task("classification", path, limit={"train": 7}, seed=14).train.digest

    def test_unknown_splits(self, folder):
        assert refused("classification", folder(train=GOOD), limit={"tran": 1, "test": 1}) == [
            "limit: there is no split 'tran'; did you mean 'train'?",
            "limit: there is no split 'test'; allowed: train",
        ]

    def test_a_file_of_another_name_is_a_split_when_files_names_it(self, folder):
        path = folder(train=GOOD, validation=GOOD, holdout=GOOD[:1])
        task = load_task("classification", path)
        assert set(task.splits) == {"train", "validation"}
        said = (
            f"there is no split 'holdout' in {path} (of a folder train, validation, test, unlabeled are read; "
            "task: {files: {holdout: holdout.jsonl}} in a recipe names further ones); allowed: train, validation"
        )
        with pytest.raises(UserError) as caught:
            assign_roles(task, "holdout")
        assert caught.value.problems == (f"split: {said}",)
        with pytest.raises(UserError) as caught:
            scored_examples(task, "holdout")
        assert caught.value.problems == (f"measure: {said}",)
        assert "task: {files: {other: FILE}}" in task.lacks("other")
        assert task.lacks("tran").endswith("there is no split 'tran' in " + f"{path}; did you mean 'train'?")
        task = load_task("classification", path, files={"holdout": "holdout.jsonl"})
        roles = assign_roles(task, "holdout")
        assert (roles.report, list(roles.task.splits["holdout"])) == ("holdout", GOOD[:1])
        assert len(scored_examples(task, "holdout")) == 1


class TestArguments:
    def test_kind_and_metric(self, folder):
        path = folder(train=GOOD)
        assert refused("classificaton", path) == [
            "kind: unknown kind of task 'classificaton'; did you mean 'classification'?"
        ]
        assert refused("classification", path, metric="acc") == [
            "metric: classification has no metric 'acc'; allowed: accuracy, f1, macro_f1, matthews; "
            "or give a function of your own itself, in recipes module:function"
        ]
        assert refused("classification", folder(train=[*GOOD, {"text": "x", "label": "neutral"}]), metric="f1") == [
            "metric: 'f1' is for two labels (the last is the positive one), here are 3; use macro_f1"
        ]
        words = [{"tokens": ["a", "dog"], "tags": ["DET", "NOUN"]}]
        assert refused("tagging", folder(train=words))[0].endswith("use token_accuracy")

    def test_values_of_the_specification(self, folder):
        wrong = refused(
            "classification", folder(train=GOOD), max_length=2, stride=-1, truncation="none", truncation_side="up"
        )
        assert [sentence.split(";")[0] for sentence in wrong] == [
            "max_length: got 2",
            "stride: got -1",
            "truncation: got 'none'",
            "truncation_side: got 'up'",
        ]
        assert "only_first" in wrong[2]

    def test_a_bad_metric_hides_no_other_mistake(self, folder):
        assert [
            sentence.split(":")[0]
            for sentence in refused(
                "classification", folder(train=GOOD), metric="blue", beams=2, choose_thresholds=True, on_bad="ignore"
            )
        ] == ["beams", "choose_thresholds", "metric", "on_bad"]

    def test_all_others_at_once(self, folder):
        wrong = refused(
            "classification",
            folder(train=GOOD),
            on_bad="ignore",
            columns={"txt": "sentence"},
            limit={"train": 0, "test": True},
            labels=["a", "b", "a"],
            class_weights="equal",
        )
        assert wrong == [
            "on_bad: got 'ignore'; allowed: refuse, skip",
            "columns: classification has no field 'txt'; did you mean 'text'?",
            "limit: train: got 0; must be a whole number of 1 or more",
            "limit: test: got True; must be a whole number of 1 or more",
            "labels: named twice: a",
            "class_weights: got 'equal'; allowed: balanced, or a weight for each label",
        ]
        assert refused("qa", folder(train=ASKED), labels=["a"], class_weights="balanced") == [
            "labels: qa has no labels; leave it out",
            "class_weights: qa has no labels; leave it out",
        ]
        assert refused("classification", folder(train=GOOD), labels="positive") == [
            "labels: got the string 'positive'; give a list of names"
        ]
        assert refused("classification", folder(train=GOOD), labels=["positive"]) == [
            "labels: got ['positive']; a classification needs two labels or more"
        ]


REAL = {
    "mrpc": ("classification", {"train": 3668, "validation": 408, "test": 1725}, ("equivalent", "not_equivalent")),
    "tnews_few": ("classification", {"train": 1185, "validation": 1098, "test": 2010, "unlabeled": 20000}, None),
    "stsb_zh": ("regression", {"train": 5716, "validation": 1500, "test": 1379}, ()),
    "msra_ner": (
        "tagging",
        {"train": 6000, "validation": 600},
        ("O", "B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER"),
    ),
    "drcd": ("qa", {"train": 3014, "validation": 510}, ()),
    "wikitext2": ("masked-lm", {"validation": 2461, "test": 2891}, ()),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data_is_read_whole(name):
    root = Path(os.environ.get("COMPRESS_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
    if not (root / name).is_dir():
        pytest.skip(f"the data set {name} is not here; set COMPRESS_DATA to the folder of the data sets")
    kind, counts, labels = REAL[name]
    task = load_task(kind, root / name)
    assert {split: len(items) for split, items in task.splits.items()} == counts
    assert sum(items.skipped for items in task.splits.values()) == 0
    assert task.spec.pair == (name in ("mrpc", "stsb_zh"))
    assert labels is None or task.spec.labels == labels


class TestPackage:
    def test_every_public_name_is_found(self):
        package = sys.modules["eval"]
        assert {name: getattr(package, name).__class__.__name__ for name in package.__all__ if name.islower()} == {
            "assign_roles": "function",
            "load_task": "function",
            "measure": "function",
            "metrics_of": "function",
            "pair": "function",
            "predict": "function",
            "score": "function",
        }
        assert set(package.__all__) <= set(dir(package))
        with pytest.raises(ImportError, match="nothing_such"):
            from eval import nothing_such  # noqa: F401

    def test_a_module_does_not_hide_the_function_of_its_name(self):
        from eval.measurement import measure

        assert sys.modules["eval"].measure is measure
        assert sys.modules["eval.measurement"].measure is measure

    def test_importing_it_loads_nothing(self):
        code = (
            "import sys, eval; print(sorted({n.split('.')[0] for n in sys.modules} & {'numpy', 'pydantic', 'torch'}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
