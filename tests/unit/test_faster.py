"""What else would be much faster than an export that was written, and ``fastest``: the choice in one word."""

import json
from types import SimpleNamespace

import pytest

from compress.export import export, faster
from compress.export.runtime.answering import Runtime
from compress.export.targets.onnx import OnnxTarget
from eval.cost.timing import Median
from eval.errors import UserError
from tests.tiny import tiny_task, tiny_taskmodel


class Other(OnnxTarget):
    """Another target that is measured, with the same library."""

    name = "other"


@pytest.fixture
def written(tmp_path, monkeypatch):
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec)
    targets = {"onnx": OnnxTarget(), "other": Other()}
    monkeypatch.setattr(faster, "tuned_targets", lambda: tuple(targets))
    monkeypatch.setattr(faster, "get_target", targets.get)
    monkeypatch.setattr(faster, "SECONDS", 0.01)
    write = lambda model, place, to, **given: export(model, place, "onnx", agreement=0.0, **given)  # noqa: E731
    monkeypatch.setattr(faster, "export", write)
    return model, export(model, tmp_path / "out", int8=True, agreement=0.0)


@pytest.mark.parametrize(("ratio", "told"), [(1.19, ""), (1.35, "other in 8 bits would be 1.4 times as fast")])
def test_another_variant_is_named_if_it_is_much_faster(written, monkeypatch, ratio, told):
    seen = []

    def known(rows, name, against):
        seen.append((name, against, len(rows)))
        return Median(ratio if name == "other in 8 bits" else 1.0, 0.0, 9.0, 0.95, 9)

    monkeypatch.setattr(faster, "speedup", known)
    said = faster.faster(*written)
    assert said.startswith(told)
    assert bool(said) == bool(told)
    assert sorted(seen)[:2] == [("other in 8 bits", faster.WRITTEN, 3), ("other in float", faster.WRITTEN, 3)]


def test_where_one_runtime_is_installed_nothing_is_timed(written, monkeypatch):
    monkeypatch.setattr(faster, "tuned_targets", lambda: ("onnx",))
    monkeypatch.setattr(faster, "latency", None)
    assert faster.faster(*written) == ""


def test_an_export_in_float_is_held_against_floats(monkeypatch):
    targets = {"onnx": OnnxTarget(), "other": Other()}
    monkeypatch.setattr(faster, "tuned_targets", lambda: tuple(targets))
    monkeypatch.setattr(faster, "get_target", targets.get)
    assert list(faster._others("onnx", int8=False)) == [("other", False)]
    assert set(faster._others("onnx", int8=True)) == {("other", False), ("other", True)}


def test_the_fastest_is_no_target_of_its_own(tmp_path):
    with pytest.raises(UserError, match=r"is measured with examples; call compress\.export\.tune\.tune"):
        export(tiny_taskmodel("bert"), tmp_path / "x", "fastest")


def test_a_recipe_asks_for_the_fastest_in_one_word(tmp_path, monkeypatch):
    from compress.engine import run_exports
    from compress.export import tune
    from compress.recipe.from_yaml import parse_recipe

    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec)
    recipe = parse_recipe("seed: 1\nteacher: {model: x}\nexport: [fastest: {agreement: 0.0, goal: throughput}]\n")
    monkeypatch.setitem(tune.tune.__kwdefaults__, "seconds", 0.02)
    monkeypatch.setattr(tune, "VARIANTS", {"int8": tune._by_tensor})
    monkeypatch.setattr(run_exports, "content_of", lambda folder: "a model")
    prepared = SimpleNamespace(task=task, inputs=SimpleNamespace(calibration=task.train[:8]))
    for _ in range(2):  # the second time it is found
        exports = run_exports.write_exports(recipe, model, prepared, tmp_path)
        assert exports == {"fastest": tmp_path / "fastest"}
        monkeypatch.setattr(tune, "tune", None)
    manifest = json.loads((tmp_path / "fastest" / "export.json").read_text(encoding="utf-8"))
    assert (manifest["target"], manifest["tuned"]["goal"]) == ("onnx", "throughput")
    assert run_exports.runs_here(tmp_path / "fastest")
    assert run_exports.form_in(tmp_path / "fastest") == "onnx-int8"
    assert Runtime(tmp_path / "fastest").predict(["a line"]).answers


def test_a_recipe_without_examples_to_choose_on_is_refused_before_it_trains(tmp_path):
    from compress.engine.preflight import _export_problems
    from compress.recipe.blocks import EvaluateBlock
    from compress.recipe.from_yaml import parse_recipe
    from eval.data.loading import Task
    from eval.data.roles import Roles

    recipe = parse_recipe("seed: 1\nteacher: {model: x}\nexport: [fastest: {}, onnx: {}]\n")
    task = tiny_task()
    nothing = Roles(Task(task.spec, {"train": task.train}))
    for roles in (None, nothing):
        ((place, sentence),) = _export_problems(recipe, roles, None)
        assert place == ("export", 0)
        assert sentence.startswith("export 1, fastest: there are no examples to choose on; add a validation split")
    assert list(_export_problems(recipe, Roles(task), None)) == []
    ((_, sentence),) = _export_problems(recipe.model_copy(update={"evaluate": EvaluateBlock()}), nothing, None)
    assert "to choose on: train has 40 examples, 40 of them with labels, and a part is carved from 200 on;" in sentence
