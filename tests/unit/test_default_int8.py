"""The form that an 8-bit export takes by itself: static ranges, and what is tried where the gate asks for it."""

import json
from dataclasses import replace

import pytest

from compress.architectures.bilstm_network import BiLstmConfig, BiLstmForSequenceClassification
from compress.export import default_int8, export, folder
from compress.export.check.gate import Remembered
from compress.export.default_int8 import default_forms
from compress.modules.int8_scheme import Int8
from compress.quantize.calibration import Calibration
from eval.errors import CompressError, UserError
from eval.kinds.language.causal_lm import CausalLanguage
from tests.tiny import tiny_task, tiny_taskmodel

STATIC = "static quantization"
MIXED = "dynamic quantization, per-token in feed-forward networks and per-tensor elsewhere"
DYNAMIC = ["per-tensor dynamic quantization", "per-token dynamic quantization"]


@pytest.fixture(scope="module")
def task():
    return tiny_task()


@pytest.fixture(scope="module")
def bert(task):
    return tiny_taskmodel("bert", task.spec)


def manifest_of(report):
    return json.loads((report.folder / "export.json").read_text(encoding="utf-8"))


def test_examples_give_static_ranges_and_none_give_per_token_ranges_where_outliers_are(bert, task, tmp_path):
    given = {"int8": True, "examples": task.validation, "agreement": 0.0}
    known = manifest_of(export(bert, tmp_path / "static", calibration=task.train[:8], **given))
    assert (known["int8"]["activations"], len(known["int8"]["ranges"])) == ("static", 19)
    assert known["int8"]["smooth"].keys() == known["int8"]["ranges"].keys()
    assert known["int8"]["rounding"] == "gptq"
    assert known["chosen_on"]["export ranges"] == task.train[:8].digest
    assert [tried["form"] for tried in known["tries"]] == [STATIC]
    known = manifest_of(export(bert, tmp_path / "dynamic", **given))
    assert (known["int8"]["activations"], known["int8"]["rounding"]) == ("tensor", "nearest")
    layers = [f"bert.encoder.layer.{number}." for number in range(bert.model.config.num_hidden_layers)]
    assert known["int8"]["by_token"] == [f"{at}{part}.dense" for at in layers for part in ("intermediate", "output")]
    assert "export ranges" not in known["chosen_on"]


def test_with_examples_per_tensor_ranges_come_before_the_mixed_form(bert, task):
    names = [form.name for form in default_forms(bert, ("tensor", "token"), task.train[:8])]
    assert names == [DYNAMIC[0], MIXED, DYNAMIC[1]]
    assert [form.name for form in default_forms(bert, ("tensor", "token"))] == [MIXED, DYNAMIC[1]]
    assert [form.name for form in default_forms(bert, ("token",))] == [DYNAMIC[1]]


def test_a_model_without_feed_forward_networks_gets_per_token_ranges(bert):
    config = BiLstmConfig(vocab_size=len(bert.tokenizer), embedding_size=16, hidden_size=16, num_labels=2)
    lstm = replace(bert, model=BiLstmForSequenceClassification(config).eval())
    assert [form.name for form in default_forms(lstm, ("tensor", "token"))] == [DYNAMIC[1]]


def test_the_biases_of_a_qa_model_make_up_for_the_rounding(tmp_path):
    task = tiny_task("qa")
    model = tiny_taskmodel("bert", task.spec)
    given = {"int8": True, "examples": task.validation, "agreement": 0.0}
    known = manifest_of(export(model, tmp_path / "x", calibration=task.train[:8], **given))
    assert [tried["form"] for tried in known["tries"]] == [STATIC]
    assert known["int8"]["bias"].keys() == known["int8"]["ranges"].keys()
    width = model.model.config.intermediate_size
    assert len(known["int8"]["bias"]["bert.encoder.layer.0.intermediate.dense/MatMul"]) == width


