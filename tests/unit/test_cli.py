"""The command line: what each command says, where it says it, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from compress import __version__
from compress.cli import main
from compress.commands import doctor as doctor_command
from compress.commands.predict import parse_example
from compress.techniques import TECHNIQUES
from eval.errors import CompressError, DivergedError, UserError
from tests.tiny import tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]

RECIPE = """\
name: small
seed: 13
task: {{kind: classification, data: {data}, max_length: 32}}
teacher: {{model: {teacher}}}
student: {{from: teacher, layers: [0, 2]}}
training: {{epochs: 1, learning_rate: 1.0e-3, batch_size: 8}}
steps:
  - distill.logits: {{temperature: 2.0, alpha: 0.9}}
  - prune.layers: {{keep: [0]}}
evaluate: {{against: teacher, latency: null}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, a teacher and a recipe."""
    from teachers.taskmodel import save_taskmodel

    folder = tmp_path_factory.mktemp("cli")
    task = tiny_task("classification")
    (folder / "data").mkdir()
    for name, split in task.splits.items():
        lines = "".join(json.dumps(dict(item)) + "\n" for item in split)
        (folder / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), folder / "teacher")
    text = RECIPE.format(data=folder / "data", teacher=folder / "teacher")
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def call(capsys):
    """Run a command; return its exit code, what it printed, and what it said on standard error."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def cells(text, first):
    """Return the cells of the table row that begins with ``first``."""
    (row,) = [line for line in text.splitlines() if line.split("  ")[0].strip() == first]
    return [cell.strip() for cell in re.split(r"\s{2,}", row.strip())]


class TestStart:
    def test_nothing_heavy_is_imported(self):
        code = (
            "import sys; from compress.cli import main; main(['--help']);"
            "heavy = {'torch', 'transformers', 'numpy', 'onnxruntime', 'pydantic', 'yaml', 'matplotlib', 'datasets'};"
            "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def test_help_names_every_command(self, call):
        code, out, _ = call("--help")
        assert code == 0
        commands = re.findall(r"^  ([a-z]+)  ", out, flags=re.MULTILINE)
        assert commands == [
            *("run", "check", "plan", "list", "show", "init"),
            *("teach", "eval", "export", "history", "predict", "doctor"),
        ]

    def test_version(self, call):
        assert call("--version") == (0, f"nlp-compress {__version__}\n", "")

    @pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["run", "a.yaml", "--nonsense"], ["eval", "model"]])
    def test_wrong_arguments_end_with_2(self, call, arguments):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert "Usage: compress" in err
        assert "Error: " in err


