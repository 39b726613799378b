"""Exporting: what is written, what is proven before it is written, and what is left alone when it is refused."""

import json
import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from compress.artifact.record import Record
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.check.gate import compare
from compress.export.check.probes import odd_examples
from compress.export.runtime.answering import Runtime
from compress.modules.int8_scheme import Int8, is_excluded, scheme_of
from compress.onnx_graph import build as exporting
from compress.onnx_graph import tracing
from compress.onnx_graph.float_graph import float_graph
from compress.onnx_graph.rewrites import module_of
from compress.quantize.dynamic import DynamicQuantization, mixed
from compress.recipe import Recipe
from compress.share.lowrank import LowRank
from compress.technique import Inputs
from eval.errors import CompressError, UserError
from eval.inference import predict
from eval.measurement import measure
from tests.tiny import FFN, HIDDEN, LAYERS, tiny_spec, tiny_task, tiny_taskmodel

LISTED = {"model.onnx", "tokenizer.json", "encoder.json", "conformance.json"}
FILES = {*LISTED, "export.json", "config.json", "predict.py", "README.md"}


@pytest.fixture(scope="module")
def bert():
    return tiny_taskmodel("bert")


@pytest.fixture(scope="module")
def examples():
    return tiny_task().validation


def graph_of(folder):
    return onnx.load(str(folder / "model.onnx")).graph


# ---- what is written


def test_a_float_export_answers_as_the_model(bert, examples, tmp_path):
    report = export_onnx(bert, tmp_path / "out", examples=examples, name="tiny")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert (report.scheme, report.exporter) == ("fp32", "tracer")
    assert report.bytes == report.float_bytes == (tmp_path / "out" / "model.onnx").stat().st_size
    assert report.gate.agreement == 1.0
    assert report.gate.max_abs_difference < 1e-5
    assert report.gate.batch_difference < 1e-5
    model = Runtime(tmp_path / "out")
    found, expected = model.predict(examples), predict(bert, examples)
    assert model.name == "tiny"
    assert [answer["label"] for answer in found.answers] == [answer["label"] for answer in expected.answers]
    np.testing.assert_allclose(np.stack(found.logits), np.stack(expected.logits), atol=1e-5)


def test_the_manifest_says_what_how_and_where(bert, examples, tmp_path):
    export_onnx(bert, tmp_path / "out", int8=True, examples=examples, agreement=0.9)
    manifest = json.loads((tmp_path / "out" / "export.json").read_text())
    assert manifest["format"] == 1
    assert manifest["task"] == bert.task.model_dump(mode="json")
    assert manifest["source"] == {"name": "model", "weights": bert.digest, "made_from": None}
    assert (manifest["scheme"], manifest["exporter"], manifest["opset"]) == ("int8", "tracer", 17)
    expected = mixed(bert, reduce_range="pairs").model_dump(mode="json")
    assert manifest["int8"] == expected | {"rounding": "nearest"}
    assert manifest["quantized"] == {"linear": 19, "tables": 2, "float": ["classifier"]}
    assert manifest["gate"]["passed"] is True
    assert manifest["gate"]["examples"] == len(examples)
    assert set(manifest["files"]) == LISTED
    assert manifest["machine"]["versions"]["onnxruntime"] == onnxruntime.__version__
    assert "int8" in (tmp_path / "out" / "README.md").read_text()


def test_a_network_of_few_positions_is_measured_at_as_many_tokens_as_it_takes(examples, tmp_path):
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec, max_position_embeddings=40)
    export_onnx(model, tmp_path / "out", examples=examples)
    size = measure(Runtime(tmp_path / "out"), task).size
    assert (size.macs_length, model.size().macs_length) == (40, 40)
    query_and_output, ffn, scores_and_values = 2 * HIDDEN**2, 2 * HIDDEN * FFN, 2 * HIDDEN * 40
    assert model.size().macs - size.macs == 39 * (query_and_output + ffn + scores_and_values)


