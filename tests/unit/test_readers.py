"""File formats: what each reader yields, and at which place it says that something is wrong."""

import gzip
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from eval.data.readers import format_of, read
from eval.data.table_readers import read_dataset
from eval.errors import UserError
from eval.files.rows import NOT_UTF8


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def values(path):
    rows = list(read(path))
    assert [row.problem for row in rows] == [""] * len(rows)
    return [dict(row.values) for row in rows]


def problems(path):
    """Place within the file (or its end) and problem of the bad rows."""
    return [(row.where.removeprefix(str(path)), row.problem) for row in read(path) if row.problem]


class TestNames:
    @pytest.mark.parametrize(
        ("name", "suffix"),
        [
            ("train.jsonl", ".jsonl"),
            ("train.txt.gz", ".txt"),
            ("train.jsonl.gz", ".jsonl"),
            ("train.CSV", ".csv"),
            ("train.parquet", ".parquet"),
            ("train.parquet.gz", None),
            ("train.xlsx", None),
            ("train", None),
            ("train.gz", None),
        ],
    )
    def test_format(self, tmp_path, name, suffix):
        assert format_of(tmp_path / name) == suffix

    def test_unknown_format(self, tmp_path):
        with pytest.raises(UserError, match=r"train.xlsx: unknown format; allowed: .jsonl, .json, .csv, .tsv"):
            list(read(write(tmp_path / "train.xlsx", "")))


class TestLines:
    @pytest.mark.parametrize("ending", ["\n", "\r\n"])
    @pytest.mark.parametrize("packed", ["", ".gz"])
    def test_json_lines(self, tmp_path, ending, packed):
        items = [{"text": "a\u2028b", "label": 1}, {"text": "中"}]
        text = "\ufeff" + ending.join([json.dumps(items[0], ensure_ascii=False), "", "  ", json.dumps(items[1])])
        path = write(tmp_path / f"train.jsonl{packed}", text)
        assert values(path) == items
        assert [row.where for row in read(path)] == [f"{path}:1", f"{path}:4"]

    def test_bad_lines(self, tmp_path):
        good = b'{"text": "good"}'
        lines = [good, b'{"text": "caf\xe9"}', b"{text}", b"[1, 2]", b"", b"3", b"[" * 100_000, good]
        path = write(tmp_path / "train.jsonl", b"\n".join(lines))
        found = problems(path)
        assert [place for place, _ in found] == [":2", ":3", ":4", ":6", ":7"]
        assert found[0][1] == NOT_UTF8
        assert found[1][1].startswith("is not JSON (Expecting property name")
        assert found[2][1] == "must be a JSON object {...}, not [1, 2]"
        assert found[3][1] == "must be a JSON object {...}, not 3"
        assert found[4][1].startswith("is not JSON (")
        assert [row.where for row in read(path) if row.values] == [f"{path}:1", f"{path}:8"]

    @pytest.mark.parametrize("packed", ["", ".gz"])
    def test_text(self, tmp_path, packed):
        path = write(tmp_path / f"train.txt{packed}", "one paragraph \r\n\n\u3000next one\n  \nlast\x85one")
        texts = ("one paragraph", "next one", "last\x85one")
        assert values(path) == [
            {"text": text, "group": f"document {document}"} for text, document in zip(texts, (1, 2, 3), strict=True)
        ]
        assert problems(write(tmp_path / f"test.txt{packed}", b"good\n\xff\n")) == [(":2", NOT_UTF8)]

    def test_lines_between_blank_ones_are_of_one_document(self, tmp_path):
        path = write(tmp_path / "train.txt", "\na\nb\n\n\nc\n\n")
        assert [row.values["group"] for row in read(path)] == ["document 2", "document 2", "document 4"]

    @pytest.mark.parametrize("text", ["a\nb\n", "\n\na\nb\n\n", "a"], ids=["lines", "blank around", "one line"])
    def test_lines_of_one_document_are_of_no_group(self, tmp_path, text):
        assert not any("group" in row.values for row in read(write(tmp_path / "train.txt", text)))

    @pytest.mark.parametrize(
        "content", [b"no gzip at all", gzip.compress(b"text\n" * 9000)[:-9], b"\x1f\x8b\x08\x00"], ids=len
    )
    def test_a_broken_archive_is_refused(self, tmp_path, content):
        path = tmp_path / "train.txt.gz"
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"train\.txt\.gz: cannot be read: "):
            list(read(path))

    @pytest.mark.parametrize("suffix", ["jsonl", "json", "txt", "csv", "tsv"])
    def test_an_empty_file_has_no_rows(self, tmp_path, suffix):
        assert list(read(write(tmp_path / f"train.{suffix}", ""))) == []
        assert list(read(write(tmp_path / f"test.{suffix}", "\n\n"))) == []