class TestFailures:
    @pytest.fixture
    def broken(self, monkeypatch, call):
        def run(error, *options):
            def fail():
                raise error

            monkeypatch.setattr(doctor_command, "diagnosis", fail)
            return call(*options, "doctor")

        return run

    def test_a_user_s_mistakes_end_with_2_and_are_counted(self, broken):
        assert broken(UserError("one thing")) == (2, "", "one thing\n")
        assert broken(UserError("one", "two", "one")) == (2, "", "one\ntwo\n2 mistakes\n")

    def test_our_errors_end_with_1(self, broken):
        assert broken(CompressError("no")) == (1, "", "no\n")
        assert broken(DivergedError("loss is nan at step 3")) == (1, "", "loss is nan at step 3\n")

    def test_a_full_disk(self, broken):
        code, _, err = broken(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/model.onnx"))
        assert code == 1
        assert err.startswith("the disk is full (out/model.onnx); free some space")

    def test_other_trouble_with_files(self, broken):
        code, _, err = broken(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/root/x"))
        assert (code, err) == (1, "/root/x: Permission denied\n")

    def test_memory(self, broken):
        code, _, err = broken(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
        assert code == 1
        assert err.startswith("out of memory (CUDA out of memory. Tried to allocate 2 GiB); a smaller batch_size")

    def test_interruption(self, broken):
        assert broken(KeyboardInterrupt()) == (130, "", "stopped\n")

    def test_the_unexpected_leaves_a_traceback_in_a_file(self, broken):
        code, out, err = broken(ZeroDivisionError("by zero"))
        assert (code, out) == (1, "")
        assert err.startswith("unexpected error, most likely a bug: ZeroDivisionError: by zero; the traceback is in ")
        assert err.count("\n") == 1
        file = Path(re.search(r"is in (\S+),", err)[1])
        try:
            assert "ZeroDivisionError: by zero" in file.read_text(encoding="utf-8")
        finally:
            file.unlink()

    def test_debug_shows_it(self, broken):
        code, _, err = broken(ZeroDivisionError("by zero"), "--debug")
        assert code == 1
        assert err.startswith("Traceback (most recent call last):")
        assert err.endswith("unexpected error, most likely a bug: ZeroDivisionError: by zero\n")


class TestTechniques:
    def test_list(self, call):
        code, out, err = call("list")
        assert (code, err) == (0, "")
        assert cells(out, "technique") == ["technique", "what it does", "needs", "reduces", "source"]
        row = cells(out, "distill.logits")
        assert row[2:4] == ["teacher, train", "-"]
        assert "1503.02531" in row[4]
        assert [line.split()[0] for line in out.splitlines()[1:] if not line.startswith(" ")] == list(TECHNIQUES)

    def test_list_as_json(self, call):
        code, out, _ = call("list", "--json")
        found = {each["name"]: each for each in json.loads(out)}
        assert code == 0
        assert set(found) == set(TECHNIQUES)
        assert set(found["prune.layers"]["reduces"]) == {"bytes", "macs", "nonzero", "parameters"}
        assert found["quantize.dynamic"]["freezes"]

    @pytest.mark.parametrize("name", TECHNIQUES)
    def test_show_any(self, call, name):
        code, out, err = call("show", name)
        assert (code, err) == (0, "")
        assert out.startswith(f"{name} (version 1)\n")
        assert re.search(r"^source: .*\b(19|20)\d\d", out, flags=re.MULTILINE)

    def test_show_says_formula_fields_and_source(self, call):
        _, out, _ = call("show", "distill.logits")
        assert "``loss = alpha · soft + (1" in out
        assert cells(out, "temperature")[1:3] == ["a number above 0 and at most 1000", "2"]
        assert cells(out, "temperature")[3].startswith("T, dividing both logits.")
        assert cells(out, "alpha")[1:3] == ["a number between 0 and 1", "0.5"]
        assert "one of 'kl', 'soft_cross_entropy', 'mse'" in out
        assert "needs: teacher, train\n" in out
        assert "trains: yes; can be trained afterwards: yes\n" in out
        assert out.endswith("source: Hinton, Vinyals, Dean 2015, arXiv 1503.02531\n")

    def test_every_field_of_every_technique_has_a_meaning(self, call):
        for name in TECHNIQUES:
            fields = json.loads(call("show", name, "--json")[1])["fields"]
            assert [field["name"] for field in fields if not field["description"]] == []

    def test_an_unknown_name(self, call):
        assert call("show", "prune.layer") == (2, "", "unknown technique 'prune.layer'; did you mean 'prune.layers'?\n")


class TestCheck:
    def test_a_sound_recipe(self, call, place):
        code, out, _ = call("check", place / "recipe.yaml")
        assert code == 0
        assert out.splitlines()[0] == f"{place / 'recipe.yaml'}: no mistakes found"
        assert "steps: distill.logits, prune.layers\n" in out
        assert "data: train 40, validation 40, test 40\n" in out
        assert "labels: bad, good\n" in out

    def test_mistakes_of_the_file(self, call, place, tmp_path):
        text = (place / "recipe.yaml").read_text(encoding="utf-8")
        path = tmp_path / "recipe.yaml"
        path.write_text(text.replace("temperature", "temprature").replace("seed: 13", "seed: x"), encoding="utf-8")
        problems = [
            f"{path}:2: seed: got 'x', must be a whole number of at least 0 and below 4294967296",
            f"{path}:8: step 1, distill.logits: unknown field 'temprature'; did you mean 'temperature'?",
        ]
        assert call("check", path) == (2, "", "\n".join([*problems, "2 mistakes\n"]))
        code, out, _ = call("check", path, "--json")
        assert code == 2
        assert json.loads(out) == {"ok": False, "problems": problems}

    def test_mistakes_of_data_and_model_are_told_together(self, call, place):
        changes = ("--set", "task.data=nowhere", "--set", f"teacher.model={place / 'data'}")
        code, _, err = call("check", place / "recipe.yaml", *changes)
        assert code == 2
        assert "nowhere" in err
        assert f"{place / 'data'}: no config.json here" in err

    def test_steps_that_do_not_fit_the_student(self, call, place):
        code, _, err = call("check", place / "recipe.yaml", "--set", "steps.prune.layers.keep=[0, 7]")
        assert code == 2
        assert "step 2, prune.layers" in err

    def test_file_only_needs_neither_data_nor_models(self, call, place):
        changes = ("--set", "task.data=nowhere", "--set", "teacher.model=missing")
        code, out, _ = call("check", place / "recipe.yaml", *changes, "--file-only", "--json")
        assert code == 0
        assert json.loads(out) == {
            "ok": True,
            "problems": [],
            "name": "small",
            "steps": ["distill.logits", "prune.layers"],
        }


class TestPlan:
    def test_sizes_updates_and_time(self, call, place):
        code, out, _ = call("plan", place / "recipe.yaml", "--set", "training.epochs=2", "--json")
        assert code == 0
        found = json.loads(out)
        teacher, student, pruned = found["sizes"]
        assert (teacher["name"], student["name"], pruned["name"]) == ("teacher", "student", "after 2. prune.layers")
        layer = teacher["parameters"] - student["parameters"]
        assert student["parameters"] - pruned["parameters"] == layer
        assert layer == 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
        signals, distil, prune = found["steps"]
        assert (signals["name"], signals["rows"], signals["updates"]) == ("teacher signals", 40, 0)
        assert (distil["name"], distil["rows"], distil["updates"]) == ("1. distill.logits", 40, 10)
        assert 4 < distil["tokens"] < 12
        assert prune["updates"] == 0
        assert 0 < found["seconds"] < 60
        assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["steps"]))

    def test_as_a_table(self, call, place):
        code, out, _ = call("plan", place / "recipe.yaml")
        assert code == 0
        assert cells(out, "teacher")[-1] == "100%"
        assert cells(out, "1. distill.logits")[1] == "40"
        assert cells(out, "1. distill.logits")[3] == "5"
        assert re.search(r"all together about \d+ s on this machine", out)


class TestInit:
    @pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "qa", "masked-lm"])
    def test_what_it_writes_is_a_sound_recipe(self, call, tmp_path, kind):
        from compress.recipe import read_recipe

        out = tmp_path / "new.yaml"
        flags = ("--task", kind, "--data", "data/it's: #1", "--teacher", "a/b", "--finetune", "--layers", "3", "--int8")
        assert call("init", *flags, "--out", out) == (0, f"wrote {out}; next: compress check {out}\n", "")
        recipe = read_recipe(out)
        assert recipe.task.kind == kind
        assert recipe.task.data == "data/it's: #1"
        assert recipe.teacher.model == "a/b"
        assert recipe.student.layers == 3
        assert (recipe.teacher.finetune is not None) == (kind != "masked-lm")
        assert [block.onnx.int8 for block in recipe.export] == ([True] if kind != "masked-lm" else [])
        assert "#" in out.read_text(encoding="utf-8")

    def test_the_recipe_passes_check(self, call, place, tmp_path):
        out = tmp_path / "new.yaml"
        flags = ("--task", "classification", "--data", place / "data", "--teacher", place / "teacher", "--layers", 2)
        assert call("init", *flags, "--no-int8", "--out", out)[0] == 0
        code, said, _ = call("check", out)
        assert code == 0
        assert "no mistakes found" in said
        # The teacher's config says that it has a trained head.
        assert "finetune:" not in re.sub("#.*", "", out.read_text(encoding="utf-8"))

    def test_questions(self, call, tmp_path, monkeypatch):
        out = tmp_path / "new.yaml"
        self.answers(monkeypatch, "sentiment", "classification", "reviews", "bert-base-uncased", "y", "4", "n")
        code, said, err = call("init", "--out", out)
        assert code == 0
        assert said.strip() == f"wrote {out}; next: compress check {out}"
        assert "'sentiment' is no kind of task; allowed: classification" in err
        text = out.read_text(encoding="utf-8")
        assert "name: reviews-4l\n" in text
        assert 'model: "bert-base-uncased"' in text
        assert "int8: false" in text

    def test_answers_that_end_early(self, call, tmp_path, monkeypatch):
        self.answers(monkeypatch, "classification")
        code, _, err = call("init", "--out", tmp_path / "new.yaml")
        assert code == 2
        assert "the answers ended early; give --task, --data, --teacher" in err
        assert not (tmp_path / "new.yaml").exists()

    def test_it_never_replaces_a_file_unasked(self, call, tmp_path):
        out = tmp_path / "new.yaml"
        out.write_text("mine", encoding="utf-8")
        code, _, err = call("init", "--out", out)
        assert (code, err) == (2, f"{out}: is there already; --force replaces it, --out names another file\n")
        assert out.read_text(encoding="utf-8") == "mine"

    def test_wrong_flags(self, call, tmp_path):
        code, _, err = call("init", "--task", "clasification", "--out", tmp_path / "new.yaml")
        assert (code, err) == (2, "--task: got 'clasification'; did you mean 'classification'?\n")

    @staticmethod
    def answers(monkeypatch, *lines):
        import io

        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


