"""``compress export`` and ``predict``."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from compress.cli import main
from compress.commands.predict import parse_example
from tests.unit.cli.conftest import ROOT


class TestExportAndPredict:
    @pytest.fixture(scope="class")
    def exported(self, place):
        out = place / "exported"
        assert (
            main(["export", str(place / "teacher"), "--to", "onnx", "--out", str(out), "--data", str(place / "data")])
            == 0
        )
        return out

    def test_what_export_refuses(self, call, place, exported):
        assert call("export", place / "teacher", "--to", "onx", "--out", "x")[::2] == (
            2,
            "--to: got 'onx'; did you mean 'onnx'?\n",
        )
        code, _, err = call("export", place / "teacher", "--out", exported)
        assert code == 2
        assert "is there already and not empty" in err
        code, _, err = call("export", exported, "--out", "x")
        assert code == 2
        assert "is an export already" in err

    def test_texts_file_and_standard_input_give_the_same_lines(self, call, place, exported, tmp_path, monkeypatch):
        texts = ["the film is great", "the book was dull and sad", ""]
        code, out, err = call("predict", exported, *texts)
        assert (code, err) == (0, "")
        answers = [json.loads(line) for line in out.splitlines()]
        assert all(set(answer) == {"label", "probability"} for answer in answers)
        file = tmp_path / "texts.txt"
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        assert call("predict", exported, "--file", file)[1] == out
        with file.open(encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert call("predict", exported)[1] == out

    def test_it_answers_as_the_model_does(self, call, place, exported):
        from eval.inference import predict
        from teachers.taskmodel import load_taskmodel

        texts = ["the film is great", "bob lives in rome and it is quite cold"]
        own = predict(load_taskmodel(place / "teacher"), [{"text": text} for text in texts]).answers
        found = [json.loads(line) for line in call("predict", exported, *texts)[1].splitlines()]
        assert [answer["label"] for answer in found] == [answer["label"] for answer in own]
        assert [answer["probability"] for answer in found] == pytest.approx([a["probability"] for a in own], abs=1e-4)

    def test_neither_torch_nor_transformers_is_loaded(self, exported):
        code = (
            "import sys; from compress.cli import main; code = main(['predict', sys.argv[1], 'a good film']);"
            "sys.exit(str(sorted({'torch', 'transformers'} & set(sys.modules))) if 'torch' in sys.modules else code)"
        )
        command = [sys.executable, "-c", code, str(exported)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["label"] in ("bad", "good")

    def test_what_predict_refuses(self, call, place, exported, tmp_path):
        code, _, err = call("predict", place / "teacher", "a")
        assert code == 2
        assert "no export.json here" in err
        bad = tmp_path / "bad.txt"
        bad.write_bytes(b"fine\n\xff\n")
        code, _, err = call("predict", exported, "--file", bad)
        assert (code, err) == (2, f"{bad}:2: not UTF-8 text (byte 0xff)\n")
        code, _, err = call("predict", exported, "--file", tmp_path / "none.txt")
        assert (code, err) == (2, f"{tmp_path / 'none.txt'}: cannot be read (No such file or directory)\n")
        assert call("predict", exported, "a", "--file", bad)[::2] == (
            2,
            "texts and --file were both given; choose one\n",
        )


class TestPredictLines:
    @pytest.mark.parametrize(
        ("text", "kind", "pair", "example"),
        [
            ("a film", "classification", False, {"text": "a film"}),
            ("", "classification", False, {"text": ""}),
            ('{"text": "a", "id": 3}', "classification", False, {"text": "a", "id": 3}),
            ("{not json", "classification", False, {"text": "{not json"}),
            ('{"text": 3}', "classification", False, {"text": '{"text": 3}'}),
            ("a\tb", "regression", True, {"text_a": "a", "text_b": "b"}),
            ("who?\tann", "qa", False, {"question": "who?", "context": "ann"}),
            ("ann lives here", "tagging", False, {"tokens": ["ann", "lives", "here"]}),
            ('{"tokens": ["a b", "c"]}', "tagging", False, {"tokens": ["a b", "c"]}),
        ],
    )
    def test_a_line_becomes_an_example(self, text, kind, pair, example):
        assert parse_example(text, kind, pair) == example

    @pytest.mark.parametrize(
        ("text", "kind", "pair", "problem"),
        [
            ("a b", "classification", True, "write text_a, a tab, text_b; or a JSON object with these two fields"),
            ("a\tb\tc", "qa", False, "write question, a tab, context"),
            ('{"question": "q"}', "qa", False, "this is no JSON object with question and context as text"),
        ],
    )
    def test_a_line_that_is_no_example(self, text, kind, pair, problem):
        with pytest.raises(ValueError, match=re.escape(problem)):
            parse_example(text, kind, pair)
