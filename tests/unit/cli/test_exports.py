"""``compress export`` and ``predict``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from compress.cli import main
from compress.export.tune import tune
from tests.unit.cli.conftest import ROOT


@pytest.fixture(scope="module")
def exported(place):
    out = place / "exported"
    flags = ["--to", "onnx", "--fp32", "--out", out, "--data", place / "data"]
    assert main(["export", str(place / "teacher"), *map(str, flags)]) == 0
    return out


class TestExportAndPredict:
    def test_what_export_says(self, call, place, tmp_path):
        out = tmp_path / "int8"
        code, said, _ = call("export", place / "teacher", "--int8", "--out", out, "--data", place / "data")
        assert code == 0
        assert said.startswith(f"wrote {out}: int8, ")
        assert re.search(r"agrees with the model in \d+\.\d\d% of the predictions on 40 examples; largest", said)
        assert json.loads((out / "export.json").read_text(encoding="utf-8"))["scheme"] == "int8"

    def test_what_export_refuses(self, call, place, exported):
        assert call("export", place / "teacher", "--to", "onx", "--out", "x")[::2] == (
            2,
            "--to: unknown target 'onx'; did you mean 'onnx'?\n",
        )
        code, _, err = call("export", place / "teacher", "--out", place / "data")
        assert code == 2
        assert f"{place / 'data'}: is there already and no export" in err
        code, _, err = call("export", exported, "--out", "x")
        assert code == 2
        assert "is an export already" in err

    def test_modules_that_stay_in_float(self, call, place, tmp_path):
        sizes = []
        for number, flags in enumerate(
            ((), ("--exclude", "*.layer.0"), ("--exclude", "*.layer.0", "--exclude", "*.layer.1"))
        ):
            out = tmp_path / str(number)
            code, said, _ = call("export", place / "teacher", "--int8", *flags, "--agreement", "0.5", "--out", out)
            assert (code, "% of the predictions on synthetic texts (--data" in said) == (0, True)
            sizes.append((out / "model.onnx").stat().st_size)
        assert sizes == sorted(set(sizes))
        code, _, err = call("export", place / "teacher", "--fp32", "--exclude", "x", "--out", tmp_path / "x")
        assert (code, err) == (
            2,
            "--exclude: is of one 8-bit export; give --int8 with it, and leave --tune and --fp32 out\n",
        )

    def test_tuning(self, call, place, tmp_path, monkeypatch):
        monkeypatch.setitem(tune.__kwdefaults__, "seconds", 0.05)
        out = tmp_path / "x"
        flags = ("--tune", "latency", "--data", place / "data", "--agreement", "0.5", "--out", out)
        code, said, err = call("export", place / "teacher", *flags)
        assert code == 0
        assert err.splitlines()[0] == "int8, as recorded: not tried, no step of the recipe asks for it"
        assert ("openvino: not tried, it is not installed" in err) == (find_spec("openvino") is None)
        rows = [line for line in said.splitlines() if line.startswith(("onnx ", "openvino "))]
        assert "kept" in rows[0]
        assert len([row for row in rows if "kept" in row]) == 1
        assert json.loads((out / "export.json").read_text(encoding="utf-8"))["tuned"]["goal"] == "latency"

    def test_what_tuning_refuses(self, call, place):
        flags = ("--tune", "latncy", "--to", "web", "--int8", "--agreement", "0.9", "--out", "x")
        code, _, err = call("export", place / "teacher", *flags)
        assert code == 2
        assert err.splitlines()[-1] == "4 errors"
        assert "--tune: got 'latncy'; did you mean 'latency'?" in err
        assert "--tune: measures with real texts; add --data" in err
        code, _, err = call("export", place / "teacher", "--least-score", "0.9", "--out", "x")
        assert (code, err) == (2, "--least-score: is for --tune; give it, or leave this out\n")

    def test_verify(self, call, place, exported, tmp_path):
        code, out, err = call("verify", exported, "--against", place / "teacher", "--data", place / "data")
        assert (code, err) == (0, "")
        rows = {line.split("  ")[0]: line for line in out.splitlines()}
        assert all(
            rows[name].rstrip().endswith("agrees") for name in ("ONNX Runtime", "onnx's reference", "torch model")
        )
        code, out, _ = call("verify", exported, "--json")
        found = {each["runtime"]: each for each in json.loads(out)}
        assert (code, found["ONNX Runtime"]["passed"]) == (0, True)
        code, _, err = call("verify", place / "teacher")
        assert (code, "no export.json here" in err) == (2, True)
        assert call("verify", tmp_path / "none") == (2, "", f"{tmp_path}/none: there is no such folder\n")
        code, _, err = call("verify", exported, "--data", place / "data")
        assert (code, err) == (2, "--data: is for --against, and there is none; add --against MODEL\n")

    def test_verify_fails_where_a_runtime_answers_otherwise(self, call, exported, monkeypatch):
        from compress.export.check import verification as verify

        engine = ("numpy", lambda export: lambda inputs: -5 * export.forward(inputs))
        monkeypatch.setattr(verify, "ENGINES", {"bad": engine})
        code, out, err = call("verify", exported)
        assert code == 1
        assert "DISAGREES" in out
        assert "bad: logits differ by up to" in err

    def test_an_export_for_another_runtime_is_predicted_and_measured_like_any(self, call, place, exported, tmp_path):
        out = tmp_path / "ort"
        code, said, _ = call("export", place / "teacher", "--to", "ort", "--fp32", "--out", out)
        assert (code, said.startswith(f"wrote {out}: fp32, ")) == (0, True)
        both = [json.loads(call("predict", folder, "the film is great")[1]) for folder in (out, exported)]
        assert both[0]["label"] == both[1]["label"]
        assert both[0]["probability"] == pytest.approx(both[1]["probability"], abs=1e-6)
        flags = ["--data", place / "data", "--no-latency", "--json", "-"]
        (ort,), (onnx,) = (json.loads(call("eval", folder, *flags)[1]) for folder in (out, exported))
        assert ort["scores"] == onnx["scores"]
        assert ort["file_bytes"] == (out / "model.ort").stat().st_size

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
        code, _, err = call("predict", place / "data", "a")
        assert code == 2
        assert "no export.json here" in err
        shutil.copytree(exported, tmp_path / "out" / "run" / "fastest")
        for command in (("predict", tmp_path / "out", "a"), ("verify", tmp_path / "out")):
            wanted = f"{tmp_path}/out: no export.json here; its exports are {tmp_path}/out/run/fastest\n"
            assert call(*command) == (2, "", wanted)
        wanted = f"{tmp_path}/outt: there is no such folder; did you mean '{tmp_path}/out'?\n"
        assert call("predict", tmp_path / "outt", "a") == (2, "", wanted)
        bad = tmp_path / "bad.txt"
        bad.write_bytes(b"fine\n\xff\n")
        code, _, err = call("predict", exported, "--file", bad)
        assert (code, err) == (2, "line 2: not UTF-8 text (byte 0xff)\n")
        code, _, err = call("predict", exported, "--file", tmp_path / "none.txt")
        assert (code, err) == (2, f"{tmp_path / 'none.txt'}: cannot be read (No such file or directory)\n")
        assert call("predict", exported, "a", "--file", bad)[::2] == (
            2,
            "texts and --file were both given; choose one\n",
        )
