"""``compress augment``."""

from __future__ import annotations

import json

import pytest

from eval.data.loading import load_task
from eval.task import TaskSpec
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_taskmodel


def lines(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def masked(tmp_path):
    folder = tmp_path / "masked"
    folder.mkdir()
    save_taskmodel(tiny_taskmodel("bert", TaskSpec(kind="masked-lm", metric="masked_accuracy")), folder)
    return folder


class TestAugment:
    def test_tinybert_keeps_labels_and_readers_ignore_the_rest(self, call, place, masked, tmp_path):
        out = tmp_path / "data" / "train.jsonl"
        out.parent.mkdir()
        flags = ("--rule", "tinybert", "--model", masked, "--copies", 3, "--seed", 7)
        code, said, err = call("augment", place / "data", *flags, "--out", out)
        assert code == 0, err
        assert "predicting other words in" in err
        found = lines(out)
        originals = lines(place / "data" / "train.jsonl")
        assert [example for example in found if "source" not in example] == originals
        copies = [example for example in found if "source" in example]
        assert all(copy["label"] == originals[copy["source"]]["label"] for copy in copies)
        assert {(copy["rule"], copy["seed"]) for copy in copies} == {("tinybert", 7)}
        assert said == f"wrote {out}: 40 examples and {len(copies)} copies (3 draws each, repeats left out)\n"
        read = load_task("classification", data=tmp_path / "data").train
        assert len(read) == len(found)
        assert all(set(example) == {"text", "label"} for example in read)

    def test_bilstm_drops_labels_and_tells_scripts(self, call, place, tmp_path):
        out = tmp_path / "more.jsonl"
        flags = ("--rule", "bilstm", "--pos", 0, "--mask", 0.5, "--mask-word", "<mask>", "--copies", 2)
        code, said, err = call("augment", place / "data" / "train.jsonl", *flags, "--out", out, "--json")
        assert code == 0, err
        copies = [example for example in lines(out) if "source" in example]
        assert json.loads(said) == {
            **{"file": str(out), "rule": "bilstm", "seed": 13},
            **{"originals": 40, "draws": 2, "copies": len(copies)},
        }
        assert not any("label" in copy for copy in copies)
        assert sum("<mask>" in copy["text"] for copy in copies) > len(copies) / 2
        again = tmp_path / "again.jsonl"
        call("augment", place / "data" / "train.jsonl", *flags, "--out", again)
        assert again.read_bytes() == out.read_bytes()

    @pytest.mark.parametrize(
        ("header", "flags", "label", "told"),
        [
            ("review,sentiment", (), "1", "took column 'review' as text, column 'sentiment' as label"),
            ("text,stars", (), None, "train.csv: no item has a label, and none was taken from column 'stars'; --label"),
            ("text,stars", ("--label", "stars"), "1", ""),
            ("text,id", (), None, ""),
        ],
    )
    def test_columns_that_are_taken_or_left_are_told(self, header, flags, label, told, call, tmp_path):
        data, out = tmp_path / "train.csv", tmp_path / "more.jsonl"
        data.write_text(f"{header}\nthis is a good film,1\n", encoding="utf-8")
        given = ("--rule", "bilstm", "--pos", 0, "--copies", 1, *flags, "--out", out)
        code, _, err = call("augment", data, *given)
        assert code == 0, err
        assert lines(out)[0].get("label") == label
        assert told in err
        assert bool(told) == ("column" in err)

    def test_tags_of_the_data(self, call, tmp_path):
        data, out = tmp_path / "train.jsonl", tmp_path / "more.jsonl"
        items = [{"tokens": ["ann", "in", "oslo"], "tags": ["P", "O", "L"]}, {"tokens": ["bob"], "tags": ["P"]}]
        data.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
        flags = ("--rule", "bilstm", "--tagger", "data", "--mask", 0, "--pos", 1, "--ngram", 0)
        assert call("augment", data, *flags, "--out", out)[0] == 0
        copies = [example for example in lines(out) if "source" in example]
        assert [(copy["tokens"], copy["tags"]) for copy in copies] == [
            (["bob", "in", "oslo"], ["P", "O", "L"]),
            (["ann"], ["P"]),
        ]

    @pytest.mark.parametrize(
        ("flags", "problem"),
        [
            (("--rule", "tinybrt"), "arguments: rule: got 'tinybrt', must be one of 'tinybert'"),
            (("--rule", "tinybert"), "arguments: model: tinybert needs a masked-language model"),
            (("--rule", "bilstm"), "pip install 'nlp-compress[tagger]', then python -m spacy download"),
            (("--rule", "bilstm", "--pos", "0", "--copies", "-1"), "arguments: copies: got -1, must be"),
            (("--rule", "bilstm", "--pos", "0", "--replace", "0.1"), "replace: does not belong here"),
            (("--rule", "bilstm", "--pos", "0", "--split", "trian"), "no split 'trian'; did you mean 'train'?"),
            (("--rule", "bilstm", "--pos", "0", "--task", "qaa"), "--task: got 'qaa'; did you mean 'qa'?"),
        ],
    )
    def test_wrong_arguments(self, call, place, tmp_path, flags, problem):
        code, said, err = call("augment", place / "data", *flags, "--out", tmp_path / "x.jsonl")
        assert (code, said) == (2, "")
        assert problem in err
        assert not (tmp_path / "x.jsonl").exists()

    def test_files(self, call, place, tmp_path):
        out = tmp_path / "there.jsonl"
        out.write_text("mine", encoding="utf-8")
        flags = ("--rule", "bilstm", "--pos", 0, "--copies", 1)
        code, _, err = call("augment", place / "data", *flags, "--out", out)
        assert (code, out.read_text(encoding="utf-8")) == (2, "mine")
        assert "--force replaces it" in err
        assert call("augment", place / "data", *flags, "--out", out, "--force")[0] == 0
        assert len(lines(out)) > 40
        assert "its folder does not exist" in call("augment", place / "data", *flags, "--out", tmp_path / "no" / "x")[2]

    @pytest.mark.parametrize("name", ["train.jsonl", "validation.jsonl"])
    def test_data_is_not_written_over(self, call, place, name):
        file = place / "data" / name
        before = file.read_bytes()
        for data in (file, file.parent):
            flags = ("--rule", "bilstm", "--pos", 0, "--copies", 1, "--out", file, "--force")
            code, _, err = call("augment", data, *flags)
            assert (code, "is the data itself, which would be lost" in err) == (2, True), err
        assert file.read_bytes() == before

    def test_qa_is_refused(self, call, tmp_path):
        data = tmp_path / "qa.jsonl"
        item = {"id": "1", "question": "who?", "context": "ann", "answers": [{"text": "ann", "answer_start": 0}]}
        data.write_text(json.dumps(item) + "\n", encoding="utf-8")
        out = tmp_path / "x.jsonl"
        code, _, err = call("augment", data, "--rule", "bilstm", "--pos", 0, "--out", out)
        assert code == 2
        assert "qa examples are not augmented" in err
        assert not out.exists()
