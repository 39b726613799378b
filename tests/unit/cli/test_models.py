"""``compress teach``, ``run``, ``history`` and ``eval``."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tests.unit.cli.conftest import ROOT, cells


class TestTeach:
    def test_from_flags(self, call, place, tmp_path):
        out = tmp_path / "trained"
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

    def test_a_recipe_can_give_the_shape(self, call, place, tmp_path):
        options = "{normalization_type: layer_norm, num_feedforward_networks: 1, intra_bottleneck_size: 48}"
        path = tmp_path / "teach.yaml"
        path.write_text(
            f"task: {{kind: masked-lm, data: {place / 'data'}}}\n"
            f"teacher:\n  model: {place / 'teacher'}\n  finetune: {{max_steps: 1}}\n"
            f"  shape: {{family: mobilebert, layers: 2, embedding_size: 16, options: {options}}}\n",
            encoding="utf-8",
        )
        assert call("check", path)[0] == 0
        first, second, third = (tmp_path / name for name in ("first", "second", "third"))
        assert call("teach", "--recipe", path, "--out", first)[0] == 0
        config = json.loads((first / "config.json").read_text(encoding="utf-8"))
        assert config["architectures"] == ["MobileBertForMaskedLM"]
        assert (config["num_hidden_layers"], config["intra_bottleneck_size"]) == (2, 48)
        assert call("teach", "--recipe", path, "--out", second)[0] == 0
        weights = [(out / "model.safetensors").read_bytes() for out in (first, second)]
        assert weights[0] == weights[1]
        heads = ("--set", "teacher.shape.heads=2")  # the same first weights, another network
        assert call("teach", "--recipe", path, *heads, "--out", third)[0] == 0
        assert (third / "model.safetensors").read_bytes() != weights[0]
        code, _, err = call("check", path, "--set", "teacher.shape.heads=5")
        assert code == 2
        assert "teacher.shape: heads: 5 heads do not divide the bottleneck of 48" in err
        code, _, err = call("check", path, "--set", "teacher.finetune=null")
        assert code == 2
        assert "teacher.shape: new weights know nothing yet; add finetune, which trains them" in err

    def test_what_options_say_holds_for_the_next_command_or_is_refused(self, call, place, tmp_path):
        text = (place / "recipe.yaml").read_text(encoding="utf-8")
        base = f"{{model: {place / 'teacher'}, finetune: {{max_steps: 1, seed: 3}}}}"
        path = tmp_path / "teach.yaml"
        path.write_text(text.replace(f"{{model: {place / 'teacher'}}}", base), encoding="utf-8")
        code, _, err = call("teach", "--recipe", path, "--seed", 7)
        assert (code, "--seed: the recipe says this already (teacher.finetune.seed: 3)" in err) == (2, True), err
        path.write_text(path.read_text(encoding="utf-8").replace(", seed: 3", ""), encoding="utf-8")
        code, _, err = call("teach", "--recipe", path, "--seed", 7, "--batch-size", 4)
        assert code == 0, err
        again = f"compress run {path} --set teacher.finetune.batch_size=4 --set seed=7"
        assert again in err, "it finds this teacher, not another"
        code, _, err = call("teach", "--recipe", path, "--shape", "layers: 1, heads: 2")
        assert code == 0, err
        assert f"compress run {path} --set 'teacher.shape={{layers: 1, heads: 2}}'" in err
        set_alike = ("--set", "teacher.shape={layers: 1, heads: 2}")
        code, _, err = call("teach", "--recipe", path, *set_alike)
        assert code == 0, err
        assert len(list((tmp_path / "home" / "teachers").iterdir())) == 2, "the same teacher is found"

    def test_a_shape_is_read_before_anything_is_learned_and_only_for_what_is_fine_tuned(self, call):
        path = ROOT / "compress" / "recipes" / "pretrain-albert.yaml"
        for shape, problem in (("layer: 1", "--shape: unknown field 'layer'"), ("layers: 1", "--shape: is of what is")):
            code, _, err = call("teach", "--recipe", path, "--shape", shape)
            assert (code, problem in err) == (2, True), err

    def test_what_is_missing(self, call, place):
        assert call("teach", "--base", "b") == (
            2,
            "",
            "--task, --data must be given, or --recipe with a file that says it\n",
        )
        code, _, err = call("teach", "--recipe", place / "recipe.yaml")
        assert code == 2
        assert "no teacher with a finetune or a pretrain block; there is nothing to teach" in err

    def test_wrong_values(self, call):
        code, _, err = call("teach", "--base", "b", "--task", "clasification", "--data", "d", "--epochs", "-1")
        assert code == 2
        assert "arguments: task: kind: got 'clasification', must be one of 'classification'" in err
        assert "arguments: teacher: finetune.training.epochs: got -1.0, must be a number above 0" in err


class TestRun:
    def test_json_on_standard_output_and_progress_on_standard_error(self, ran):
        out, found, said = ran
        assert found["folder"] == str(out)
        assert found["model"] == str(out / "model")
        assert found["exports"] == {"onnx": str(out / "onnx")}
        assert Path(found["report"]).is_file()
        assert [result["name"] for result in found["results"]] == ["teacher", "small", "onnx"]
        assert found["results"][1]["size"]["parameters"] < found["results"][0]["size"]["parameters"]
        assert "distill.logits: started" in said
        assert "prune.layers: done" in said

    def test_a_folder_that_holds_a_run_is_refused_without_resume(self, call, place, ran):
        out, _, _ = ran
        code, _, err = call("run", place / "recipe.yaml", "--out", out)
        assert code == 2
        assert "add --resume" in err
        code, _, err = call("run", place / "recipe.yaml", "--out", out, "--resume")
        assert code == 2
        assert "holds a run of another recipe" in err

    def test_history(self, call, ran):
        out, _, _ = ran
        code, said, err = call("history", out / "model")
        assert (code, err) == (0, "")
        assert [line.split()[0] for line in said.splitlines()] == [
            *("step", "source", "student", "distill.logits", "prune.layers")
        ]
        records = json.loads(call("history", out / "model", "--json")[1])
        assert records[2]["config"]["training"]["epochs"] == 2
        assert all(one["weights_after"] == two["weights_before"] for one, two in itertools.pairwise(records))

    def test_history_of_what_has_none(self, call, place, ran):
        code, _, err = call("history", ran[0] / "onnx")
        assert (code, err) == (
            2,
            f"{ran[0] / 'onnx'}: is an export; ask for the history of the model folder it was made from\n",
        )
        code, _, err = call("history", place / "data")
        assert code == 2
        assert f"{place / 'data'}: no config.json here" in err


class TestEval:
    def test_against_another_model(self, call, place, ran, tmp_path):
        page, kept = tmp_path / "page.html", tmp_path / "result.json"
        flags = ("--data", place / "data", "--against", place / "teacher", "--no-latency", "--split", "test")
        code, out, _ = call("eval", ran[0] / "model", *flags, "--json", kept, "--html", page)
        assert code == 0
        assert cells(out, "teacher")[0] == "teacher"
        assert "non-inferior" in out or "not shown" in out or "inferior" in out
        teacher, model = json.loads(kept.read_text(encoding="utf-8"))
        assert teacher["split"] == model["split"] == "test"
        assert model["comparison"]["reference"] == "teacher"
        assert page.read_text(encoding="utf-8").startswith("<!")

    def test_perturbed_texts(self, call, place, ran, tmp_path):
        page, kept = tmp_path / "page.html", tmp_path / "result.json"
        flags = ("--data", place / "data", "--no-latency", "--split", "test", "--stress")
        against = ("--against", place / "teacher")
        code, out, err = call("eval", ran[0] / "onnx", *flags, *against, "--json", kept, "--html", page)
        assert code == 0, err
        teacher, model = json.loads(kept.read_text(encoding="utf-8"))
        assert "stress" not in teacher
        rows = {row["rule"]: row for row in model["stress"]}
        assert rows["clean"]["score"] == model["scores"]["accuracy"]
        assert rows["clean"]["reference"] == teacher["scores"]["accuracy"]
        assert rows["upper case"]["changed"] == model["examples"]
        assert rows["negation"]["score"] is None
        assert cells(out, "upper case")[:3] == ["upper case", "40 of 40", f"{rows['upper case']['reference']:.4f}"]
        assert "<h2>Perturbed texts</h2>" in page.read_text(encoding="utf-8")
        again = call("eval", ran[0] / "onnx", *flags, *against, "--json", "-")[1]
        assert json.loads(again)[1]["stress"] == model["stress"]
        code, _, err = call("eval", ran[0] / "onnx", *flags)
        assert (code, err) == (2, "--stress: compares a model with its teacher; add --against MODEL\n")

    def test_attributions(self, call, place, ran, tmp_path):
        page, kept = tmp_path / "page.html", tmp_path / "result.json"
        flags = ("--data", place / "data", "--no-latency", "--split", "test", "--attributions")
        against = ("--against", place / "teacher")
        code, out, err = call("eval", ran[0] / "model", *flags, *against, "--json", kept, "--html", page)
        assert code == 0, err
        teacher, model = json.loads(kept.read_text(encoding="utf-8"))
        assert "attributions" not in teacher
        rows = {row["method"]: row for row in model["attributions"]["rows"]}
        assert list(rows) == ["integrated gradients", "attention rollout", "random order"]
        assert cells(out, "integrated gradients")[1] == str(model["examples"])
        assert "<h2>Attributions</h2>" in page.read_text(encoding="utf-8")
        code, _, err = call("eval", ran[0] / "onnx", *flags, *against)
        assert (code, "onnx is no single torch model, so it has no gradients" in err) == (2, True)
        code, _, err = call("eval", ran[0] / "model", *flags)
        assert (code, err) == (2, "--attributions: compares a model with its teacher; add --against MODEL\n")

    def test_perturbed_texts_and_attributions_of_a_run(self, call, place, tmp_path):
        changes = ("--set", "export=[onnx]", "--set", "evaluate.stress=true", "--set", "evaluate.attributions=true")
        code, _, err = call("run", place / "recipe.yaml", "--out", tmp_path / "out", *changes)
        assert code == 0, err
        results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
        assert [result["name"] for result in results if "stress" in result] == ["small", "onnx"]
        kept = json.loads((tmp_path / "out" / "results" / "onnx" / "result.json").read_text(encoding="utf-8"))
        assert [row["rule"] for row in kept["stress"]][:2] == ["clean", "neighbouring keys"]
        assert [result["name"] for result in results if "attributions" in result] == ["small"]
        (told,) = [result["attributions"] for result in results if "attributions" in result]
        assert [row["method"] for row in told["rows"]][-1] == "random order"
        page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        card = (tmp_path / "out" / "model" / "README.md").read_text(encoding="utf-8")
        for title in ("Perturbed texts", "Attributions"):
            assert f"<h2>{title}</h2>" in page
            assert f"### {title}" in card
        before = (tmp_path / "out" / "results.json").read_bytes()
        assert call("run", place / "recipe.yaml", "--out", tmp_path / "out", "--resume", *changes)[0] == 0
        assert (tmp_path / "out" / "results.json").read_bytes() == before

    def test_attributions_of_what_no_step_changed_are_those_of_the_reference(self, call, place, tmp_path):
        changes = ("--set", "steps=[]", "--set", "student={from: teacher}", "--set", "evaluate.attributions=true")
        code, _, err = call("run", place / "recipe.yaml", "--out", tmp_path / "out", *changes)
        assert code == 0, err
        page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        assert "Attributions are not compared: no step changed a weight" in page

    def test_an_export(self, call, place, ran):
        code, out, _ = call("eval", ran[0] / "onnx", "--data", place / "data", "--no-latency", "--json", "-")
        assert code == 0
        (found,) = json.loads(out)
        (same,) = [result for result in ran[1]["results"] if result["name"] == "onnx"]
        assert found["scores"] == same["scores"]

    def test_an_export_on_another_processor(self, call, place, ran, tmp_path):
        code, _, err = call("export", ran[0] / "model", "--out", tmp_path / "x", "--int8")
        assert code == 0, err
        code, out, err = call("eval", tmp_path / "x", "--data", place / "data", "--arithmetic", "avx2", "--json", "-")
        assert code == 0, err
        (result,) = json.loads(out)
        assert result["name"] == "x on avx2"
        assert not result["latency"]
        code, _, err = call("eval", tmp_path / "x", "--data", place / "data", "--arithmetic", "avx3")
        assert (code, "--arithmetic: got 'avx3'; did you mean 'avx2'?" in err) == (2, True)
        code, _, err = call("eval", ran[0] / "model", "--data", place / "data", "--arithmetic", "vnni")
        assert (code, "is no export" in err) == (2, True)

    def test_mistakes(self, call, place):
        code, _, err = call("eval", place / "teacher", "--data", place / "nowhere")
        assert code == 2
        assert "nowhere" in err
        code, _, err = call("eval", place / "teacher", "--data", place / "data", "--split", "tset", "--no-latency")
        assert code == 2
        assert "tset" in err
        code, _, err = call("eval", place / "teacher", "--data", place / "data", "--json", place / "no" / "x.json")
        assert (code, err) == (2, f"{place / 'no' / 'x.json'}: its folder does not exist\n")