def test_other_tools_find_a_transformers_config(bert, examples, tmp_path):
    from transformers import AutoConfig

    export_onnx(bert, tmp_path / "out", examples=examples)
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.model_type, config.id2label) == ("bert", {0: "bad", 1: "good"})


@pytest.mark.parametrize(("family", "kind"), [("roberta", "tagging"), ("xlnet", "qa"), ("albert", "masked-lm")])
def test_every_kind_of_head_and_padding(family, kind, tmp_path):
    task = tiny_task(kind, examples=12)
    model = tiny_taskmodel(family, task.spec)
    report = export_onnx(model, tmp_path / "out", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-5
    session = Runtime(tmp_path / "out").session
    assert tuple(value.name for value in session.get_inputs()) == model.encoder.settings.inputs
    expected = ["start_logits", "end_logits"] if kind == "qa" else ["logits"]
    assert [value.name for value in session.get_outputs()] == expected


def test_the_graph_takes_any_batch_and_length(bert, examples, tmp_path):
    export_onnx(bert, tmp_path / "out", examples=examples)
    model, chance = Runtime(tmp_path / "out"), np.random.default_rng(0)
    for rows, tokens in ((1, 1), (1, 32), (7, 3), (3, 64)):
        inputs = {
            "input_ids": chance.integers(5, 60, (rows, tokens)),
            "attention_mask": (np.arange(tokens) < chance.integers(1, tokens + 1, (rows, 1))).astype(np.int64),
            "token_type_ids": chance.integers(0, 2, (rows, tokens)),
        }
        np.testing.assert_allclose(model.forward(inputs), bert.forward(inputs), atol=1e-5)


def test_the_model_is_left_as_it_was(examples, tmp_path):
    model = tiny_taskmodel("bert")
    model.model.train()
    attention = model.model.config._attn_implementation
    before = tiny_taskmodel("bert").digest
    export_onnx(model, tmp_path / "out", int8=True, examples=examples, agreement=0.9)
    assert model.model.training
    assert model.model.config._attn_implementation == attention
    assert model.digest == before
    assert not any(parameter.grad is not None for parameter in model.model.parameters())


def test_half_precision_is_exported_in_float32(examples, tmp_path):
    model = tiny_taskmodel("bert")
    model.model.to(torch.bfloat16)
    report = export_onnx(model, tmp_path / "out", examples=examples, tolerance=0.05)
    assert report.gate.max_abs_difference > 1e-5
    assert {weight.data_type for weight in graph_of(tmp_path / "out").initializer if len(weight.dims) == 2} == {1}
    assert next(model.model.parameters()).dtype == torch.bfloat16


def test_graphs_name_modules_and_hold_no_paths(bert, tmp_path, examples):
    export_onnx(bert, tmp_path / "out", examples=examples)
    raw = (tmp_path / "out" / "model.onnx").read_bytes()
    assert b".py" not in raw
    assert b"site-packages" not in raw
    modules = {module_of(node) for node in graph_of(tmp_path / "out").node}
    assert "bert.encoder.layer.2.attention.self.query" in modules
    assert "classifier" in modules


def test_shared_layers_are_stored_once(tmp_path):
    model = tiny_taskmodel("albert")
    report = export_onnx(model, tmp_path / "out", int8=True, agreement=0)
    queries = [node for node in graph_of(tmp_path / "out").node if ".query" in node.name and "MatMul" in node.op_type]
    assert len(queries) == 3
    assert len({node.input[1] for node in queries}) == 1
    assert report.quantized["linear"] == 1 + 3 * 6 + 1


# ---- int8


def test_int8_holds_int8_weights_and_agrees(bert, examples, tmp_path):
    given = {"examples": examples, "calibration": tiny_task().train[:8]}
    report = export_onnx(bert, tmp_path / "out", int8=True, agreement=0.95, **given)
    weights = {w.name: numpy_helper.to_array(w) for w in graph_of(tmp_path / "out").initializer}
    whole = sum(weight.numel() for weight in bert.model.parameters())
    narrow = sum(array.size for array in weights.values() if array.dtype == np.int8)
    assert narrow > 0.9 * whole
    matrices = [w.astype(int) for name, w in weights.items() if "_int8" in name and w.dtype == np.int8]
    assert len(matrices) == LAYERS * 4 + 2  # queries, keys and values are one, but for the last query; and the pooler
    assert max(np.abs(matrix).max() for matrix in matrices) > 64
    assert max(np.abs(matrix[::2] + matrix[1::2]).max() for matrix in matrices) <= 128
    assert 0 < report.gate.max_abs_difference < 0.1
    assert report.gate.batch_difference < 1e-6
    standard = {node.domain for node in graph_of(tmp_path / "out").node}
    assert standard == {""}


def test_linear_layers_that_follow_each_other_become_8_bit(tmp_path):
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec, hidden_size=64)
    low = run(
        Recipe(steps=(LowRank(keep=0.9, recover=False),)), model, Inputs(train=task.train, calibration=task.train)
    )
    report = export_onnx(low, tmp_path / "out", int8=True, examples=task.validation, agreement=0.5)
    plain = export_onnx(model, tmp_path / "plain", int8=True, examples=task.validation, agreement=0.5)
    assert report.quantized["linear"] > plain.quantized["linear"]


