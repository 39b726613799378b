"""Exports that answer with a text: two graphs in one folder whose texts are those of torch; the gate compares them."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from compress import Inputs, Recipe, run
from compress.distill.labels import LabelTraining
from compress.export import export
from compress.export.check import gate
from compress.export.check.verification import verify
from compress.export.runtime import ExportError, Runtime
from compress.onnx_graph.cached_writer import trace_reader, trace_writer
from compress.prune.layers import LayerPruning
from eval.cost.latency import latency
from eval.errors import CompressError, UserError
from eval.inference import predict
from eval.measurement import measure
from teachers.training.config import Training
from tests.tiny import ENCODER_DECODERS, at_first, tiny_spec, tiny_task, tiny_taskmodel


@pytest.fixture(scope="module")
def trained():
    task = tiny_task("seq2seq")
    training = Training(epochs=20, learning_rate=5e-3, batch_size=16)
    steps = (LayerPruning(decoder=1), LabelTraining(training=training))
    return task, run(Recipe(steps=steps), tiny_taskmodel("t5", task.spec), Inputs(train=task.train))


@pytest.fixture(scope="module")
def folders(trained, tmp_path_factory):
    task, model = trained
    root = tmp_path_factory.mktemp("exports")
    reports = {
        int8: export(model, root / str(int8), "generator", int8=int8, examples=task.validation[:16], agreement=least)
        for int8, least in ((False, None), (True, 0.5))
    }
    return root, reports


def with_beams(folder, beams):
    """Return the export with another search."""
    runtime = Runtime(folder)
    values = {**runtime.encoder.settings.to_dict(), "beams": beams}
    runtime.encoder.settings = type(runtime.encoder.settings).from_dict(values)
    return runtime


def torch_texts(model, examples, beams):
    """Return what transformers' own ``generate`` writes."""
    found = []
    for example in examples:
        read = model.tokenizer(example["source"], return_tensors="pt")
        settings = {"num_beams": beams, "do_sample": False, "early_stopping": False, "max_new_tokens": 16}
        with torch.no_grad():
            ids = model.model.generate(**read, decoder_start_token_id=0, **settings)[0]
        found.append(model.tokenizer.decode(ids, skip_special_tokens=True))
    return found


@pytest.mark.parametrize("beams", [1, 3])
def test_an_export_writes_what_transformers_does(trained, folders, beams):
    task, model = trained
    examples = task.test[:8]
    answers = with_beams(folders[0] / "False", beams).predict(examples).answers
    assert [answer["text"] for answer in answers] == torch_texts(model, examples, beams)
    assert len({answer["text"] for answer in answers}) > 1


def test_an_export_has_beams_of_its_own(trained, tmp_path):
    task, model = trained
    examples = task.test[:8]
    how = {"examples": task.validation[:8], "options": {"beams": "3", "length_penalty": 0.5}}
    export(model, tmp_path / "out", "generator", **how)
    runtime = Runtime(tmp_path / "out")
    assert (runtime.encoder.settings.beams, runtime.encoder.settings.length_penalty) == (3, 0.5)
    asked = replace(model, task=model.task.model_copy(update={"beams": 3, "length_penalty": 0.5}))
    assert runtime.predict(examples).answers == predict(asked, examples).answers
    assert model.task.beams == 1
    assert measure(runtime, task, against=model).comparison is not None
    assert all(one.passed for one in verify(tmp_path / "out"))


def test_a_decoder_alone_has_no_beams(tmp_path):
    model = tiny_taskmodel("gpt2", tiny_spec("causal-lm"))
    with pytest.raises(UserError, match="beams: of seq2seq alone"):
        export(model, tmp_path / "out", "generator", options={"beams": 2})


@pytest.mark.parametrize("family", at_first(ENCODER_DECODERS, "marian"))
def test_texts_written_together_are_those_written_alone(family, tmp_path):
    task = tiny_task("seq2seq")
    model = tiny_taskmodel(family, task.spec.model_copy(update={"beams": 2}))
    report = export(model, tmp_path / "x", "generator", examples=task.validation[:4])
    assert report.gate.max_abs_difference < 1e-4
    examples = [*task.test[:3], {"source": "ann lives in paris and likes the film of the book ."}, {"source": ""}]
    runtime = Runtime(tmp_path / "x")
    together = runtime.predict(examples).answers
    assert together == [runtime.predict([one]).answers[0] for one in examples] == predict(model, examples).answers