def test_layers_fall_back_by_the_change_of_the_logits_and_then_the_whole(bert, task, monkeypatch):
    harm = {f"layer {number}": float(number) for number in range(4)}
    monkeypatch.setattr(Calibration, "by_harm", lambda self, scheme: dict(sorted(harm.items(), reverse=True)))
    forms = list(default_forms(bert, ("static", "token"), task.train[:8]))
    assert [form.name for form in forms] == [
        STATIC,
        f"{STATIC}, 1 layer in float32",
        f"{STATIC}, 2 layers in float32",
        DYNAMIC[1],
    ]


def test_the_layer_that_moves_the_logits_most_stays_in_float_first(bert, task):
    examples = task.train[:8]
    static, fewer, *_ = default_forms(bert, ("static",), examples)
    [kept] = set(static.scheme.ranges) - set(fewer.scheme.ranges)
    alone = Calibration.of(bert, examples).by_harm(static.scheme)
    assert kept == max(alone, key=alone.get)
    assert list(alone.values()) == sorted(alone.values(), reverse=True)


def agreeing(monkeypatch, shares):
    """Let the gate find these shares of equal predictions, one form after the other."""
    shares, compare = iter(shares), folder.compare

    def compared(*given, agreement=1.0, **limits):
        share = next(shares)
        gate = compare(*given, agreement=0.0, **limits)
        problems = () if share >= agreement else ("too few",)
        return folder.GateReport(**{**vars(gate), "agreement": share, "problems": problems})

    monkeypatch.setattr(folder, "compare", compared)


def test_the_first_form_that_is_good_enough_is_kept_and_the_tries_are_told(bert, task, tmp_path, monkeypatch):
    agreeing(monkeypatch, (0.98, 0.96, 0.999, 1.0))
    report = export(bert, tmp_path / "x", int8=True, examples=task.validation, calibration=task.train[:8])
    known = manifest_of(report)
    assert known["quantized"]["linear"] == 17
    assert known["tries"] == [
        {"form": STATIC, "agreement": 0.98, "passed": True},
        {"form": f"{STATIC}, 1 layer in float32", "agreement": 0.96, "passed": False},
        {"form": f"{STATIC}, 2 layers in float32", "agreement": 0.999, "passed": True},
    ]
    assert report.notes == (
        f"tried {STATIC}: 98.00% of the predictions are those of the model, wanted are 99.00%",
        f"tried {STATIC}, 1 layer in float32: 96.00% of the predictions are those of the model, wanted are 99.00%",
    )


def test_if_none_is_good_enough_the_one_that_agrees_most_is_kept(bert, task, tmp_path, monkeypatch):
    from compress.export import folder as module

    shares = iter((0.98, 0.97, 0.98))
    compare = module.compare
    changed = lambda gate: module.GateReport(**{**vars(gate), "agreement": next(shares), "problems": ()})  # noqa: E731
    monkeypatch.setattr(module, "compare", lambda *given, **limits: changed(compare(*given, **limits)))
    known = manifest_of(export(bert, tmp_path / "x", int8=True, examples=task.validation))
    assert known["int8"]["activations"] == "tensor"
    assert [tried["form"] for tried in known["tries"]] == [MIXED, DYNAMIC[1]]


def test_all_forms_are_tried_before_an_export_is_refused(bert, task, tmp_path, monkeypatch):
    monkeypatch.setattr(default_int8, "IN_FLOAT", (1,))
    with pytest.raises(CompressError, match=r"needed are 101\.00%"):
        export(bert, tmp_path / "x", int8=True, examples=task.validation, calibration=task.train[:8], agreement=1.01)
    assert list(tmp_path.iterdir()) == []


def test_more_layers_stay_in_float_only_while_every_form_would_be_refused(bert, task):
    asked = iter((0.97, 0.97, 0.97, None))
    forms = [
        form.name for form in default_forms(bert, ("static", "token"), task.train[:8], lacking=lambda: next(asked))
    ]
    assert forms[3:] == [DYNAMIC[1], *(f"{DYNAMIC[1]}, {count} layers in float32" for count in (4, 5))]

    def names(lacking):
        return [form.name for form in default_forms(bert, ("static", "token"), task.train[:8], lacking=lacking)]

    counts = [name.removeprefix(f"{DYNAMIC[1]}, ").split()[0] for name in names(lambda: 0.97)[4:]]
    assert counts == ["4", "5", "6", "7", "8", "10", "12", "15", "18"], "never all 19"
    assert names(lambda: None)[3:] == [DYNAMIC[1]]