def test_excluded_modules_stay_in_float(bert, examples, tmp_path):
    scheme = Int8(exclude=("bert.encoder.layer.1", "*.query"))
    report = export_onnx(bert, tmp_path / "out", int8=scheme, examples=examples, agreement=0.9)
    kept = set(report.quantized["float"])
    assert "bert.encoder.layer.1.output.dense" in kept
    assert "bert.encoder.layer.0.attention.self.query" in kept
    assert "bert.encoder.layer.0.attention.self.key" not in kept
    assert report.quantized["linear"] == 19 - 6 - 2


def test_patterns_name_modules_or_what_they_hold():
    assert is_excluded("bert.encoder.layer.1.output.dense", ["bert.encoder.layer.1"])
    assert not is_excluded("bert.encoder.layer.11.output.dense", ["bert.encoder.layer.1"])
    assert is_excluded("bert.encoder.layer.1.attention.self.query", ["*.query"])


def test_the_lineage_chooses_the_scheme(bert, examples, tmp_path):
    class Known(type(bert)):
        lineage = ()

    step = DynamicQuantization(activations="tensor").apply(bert, Inputs(), None)
    records = [
        Record(technique="source", weights_after="", export_scheme=scheme)
        for scheme in (None, step.export_scheme, None)
    ]
    assert scheme_of(records) == Int8(activations="tensor")
    assert scheme_of(records[:1]) is None
    model = Known(bert.model, bert.tokenizer, bert.task)
    for lineage, asked, found in (
        (records, None, "tensor"),
        (records, True, "tensor"),
        (records, Int8(), "token"),
        (records, False, None),
        ((), None, None),
        ((), True, "tensor"),
    ):
        Known.lineage = lineage
        report = export_onnx(model, tmp_path / "out", int8=asked, examples=examples, agreement=0.8)
        manifest = json.loads((report.folder / "export.json").read_text())
        assert (manifest["int8"] or {}).get("activations") == found


# ---- refusals