class TestDoctor:
    def test_what_it_finds(self, call, tmp_path):
        code, out, err = call("doctor")
        assert (code, err) == (0, "")
        assert cells(out, "processor")[1].endswith("cores usable)")
        assert "int8" in cells(out, "advice")[1]
        assert cells(out, "GPU")[1]
        assert str(tmp_path / "home") in out
        import torch

        assert cells(out, "torch") == ["torch", torch.__version__]

    def test_json(self, call):
        found = json.loads(call("doctor", "--json")[1])
        assert set(found) == {"machine", "advice", "extras", "home", "version"}
        assert found["extras"]["dev"]["installed"] is True
        assert found["extras"]["structured"]["install"] == "pip install 'nlp-compress[structured]'"

    def test_extras_are_those_of_the_distribution(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set(doctor_command.EXTRAS) == set(project["optional-dependencies"])

    @pytest.mark.parametrize(
        ("features", "words"),
        [
            (["avx2", "avx512_vnni"], "expect it to be much faster"),
            (["avx2", "avx512f"], "hardly faster here, for the processor lacks VNNI"),
            (["asimddp"], "this ARM processor multiplies 8-bit numbers fast"),
            ([], "int8 saves size only"),
        ],
    )
    def test_advice(self, features, words):
        assert words in doctor_command.advice(features, None)
        assert doctor_command.advice(features, "some GPU").endswith("train on the GPU")


class TestTeach:
    def test_from_flags(self, call, place, tmp_path):
        out = tmp_path / "taught"
        flags = ("--base", place / "teacher", "--task", "classification", "--data", place / "data")
        code, said, _ = call("teach", *flags, "--max-steps", 2, "--batch-size", 8, "--out", out)
        assert (code, said) == (0, f"teacher: {out}\n")
        assert json.loads((out / "task.json").read_text(encoding="utf-8"))["labels"] == ["bad", "good"]
        assert len(list((tmp_path / "home" / "teachers").iterdir())) == 1

    def test_from_a_recipe_and_from_random_weights(self, call, place, tmp_path):
        text = (
            f"task: {{kind: masked-lm, data: {place / 'data'}}}\n"
            f"teacher: {{model: {place / 'teacher'}, finetune: {{max_steps: 1}}}}\n"
        )
        path = tmp_path / "teach.yaml"
        path.write_text(text, encoding="utf-8")
        out = tmp_path / "pretrained"
        code, _, err = call("teach", "--recipe", path, "--shape", "layers: 1, hidden_size: 16, heads: 2", "--out", out)
        assert code == 0, err
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        assert (config["num_hidden_layers"], config["hidden_size"]) == (1, 16)
        assert config["architectures"] == ["BertForMaskedLM"]

    def test_what_is_missing(self, call, place):
        assert call("teach", "--base", "b") == (
            2,
            "",
            "--task, --data must be given, or --recipe with a file that says it\n",
        )
        code, _, err = call("teach", "--recipe", place / "recipe.yaml")
        assert code == 2
        assert "no teacher with a finetune block; there is nothing to teach" in err

    def test_wrong_values(self, call):
        code, _, err = call("teach", "--base", "b", "--task", "clasification", "--data", "d", "--epochs", "-1")
        assert code == 2
        assert "arguments: task: kind: got 'clasification', must be one of 'classification'" in err
        assert "arguments: teacher: finetune.training.epochs: got -1.0, must be a number above 0" in err


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