def test_8_bits_write_nearly_the_same(trained, folders):
    task, model = trained
    report = folders[1][True]
    assert report.quantized["linear"] > 10
    assert report.bytes < 0.7 * report.float_bytes
    assert report.gate.agreement_needed == 0.5
    runtime = Runtime(folders[0] / "True")
    written = [
        runtime.encoder.kind.in_common(one, other) for one, other in texts_of(model, runtime, task.validation[:16])
    ]
    assert report.gate.agreement == pytest.approx(np.mean(written), abs=0.05), "but for what rounds together in a batch"
    own, found = (measure(one, task).scores["chrf"] for one in (model, runtime))
    assert found == pytest.approx(own, abs=0.1)


def texts_of(model, runtime, examples):
    inputs = model.encoder.collate(model.encoder.encode(examples))
    return zip(model.write(inputs), runtime.write(inputs), strict=True)


def test_the_gate_refuses_other_texts_and_other_caches(trained, tmp_path, monkeypatch):
    task, model = trained
    changed = tiny_taskmodel("t5", task.spec)
    monkeypatch.setattr(gate.Remembered, "write", lambda self, inputs: changed.write(inputs))
    with pytest.raises(CompressError, match=r"% of the predictions on 8 examples are equal, needed are 100.00%"):
        export(model, tmp_path / "x", "generator", int8=True, examples=task.validation[:8], agreement=1.0)
    with pytest.raises(CompressError, match=r"texts are [\d.]+% the same tokens as the model's, needed are 98%"):
        export(model, tmp_path / "x", "generator", examples=task.validation[:8])
    monkeypatch.undo()
    from compress.export.targets.generator import CachedEngine

    step = CachedEngine.step

    def forgetful(self, inputs, past):
        return step(self, inputs, {name: np.zeros_like(a) if "past" in name else a for name, a in past.items()})

    monkeypatch.setattr(CachedEngine, "step", forgetful)
    with pytest.raises(CompressError, match="a text read in two parts differs"):
        export(model, tmp_path / "x", "generator", examples=task.validation[:8])
    assert not (tmp_path / "x").exists()


def test_other_targets_are_refused_and_other_kinds(trained, tmp_path):
    with pytest.raises(
        UserError, match="seq2seq answers with a text, which onnx does not write; export it to generator"
    ):
        export(trained[1], tmp_path / "x", "onnx")
    with pytest.raises(UserError, match="generator writes text, and a classification model writes none"):
        export(tiny_taskmodel("bert"), tmp_path / "x", "generator")


def test_a_folder_answers_by_itself(trained, folders):
    task, _ = trained
    folder = folders[0] / "False"
    manifest = json.loads((folder / "export.json").read_text())
    assert {"model.onnx", "encoder.onnx"} <= set(manifest["files"])
    lines = [task.test[0]["source"], json.dumps({"source": task.test[1]["source"]})]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "error", folder / "predict.py", *lines],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=True,
    )
    own = [json.loads(line) for line in done.stdout.splitlines()]
    assert own == Runtime(folder).predict(lines).answers
    assert all(one.passed for one in verify(folder))
    with pytest.raises(ExportError, match="a seq2seq export writes no text after a prompt"):
        Runtime(folder).generate("ann")


def test_time_is_that_of_whole_texts(trained, folders):
    task, model = trained
    models = {"torch": model, "onnx": Runtime(folders[0] / "False")}
    rows = latency(models, task.test[:4], batch=(1,), seconds=0.05)
    assert rows[0].p50_ms > rows[1].p50_ms > 0.2
    assert measure(models["onnx"], task).size.parameters > 0.9 * model.size().parameters


def test_nodes_are_named_by_their_modules():
    for family in ("marian", "t5"):
        model = tiny_taskmodel(family, tiny_spec("seq2seq"))
        modules = {name for name, _ in model.model.named_modules()}
        for trace in (trace_reader, trace_writer):
            products = [node.name for node in trace(model)[0].graph.node if node.op_type == "MatMul"]
            assert {name.rpartition("/")[0] for name in products} <= modules
            assert len(set(products)) == len(products)
        reader = onnx.load_from_string(trace_reader(model)[0].SerializeToString())
        assert [output.name for output in reader.graph.output][:2] == ["cross.0.key", "cross.0.value"]
