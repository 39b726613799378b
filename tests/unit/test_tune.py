"""The variants of an export: all are measured, the fastest that agrees well enough is kept, and the table says so."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from compress.export import tune as module
from compress.export.check.probes import synthetic_examples
from compress.export.runtime.answering import Runtime, default_threads
from compress.export.targets.target_options import TargetBlock
from compress.export.targets.target_registry import get_target
from compress.export.tune import tune
from compress.quantize.static import StaticQuantization
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.data.loading import Task
from eval.errors import CompressError, UserError
from eval.measurement import measure
from eval.task import Examples
from tests.tiny import tiny_task, tiny_taskmodel

SHORT = {"seconds": 0.05, "agreement": 0.0, "targets": ("onnx",)}


@pytest.fixture
def model_and_task():
    task = tiny_task()
    return tiny_taskmodel("bert", task.spec), task


def test_the_fastest_is_kept_and_the_table_with_it(model_and_task, tmp_path, monkeypatch):
    model, task = model_and_task
    monkeypatch.setattr(module, "_threads", lambda: [1, 2])
    found = tune(model, tmp_path / "x", task, **SHORT)
    assert {trial.variant for trial in found.trials} == set(module.VARIANTS) - {"int8, as recorded"}
    assert [(trial.threads, trial.dropped) for trial in found.trials].count((2, "")) == 5
    times = [trial.milliseconds for trial in found.trials]
    assert times == sorted(times)
    assert found.chosen == found.trials[0]
    manifest = json.loads((tmp_path / "x" / "export.json").read_text())
    assert manifest["tuned"]["threads"] == found.chosen.threads
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = Runtime(tmp_path / "x").session.get_session_options()
    assert options.intra_op_num_threads == min(found.chosen.threads, default_threads() or 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Runtime(tmp_path / "x").session.get_session_options().intra_op_num_threads == 3
    assert [trial["variant"] for trial in manifest["tuned"]["trials"]] == [trial.variant for trial in found.trials]
    assert Runtime(tmp_path / "x").predict(["a line"]).answers
    assert found.report.folder == tmp_path / "x"


def test_openvino_competes_where_it_is_installed(model_and_task, tmp_path):
    model, task = model_and_task
    found = tune(model, tmp_path / "x", task, seconds=0.05, agreement=0.0)
    tried = {trial.variant for trial in found.trials if trial.target == "openvino"}
    expected = {"fp32", "int8, per-token dynamic", "int8, static"}
    assert tried == (expected if find_spec("openvino") else set())
    with pytest.raises(UserError, match="variants for web are not measured, those for onnx and openvino are"):
        tune(model, tmp_path / "y", task, targets=("web",))


def test_every_precision_of_a_target_is_a_variant(model_and_task, monkeypatch):
    model, task = model_and_task
    target = get_target("onnx")
    both = {" with bf16": TargetBlock(agreement=0.5), "": TargetBlock()}
    monkeypatch.setattr(type(target), "precisions", lambda self, options: both)
    monkeypatch.setattr(module, "VARIANTS", {"fp32": module._float})
    found = [(variant, options) for _, variant, _, options in module._candidates(model, task, [target])]
    assert found == [("fp32 with bf16", {}), ("fp32", {})]


@pytest.mark.slow
def test_throughput_is_another_goal(model_and_task, tmp_path):
    model, task = model_and_task
    rates = [trial.per_second for trial in tune(model, tmp_path / "x", task, goal="throughput", **SHORT).trials]
    assert rates == sorted(rates, reverse=True)


def test_what_answers_too_badly_is_out(model_and_task, tmp_path, monkeypatch):
    model, task = model_and_task
    monkeypatch.setattr(module, "VARIANTS", {"fp32": module._float, "int8": module._by_token})
    score = measure(model, task).score
    kept = tune(model, tmp_path / "x", task, least_score=score, **SHORT)
    assert kept.chosen.score is not None
    assert kept.chosen.score >= score
    with pytest.raises(
        CompressError, match=r"no variant agrees well enough \(onnx fp32: scores 0\.\d+; onnx int8: scores"
    ):
        tune(model, tmp_path / "y", task, least_score=1.1, **SHORT)
    assert not (tmp_path / "y").exists()


@pytest.mark.slow
def test_synthetic_texts_that_the_model_does_not_decide_rule_nothing_out(model_and_task, tmp_path):
    model, task = model_and_task
    texts = Examples(synthetic_examples(model.encoder, 200), "validation")
    with torch.no_grad():  # the two labels are equally likely
        features = model.encoder.encode(texts)
        logits = np.concatenate([model.forward(model.encoder.collate([one])) for one in features])
        model.model.classifier.bias[0] += float(np.median(logits[:, 1] - logits[:, 0]))
    given = {**SHORT, "agreement": 0.98}
    found = tune(model, tmp_path / "x", Task(task.spec, {"validation": texts}), synthetic=True, **given)
    dropped = {trial.variant: trial.dropped for trial in found.trials}
    assert dropped["int8, per-token dynamic"] == dropped["int8, mixed dynamic"] == ""
    assert dropped["int8, per-tensor dynamic"] == "it needs real texts to be judged on"
    as_if_real = tune(model, tmp_path / "y", Task(task.spec, {"validation": texts}), **given)
    assert next(one for one in as_if_real.trials if "per-token" in one.variant).dropped


def test_ranges_of_a_recipe_are_kept(model_and_task, tmp_path):
    from compress.engine.steps import run

    model, task = model_and_task
    inputs = Inputs(calibration=task.train[:8])
    quantized = run(Recipe(steps=(StaticQuantization(keep_float="none"),)), model, inputs)
    found = tune(quantized, tmp_path / "x", task, **SHORT)
    assert {trial.variant for trial in found.trials} == {"fp32", "int8, as recorded"}


def test_without_examples_there_is_nothing_to_measure(model_and_task, tmp_path):
    model, task = model_and_task
    task.splits["validation"] = task.validation[:0]
    with pytest.raises(UserError, match="there are no examples to choose on"):
        tune(model, tmp_path / "x", task)


def test_a_folder_that_is_no_export_is_not_replaced(model_and_task, tmp_path, monkeypatch):
    model, task = model_and_task
    monkeypatch.setattr(module, "VARIANTS", {"fp32": module._float})
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is there already and no export"):
        tune(model, tmp_path, task, **SHORT)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    for _ in range(2):  # an earlier export is
        tune(model, tmp_path / "x", task, **SHORT)