def test_a_wrong_export_is_refused_with_figures_and_the_old_one_stays(bert, examples, tmp_path, monkeypatch):
    export_onnx(bert, tmp_path / "out", examples=examples, name="old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def damaged(model, opset):
        found = float_graph(model, opset)
        weight = next(w for w in found.graph.graph.initializer if w.name.endswith("position_embeddings.weight"))
        weight.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(weight), 1, axis=0), weight.name))
        return found

    monkeypatch.setattr(exporting, "float_graph", damaged)
    with pytest.raises(CompressError, match=r"logits differ by up to [\d.e-]+, allowed is [\d.e-]+") as caught:
        export_onnx(bert, tmp_path / "out", examples=examples, name="new")
    assert "nothing was written" in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_int8_below_the_agreement_is_refused(bert, examples, tmp_path):
    with pytest.raises(
        CompressError, match=r"of the predictions on 40 examples are equal, needed are 101.00%.*exclude"
    ):
        export_onnx(bert, tmp_path / "out", int8=True, examples=examples, agreement=1.01)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_things_is_not_touched(bert, examples, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="no export; choose another folder"):
        export_onnx(bert, tmp_path, examples=examples)
    with pytest.raises(UserError, match="no export"):
        export_onnx(bert, tmp_path / "thesis.txt", examples=examples)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_unknown_modules_and_unwritable_places(bert, examples, tmp_path):
    with pytest.raises(UserError, match="no module is called 'poolr'"):
        export_onnx(bert, tmp_path / "out", int8=Int8(exclude=("poolr",)), examples=examples)
    (tmp_path / "file").write_text("")
    with pytest.raises(CompressError, match="could not be written"):
        export_onnx(bert, tmp_path / "file" / "out", examples=examples)


def test_an_export_is_replaced_by_a_later_one(bert, examples, tmp_path):
    export_onnx(bert, tmp_path / "out", examples=examples, name="first")
    export_onnx(bert, tmp_path / "out", examples=examples, name="second")
    assert Runtime(tmp_path / "out").name == "second"


# ---- exporters


def test_traced_inputs_are_all_different():
    for family, kind in (("bert", "qa"), ("xlnet", "classification")):
        model = tiny_taskmodel(family, tiny_spec(kind))
        tensors = list(tracing.distinct_inputs(model.model.config, model.encoder.settings).values())
        assert len(tensors) == 3
        assert len({tensor.numpy().tobytes() for tensor in tensors}) == 3
        assert int(tensors[1].min()) == 0


def test_the_second_exporter_takes_over_and_is_recorded(bert, examples, tmp_path, monkeypatch):
    def gone(*_):
        raise TypeError("export() got an unexpected keyword argument 'dynamo'")

    monkeypatch.setattr(tracing, "EXPORTERS", {"tracer": gone, "dynamo": tracing.EXPORTERS["tracer"]})
    assert export_onnx(bert, tmp_path / "out", examples=examples).exporter == "dynamo"
    monkeypatch.setattr(tracing, "EXPORTERS", {"tracer": gone, "dynamo": gone})
    with pytest.raises(CompressError, match=r"cannot be exported to ONNX \(tracer: export\(\) got .*dynamo: export"):
        export_onnx(bert, tmp_path / "other", examples=examples)