def test_a_model_that_every_form_turns_is_exported_with_more_layers_in_float32(bert, task, tmp_path, monkeypatch):
    agreeing(monkeypatch, (0.9, 0.91, 0.92, 0.93, 0.93, 0.94, 0.96, 0.975))
    known = manifest_of(export(bert, tmp_path / "x", int8=True, examples=task.validation, calibration=task.train[:8]))
    assert known["tries"][-1] == {"form": f"{DYNAMIC[1]}, 5 layers in float32", "agreement": 0.975, "passed": True}
    assert (len(known["int8"]["exclude"]), known["quantized"]["linear"]) == (5, 14)


def test_the_layers_that_stay_in_float32_are_the_most_harmful_of_the_per_token_form(bert, task):
    asked = iter((0.97, 0.97, None))
    *_, form = default_forms(bert, ("static", "token"), task.train[:8], lacking=lambda: next(asked))
    order = list(Calibration.of(bert, task.train[:8]).by_harm(Int8(reduce_range="pairs")))
    assert form.scheme.exclude == tuple(order[:4])
    assert form.scheme.reduce_range == "pairs"


def test_a_target_without_ranges_at_run_time_keeps_layers_of_the_static_form(bert, task):
    asked = iter((0.97, 0.97, None))
    *_, last = default_forms(bert, ("static",), task.train[:8], lacking=lambda: next(asked))
    assert last.name == f"{STATIC}, 4 layers in float32"
    assert len(last.scheme.ranges) == 15
    assert last.scheme.reduce_range == "pairs"


def test_a_remembered_model_answers_the_same_inputs_once(bert, task):
    calls = []

    class Counted:
        name, encoder = "counted", bert.encoder

        def forward(self, inputs):
            calls.append(inputs)
            return bert.forward(inputs)

    model = Remembered(Counted())
    one, other = (model.encoder.collate(model.encoder.encode(task.validation[:n])) for n in (1, 2))
    assert model.forward(one) is model.forward(dict(one))
    assert model.forward(other).shape == (2, 2)
    assert len(calls) == 2


def test_excluded_modules_stay_in_float_in_every_form(bert, task, tmp_path):
    """Before, a module that was named turned the export into per-token dynamic quantization."""
    first = "bert.encoder.layer.0"
    given = {"int8": True, "exclude": [first], "examples": task.validation, "agreement": 0.0}
    known = manifest_of(export(bert, tmp_path / "x", calibration=task.train[:8], **given))
    assert [tried["form"] for tried in known["tries"]] == [STATIC]
    assert (known["int8"]["exclude"], known["quantized"]["linear"]) == ([first], 13)
    assert not any(name.startswith(first) for name in known["int8"]["ranges"])
    asked = iter((0.9, None))
    forms = default_forms(bert, ("static", "token"), task.train[:8], (first,), lambda: next(asked))
    assert all(first in form.scheme.exclude for form in forms)
    with pytest.raises(UserError, match="no module is called 'clasifier'"):
        export(bert, tmp_path / "y", int8=True, exclude=["clasifier"])


@pytest.mark.parametrize(("good_enough", "tries"), [(0.0, 1), (1.1, 6)])
def test_a_kind_of_task_says_what_is_good_enough(good_enough, tries, tmp_path, monkeypatch):
    monkeypatch.setattr(CausalLanguage, "good_enough", good_enough)
    task = tiny_task("causal-lm")
    model = tiny_taskmodel("gpt2", task.spec)
    given = {"examples": task.validation[:8], "calibration": task.train[:8]}
    report = export(model, tmp_path / "out", "generator", int8=True, **given)
    assert len(manifest_of(report)["tries"]) == tries