class TestTables:
    def test_csv(self, tmp_path):
        text = 'text , label\r\n"a, ""b""\nc",1\r\n\r\nd,\n中,x\n'
        rows = list(read(write(tmp_path / "train.csv", text)))
        assert [row.values for row in rows] == [
            {"text": 'a, "b"\nc', "label": "1"},
            {"text": "d", "label": ""},
            {"text": "中", "label": "x"},
        ]
        assert [row.where.rpartition(":")[2] for row in rows] == ["3", "5", "6"]
        assert all(row.written for row in rows)

    @pytest.mark.parametrize("mark", [";", "\t"])
    def test_csv_with_another_delimiter(self, tmp_path, mark):
        text = f"text{mark}label\na, b{mark}1\n"
        for header in (text, text.replace("text", '"what was said, in full"', 1)):
            (row,) = read(write(tmp_path / "train.csv", header))
            assert list(row.values.values()) == ["a, b", "1"]

    def test_bad_csv(self, tmp_path):
        path = write(tmp_path / "train.csv", b'text,label\na,1\nb\nc,1,2\n\xe9,1\n"d"e,1\nf,1\n"g,1\nh,1\n')
        wrong = problems(path)
        assert [place for place, _ in wrong] == [":3", ":4", ":5", ":6", ":8", ":9"]
        assert wrong[0][1] == "has 1 cell, but the header names 2 columns: text, label"
        assert wrong[2][1] == NOT_UTF8
        assert wrong[3][1].startswith("is not CSV (")
        assert wrong[4][1] == "is not CSV (unexpected end of data in line 9); is a quote here never closed?"
        assert wrong[5][1] == "is lost with the record that begins in line 8"
        assert [row.values["text"] for row in read(path) if row.values] == ["a", "f"]

    def test_a_line_that_is_not_utf8_inside_quotes(self, tmp_path):
        path = write(tmp_path / "train.csv", b'text,label\n"a\n\xff\nb",1\nc,1\n')
        assert problems(path) == [(":3", NOT_UTF8)]
        assert [row.values["text"] for row in read(path) if row.values] == ["c"]

    def test_tsv_has_no_quotes(self, tmp_path):
        path = write(tmp_path / "train.tsv", '\ufefftext\tlabel\n"so\t1\r\n\nit goes", he said\t0\na\tb\tc\n')
        good = [row.values for row in read(path) if not row.problem]
        assert good == [{"text": '"so', "label": "1"}, {"text": 'it goes", he said', "label": "0"}]
        assert problems(path) == [(":5", "has 3 cells, but the header names 2 columns: text, label")]

    def test_parquet(self, tmp_path):
        path = tmp_path / "train.parquet"
        items = [{"text": f"t{i}", "label": i / 2, "tokens": ["a", None]} for i in range(2500)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(items), path)
        assert values(path) == items
        assert [row.where for row in read(path)][1500] == f"{path}: row 1501"
        assert not next(read(path)).written

    def test_a_broken_parquet_file_is_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"train\.parquet: cannot be read: "):
            list(read(write(tmp_path / "train.parquet", "no parquet")))

    @pytest.mark.parametrize("way", ["parquet", "dataset"])
    def test_class_numbers_become_names(self, tmp_path, way):
        features = datasets.Features(
            {
                "text": datasets.Value("string"),
                "label": datasets.ClassLabel(names=["neg", "pos"]),
                "tags": datasets.List(datasets.ClassLabel(names=["O", "B-PER"])),
                "number": datasets.Value("int64"),
            }
        )
        items = [
            {"text": "a", "label": 1, "tags": [0, 1], "number": 1},
            {"text": "b", "label": -1, "tags": [], "number": 0},
            {"text": "c", "label": None, "tags": [1], "number": None},
        ]
        data = datasets.Dataset.from_list(items, features=features)
        if way == "parquet":
            data.to_parquet(tmp_path / "train.parquet")
            rows = list(read(tmp_path / "train.parquet"))
        else:
            rows = list(read_dataset(data, "here"))
            assert [row.where for row in rows] == ["here: row 1", "here: row 2", "here: row 3"]
        assert [dict(row.values) for row in rows] == [
            {"text": "a", "label": "pos", "tags": ["O", "B-PER"], "number": 1},
            {"text": "b", "label": None, "tags": [], "number": 0},
            {"text": "c", "label": None, "tags": ["B-PER"], "number": None},
        ]


