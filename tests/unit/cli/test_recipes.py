"""``compress init``, ``check`` and ``plan``."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from compress.artifact.artifact import load_model
from tests.unit.cli.conftest import cells


class TestInit:
    @pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "qa", "masked-lm"])
    def test_what_it_writes_is_a_sound_recipe(self, call, tmp_path, kind):
        from compress.recipe import read_recipe

        out = tmp_path / "new.yaml"
        flags = ("--task", kind, "--data", "data/it's: #1", "--teacher", "a/b", "--layers", "3")
        flags += () if kind == "masked-lm" else ("--finetune", "--int8")
        assert call("init", *flags, "--out", out) == (0, f"wrote {out}\n", f"next: compress check {out}\n")
        recipe = read_recipe(out)
        assert recipe.task.kind == kind
        assert recipe.task.data == "data/it's: #1"
        assert recipe.teacher.model == "a/b"
        assert recipe.student.layers == 3
        assert (recipe.teacher.finetune is not None) == (kind != "masked-lm")
        assert [block.settings.int8 for block in recipe.export] == ([True] if kind != "masked-lm" else [])
        assert "#" in out.read_text(encoding="utf-8")

    @pytest.mark.parametrize(("labels", "soft"), [(29, False), (30, True)])
    @pytest.mark.parametrize("name", ["intents.csv", "folder/train.jsonl"])
    def test_many_labels_in_the_data_take_soft_targets(self, call, tmp_path, labels, soft, name):
        file, out = tmp_path / name, tmp_path / "new.yaml"
        file.parent.mkdir(exist_ok=True)
        rows = [(f"text {number}", f"intent {number % labels}") for number in range(90)]
        if name.endswith("csv"):
            text = "utterance,category\n" + "".join(f"{text},{label}\n" for text, label in rows)
        else:
            text = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
        file.write_text(text, encoding="utf-8")
        data = file if name.endswith("csv") else file.parent
        flags = (
            "--task",
            "classification",
            "--data",
            data,
            "--teacher",
            "a/b",
            "--finetune",
            "--layers",
            "3",
            "--int8",
        )
        assert call("init", *flags, "--out", out)[0] == 0
        made = out.read_text(encoding="utf-8")
        assert ('"temperature": 2.0' in made) == soft
        assert (f"{labels} labels are many" in made) == soft

    def test_the_recipe_passes_check(self, call, place, tmp_path):
        out = tmp_path / "new.yaml"
        flags = ("--task", "classification", "--data", place / "data", "--teacher", place / "teacher", "--layers", 2)
        assert call("init", *flags, "--no-int8", "--out", out)[0] == 0
        code, said, _ = call("check", out)
        assert code == 0
        assert "no errors found" in said
        # The teacher's config says that it has a trained head.
        assert "finetune:" not in re.sub("#.*", "", out.read_text(encoding="utf-8"))

    def test_names_below_the_home_folder(self, call, place, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(place))
        out = tmp_path / "new.yaml"
        flags = ("--task", "classification", "--data", "~/data", "--teacher", "~/teacher", "--layers", 2, "--no-int8")
        assert call("init", *flags, "--out", out)[0] == 0
        made = out.read_text(encoding="utf-8")
        assert 'model: "~/teacher"' in made
        assert "finetune:" not in re.sub("#.*", "", made)  # the teacher's config was read
        assert call("check", out)[0] == 0
        assert load_model("~/teacher").task.kind == "classification"

    def test_one_table_is_learned_from(self, call, place, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        rows = [json.loads(line) for line in (place / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()]
        table = "".join(f'{number},"{row["text"]} {number}",{row["label"]}\n' for number, row in enumerate(rows * 3))
        (tmp_path / "my.reviews.csv").write_text(f"id,review,sentiment\n{table}", encoding="utf-8")
        flags = ("--task", "classification", "--data", "my.reviews.csv", "--teacher", place / "teacher", "--layers", 2)
        assert call("init", *flags, "--no-int8", "--out", "new.yaml")[0] == 0
        code, said, err = call("check", "new.yaml")
        assert code == 0, err
        assert "name: my-2l\n" in said
        assert "carved from train" in said
        monkeypatch.setattr("compress.commands.init.which", lambda name: None)
        monkeypatch.setattr("compress.commands.init.cpu_features", lambda: ("avx512f", "avx512_bf16"))
        finetune = "finetune: {epochs: 20, learning_rate: 1.0e-4, batch_size: 32, precision: bf16}"
        assert call("init", *flags, "--finetune", "--no-int8", "--out", "new.yaml", "--force")[0] == 0
        text = (tmp_path / "new.yaml").read_text(encoding="utf-8")
        assert finetune in text, "few examples, a narrow network, a processor with bfloat16"
        assert "\n  precision: bf16 " in text
        monkeypatch.setattr("compress.commands.init.cpu_features", lambda: ("avx2",))
        assert call("init", *flags, "--finetune", "--no-int8", "--out", "new.yaml", "--force")[0] == 0
        assert "bf16" not in (tmp_path / "new.yaml").read_text(encoding="utf-8")

    def test_questions(self, call, tmp_path, monkeypatch):
        out = tmp_path / "new.yaml"
        self.answers(monkeypatch, "sentiment", "classification", "reviews", "bert-base-uncased", "y", "4", "n")
        code, said, err = call("init", "--out", out)
        assert code == 0
        assert said.strip() == f"wrote {out}"
        assert err.endswith(f"next: compress check {out}\n")
        assert "'sentiment' is no kind of task; allowed: causal-lm, classification" in err
        text = out.read_text(encoding="utf-8")
        assert "name: reviews-4l\n" in text
        assert 'model: "bert-base-uncased"' in text
        assert "int8: false" in text

    def test_answers_that_end_early(self, call, tmp_path, monkeypatch):
        self.answers(monkeypatch, "classification")
        code, _, err = call("init", "--out", tmp_path / "new.yaml")
        assert code == 2
        for flag in ("--task", "--data", "--teacher", "--finetune or --trained", "--layers", "--int8 or --no-int8"):
            assert flag in err.partition("the answers ended early; give ")[2]
        assert not (tmp_path / "new.yaml").exists()

    def test_it_never_replaces_a_file_unasked(self, call, tmp_path):
        out = tmp_path / "new.yaml"
        out.write_text("mine", encoding="utf-8")
        code, _, err = call("init", "--out", out)
        assert (code, err) == (2, f"{out}: is there already; --force replaces it, --out names another file\n")
        assert out.read_text(encoding="utf-8") == "mine"

    def test_flags_that_do_not_fit_are_refused_together(self, call, place, tmp_path):
        flags = ("--data", place / "data", "--teacher", place / "teacher", "--finetune", "--int8")
        layers = "--layers: got 9, must be 1 to 3, the layers of the teacher\n"
        call_it = ("init", *flags, "--layers", 9, "--out", tmp_path / "new.yaml")
        assert call(*call_it, "--task", "classification") == (2, "", layers)
        code, _, err = call(*call_it, "--task", "masked-lm")
        assert code == 2
        assert "--finetune: a masked-lm model is not fine-tuned on labels; leave it out\n" in err
        assert layers in err
        assert "--int8: a masked-lm model has no export; leave it out\n" in err

    def test_wrong_flags(self, call, tmp_path):
        code, _, err = call("init", "--task", "clasification", "--out", tmp_path / "new.yaml")
        assert (code, err) == (2, "--task: got 'clasification'; did you mean 'classification'?\n")

    @staticmethod
    def answers(monkeypatch, *lines):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


class TestCheck:
    def test_a_sound_recipe(self, call, place):
        code, out, err = call("check", place / "recipe.yaml")
        assert (code, err) == (0, f"next: compress plan {place / 'recipe.yaml'}\n")
        assert out.splitlines()[0] == f"{place / 'recipe.yaml'}: no errors found"
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
        assert call("check", path) == (2, "", "\n".join([*problems, "2 errors\n"]))
        code, out, _ = call("check", path, "--json")
        assert code == 2
        assert json.loads(out) == {"ok": False, "problems": problems}

    def test_mistakes_of_data_and_model_are_told_together(self, call, place):
        changes = ("--set", "task.data=nowhere", "--set", f"teacher.model={place / 'data'}")
        code, _, err = call("check", place / "recipe.yaml", *changes)
        assert code == 2
        assert "nowhere" in err
        assert f"{place / 'data'}: no config.json here" in err

    def test_models_whose_attributions_cannot_be_compared(self, call, place):
        teacher = place / "teacher"
        changes = ("--set", f"teacher.model=[{teacher}, {teacher}]", "--set", "evaluate.attributions=true")
        code, _, err = call("check", place / "recipe.yaml", *changes)
        assert code == 2
        assert "evaluate.attributions: teacher is no single torch model, so it has no gradients; give a model" in err

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
        assert (signals["name"], signals["rows"], signals["updates"]) == ("teacher outputs", 40, 0)
        assert (distil["name"], distil["rows"], distil["updates"]) == ("1. distill.logits", 40, 10)
        assert 4 < distil["tokens"] < 12
        assert prune["updates"] == 0
        assert 0 < found["seconds"] < 60
        assert "bf16_speedup" in found
        assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["steps"]))

    def test_it_says_when_int8_will_not_be_much_faster(self):
        from compress.commands.plan import slow_int8
        from compress.quantize.dynamic import DynamicQuantization
        from compress.recipe import Recipe

        exports = Recipe(export=({"onnx": {"int8": True}},), student={"from": "x", "layers": 2})
        steps = Recipe(steps=(DynamicQuantization(),), student={"from": "x", "layers": 2})
        for recipe in (exports, steps):
            assert slow_int8(recipe, ["avx2", "avx512f", "avx512_vnni"]) == ""
            assert "not much faster on this processor (no VNNI" in slow_int8(recipe, ["avx2"])
        assert slow_int8(Recipe(student={"from": "x", "layers": 2}), ["avx2"]) == ""

    @pytest.mark.parametrize(
        ("features", "flags", "speedup"),
        [
            (("avx2",), (), None),
            (("avx2", "avx512_bf16"), (), 2.5),
            (("amx_bf16",), (), 1.1),
            (("amx_bf16",), ("--set", "training.precision=bf16"), None),
        ],
    )
    def test_it_says_what_bf16_would_bring(self, call, place, monkeypatch, features, flags, speedup):
        import torch

        from teachers.training import precision

        seconds = {torch.float32: 1.0, torch.bfloat16: 1.0 / (speedup or 9)}
        monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
        monkeypatch.setattr("compress.engine.cost_plan.cpu_features", lambda: features)
        monkeypatch.setattr(precision, "seconds_of_product", lambda left, _: seconds[left.dtype])
        monkeypatch.setattr("compress.engine.cost_plan.MEASURED_SECONDS", 0)
        code, out, _ = call("plan", place / "recipe.yaml", *flags)
        assert code == 0
        said = "this processor multiplies 2.5 x as fast in bf16 as in float32, timed here; training: {precision: bf16} "
        assert (said in out) is (speedup == 2.5)
        assert (" in bf16 " in out) is (speedup == 2.5)

    def test_as_a_table(self, call, place):
        code, out, _ = call("plan", place / "recipe.yaml")
        assert code == 0
        assert cells(out, "teacher")[-1] == "100%"
        assert cells(out, "1. distill.logits")[1] == "40"
        assert cells(out, "1. distill.logits")[3] == "5"
        assert re.search(r"all together about \d+ s on this machine", out)