def test_nothing_of_a_failed_export_is_on_standard_output(capfd):
    class Orthogonal(torch.nn.Module):
        def forward(self, matrix):
            return torch.linalg.qr(matrix)[0]

    with pytest.raises(CompressError, match="linalg_qr"):
        tracing.traced(Orthogonal(), {"matrix": torch.eye(2, 3)}, {"q": tracing.AXES}, tracing.OPSET, "qr")
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "qa"])
def test_torch_export_writes_the_same_graph(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "EXPORTERS", {"dynamo": tracing.EXPORTERS["dynamo"]})
    task = tiny_task(kind)
    model = tiny_taskmodel("bert", task.spec)
    report = export_onnx(model, tmp_path / "float", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-5
    report = export_onnx(
        model, tmp_path / "int8", int8=Int8(exclude=("*.query",)), examples=task.validation, agreement=0.9
    )
    assert report.quantized["linear"] == (19 if kind == "classification" else 18) - 3
    assert b"site-packages" not in (tmp_path / "int8" / "model.onnx").read_bytes()


# ---- the gate


class Shifted:
    """The model itself with its logits changed."""

    def __init__(self, model, change, encoder=None):
        self.name, self.model, self.change = "shifted", model, change
        self.encoder = encoder or model.encoder

    def forward(self, inputs):
        return self.change(self.model.forward(inputs))


def test_the_gate_knows_equal_different_and_broken(bert, examples):
    assert compare(bert, bert, examples).passed
    far = compare(Shifted(bert, lambda logits: logits + 0.01), bert, examples)
    assert far.max_abs_difference == pytest.approx(0.01, rel=1e-3)
    assert far.agreement == 1.0
    assert [problem[:22] for problem in far.problems] == ["logits differ by up to"]
    broken = compare(Shifted(bert, lambda logits: logits * np.nan), bert, examples, tolerance=None)
    assert "logits are not finite" in broken.problems
    narrow = compare(Shifted(bert, lambda logits: logits[:, :1]), bert, examples, tolerance=None)
    assert narrow.problems[0] == "logits have shape (8, 1), the model's (8, 2)"


def test_the_gate_counts_decisions(bert, examples):
    def swapped_first_row(logits):
        return np.concatenate([logits[:1, ::-1], logits[1:]])

    report = compare(Shifted(bert, swapped_first_row), bert, examples, tolerance=None, agreement=0.97)
    assert report.agreement == 1 - 5 / 40  # 40 examples in batches of 8
    assert report.problems == ("87.50% of the predictions on 40 examples are equal, needed are 97.00%",)
    assert compare(Shifted(bert, swapped_first_row), bert, examples, tolerance=None, agreement=0.85).passed


def test_a_row_that_depends_on_its_batch_is_found(bert, examples):
    def mixed(logits):
        return logits + 0.01 * len(logits)

    report = compare(Shifted(bert, mixed), bert, examples)
    assert report.batch_difference > 0.05
    assert any(re.match(r"a row alone and in a batch differs by up to 0\.\d+", p) for p in report.problems)


def test_another_tokenizer_is_found(bert, examples):
    other = tiny_taskmodel("bert", tiny_spec(max_length=10))
    assert "other tokens" in " ".join(compare(Shifted(bert, np.asarray, other.encoder), bert, examples).problems)


def test_scores_agree_when_they_are_close(examples):
    task = tiny_task("regression")
    model = tiny_taskmodel("distilbert", task.spec)
    near = compare(Shifted(model, lambda logits: logits * 1.02), model, task.validation, tolerance=None)
    assert near.agreement == 1.0
    assert compare(Shifted(model, lambda logits: logits * 1.5), model, task.validation, tolerance=None).agreement < 1


def test_without_examples_the_gate_makes_them_up(bert):
    report = compare(Shifted(bert, lambda logits: -logits), bert, tolerance=None, agreement=0.9)
    assert report.examples == 0
    assert report.problems[0].endswith("of the predictions on 200 synthetic texts are equal, needed are 90.00%")


def test_what_falls_a_little_short_on_synthetic_texts_is_told(bert, tmp_path, monkeypatch):
    monkeypatch.setattr("compress.export.check.gate.Seen.agreement", lambda *_: 0.95)
    report = export_onnx(bert, tmp_path / "out", int8=True)
    assert report.notes[-1].startswith("only 95.00% of the predictions on synthetic texts are those of the model")
    for how in ({"strict": True}, {"examples": [{"text": "a film"}]}, {"agreement": 0.97}):
        with pytest.raises(CompressError, match=r"needed are 97\.00%"):
            export_onnx(bert, tmp_path / "other", int8=True, **how)


@pytest.mark.parametrize("kind", ["classification", "tagging", "qa", "masked-lm"])
def test_odd_texts_have_every_kind_of_input(kind):
    encoder = tiny_taskmodel("roberta", tiny_spec(kind)).encoder
    lengths = [len(feature.ids) for feature in encoder.encode(odd_examples(encoder))]
    assert max(lengths) == encoder.settings.max_length
    assert min(lengths) <= 6