class TestJson:
    def test_questions(self, tmp_path):
        asked = [{"id": str(i), "question": f"q{i}", "answers": [{"text": "a", "answer_start": 0}]} for i in range(3)]
        data = [
            {"title": "x", "paragraphs": [{"context": "abc", "qas": asked[:2]}]},
            {"paragraphs": [{"context": "none", "qas": []}, {"context": "abd", "qas": asked[2:]}]},
        ]
        for name, indent in (("one.json", None), ("several.json", 1)):
            path = write(tmp_path / name, json.dumps({"version": "1.1", "data": data}, indent=indent))
            rows = list(read(path))
            assert [row.where.removeprefix(f"{path}: ") for row in rows] == [
                "data[0].paragraphs[0].qas[0]",
                "data[0].paragraphs[0].qas[1]",
                "data[1].paragraphs[1].qas[0]",
            ]
            assert [dict(row.values) for row in rows] == [
                {**asked[0], "context": "abc"},
                {**asked[1], "context": "abc"},
                {**asked[2], "context": "abd"},
            ]

    def test_badly_formed_questions(self, tmp_path):
        good = {"context": "c", "qas": [{"id": "1"}, "no"]}
        path = write(tmp_path / "train.json", json.dumps({"data": [{"paragraphs": [good, {"qas": 3}, 4]}, {}]}))
        assert problems(path) == [
            (": data[0].paragraphs[0].qas[1]", 'must be a JSON object {...}, not "no"'),
            (": data[0].paragraphs[1]", "must be an object with a list 'qas', as in SQuAD files"),
            (": data[0].paragraphs[2]", "must be an object with a list 'qas', as in SQuAD files"),
            (": data[1]", "must be an object with a list 'paragraphs', as in SQuAD files"),
        ]
        path = write(tmp_path / "test.json", '{\n"items": []\n}')
        assert problems(path) == [("", "must be an object with a list 'data', as in SQuAD files")]

    def test_an_array_of_objects(self, tmp_path):
        path = write(tmp_path / "train.json", '\n[{"text": "a"},\n {"text": "b"}, 5]')
        assert [dict(row.values) for row in read(path) if not row.problem] == [{"text": "a"}, {"text": "b"}]
        assert problems(path) == [(": item 3", "must be a JSON object {...}, not 5")]

    def test_one_object_a_line(self, tmp_path):
        path = write(tmp_path / "train.json", '{"text": "a", "data": 1}\nnothing\n{"text": "b"}')
        assert [row.where.removeprefix(str(path)) for row in read(path)] == [":1", ":2", ":3"]
        assert [place for place, _ in problems(path)] == [":2"]

    def test_no_json(self, tmp_path):
        path = write(tmp_path / "train.json", "[1, 2")
        assert problems(path)[0][0] == ""
        assert problems(path)[0][1].startswith("is not JSON (")
        assert problems(write(tmp_path / "test.json", b'[\n{"text": "\xff"}\n]')) == [(":2", NOT_UTF8)]
