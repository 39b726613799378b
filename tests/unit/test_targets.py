"""Exports for other runtimes: written through the gate, answering as the model, refused when damaged."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compress.export import export
from compress.export.check.verification import verify
from compress.export.runtime.answering import ExportError, Runtime
from compress.export.runtime.manifest import sha256, with_digest
from compress.export.targets.target_registry import BUILT_IN, get_target, library_of, target_names
from compress.modules.int8_scheme import Int8
from compress.quantize.static import StaticQuantization
from compress.technique import Inputs
from eval.cost.size import file_bytes
from eval.errors import CompressError, UserError
from eval.inference import predict
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

HAS_OPENVINO = find_spec("openvino") is not None
WITHOUT_OPENVINO = "openvino is not installed: pip install 'nlp-compress[openvino]'"
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason=WITHOUT_OPENVINO)
HERE = ["ort", pytest.param("openvino", marks=needs_openvino)]
"""Targets whose conversion takes a second."""


def with_capabilities(monkeypatch, change):
    """Let OpenVINO say of the processor what ``change`` makes of its capabilities."""
    import openvino

    class Core(openvino.Core):
        def get_property(self, device, name):
            return change(super().get_property(device, name))

    monkeypatch.setattr(openvino, "Core", Core)


@pytest.fixture(autouse=True)
def has_bf16(monkeypatch):
    """Whether the processor has bfloat16, of which OpenVINO is told nothing: answers must be the model's, closely."""
    if not HAS_OPENVINO:
        return False
    import openvino

    found = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if found:
        with_capabilities(monkeypatch, lambda known: [one for one in known if one != "BF16"])
    return found


def written(target, folder, kind="classification", family="bert", **given):
    task = tiny_task(kind)
    model = tiny_taskmodel(family, task.spec)
    report = export(model, folder, target, examples=task.validation, **given)
    return model, task.validation, report


# ---- what is written


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize(
    ("family", "kind"),
    [("bert", "classification"), ("roberta", "tagging"), ("distilbert", "qa"), ("albert", "embedding")],
)
def test_every_kind_answers_as_the_model(target, family, kind, tmp_path):
    model, examples, report = written(target, tmp_path / "out", kind, family, name="tiny")
    assert (report.scheme, report.gate.agreement) == ("fp32", 1.0)
    assert report.gate.max_abs_difference < 1e-4
    assert report.bytes == sum((tmp_path / "out" / file).stat().st_size for file in library_of(target).files)
    assert file_bytes(tmp_path / "out") == report.bytes
    runtime = Runtime(tmp_path / "out")
    assert (runtime.name, runtime.manifest["target"]) == ("tiny", target)
    found, wanted = runtime.predict(examples), predict(model, examples)
    for one, other in zip(found.logits, wanted.logits, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    for key in ("label", "tags", "text"):
        assert [answer.get(key) for answer in found.answers] == [answer.get(key) for answer in wanted.answers]


@pytest.mark.parametrize("target", HERE)
def test_int8_is_smaller_and_agrees(target, tmp_path):
    exact = written(target, tmp_path / "fp32", int8=False)[2]
    _, _, report = written(target, tmp_path / "int8", int8=True, agreement=0.95)
    assert report.scheme == "int8"
    assert report.quantized == {"linear": 19, "tables": 2, "float": ["classifier"]}
    assert 0 < report.gate.max_abs_difference < 0.1
    weights = {"ort": 1, "openvino": 0}[target]  # the graph itself is a large part of what is so tiny
    large, small = (tmp_path / name / library_of(target).files[-1] for name in ("fp32", "int8"))
    assert small.stat().st_size < large.stat().st_size * (0.95 if weights else 0.4)
    assert report.float_bytes == exact.float_bytes


@pytest.mark.parametrize("target", HERE)
def test_the_program_in_the_folder_needs_its_own_library_alone(target, tmp_path):
    model, examples, _ = written(target, tmp_path / "out")
    lines = "\n".join(item["text"] for item in examples)
    block = "import sys\nsys.modules.update(dict.fromkeys(('torch', 'transformers', 'compress', 'eval')))\n"
    run = "import runpy\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", block + run, str(tmp_path / "out" / "predict.py")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["label"] for line in done.stdout.splitlines()]
    assert found == [answer["label"] for answer in predict(model, examples).answers]
    page = (tmp_path / "out" / "README.md").read_text()
    assert f"pip install numpy tokenizers {library_of(target).package}" in page
    assert "opset 17" in page


@pytest.mark.parametrize("target", HERE)
def test_threads_share_an_export(target, tmp_path):
    _, examples, _ = written(target, tmp_path / "out")
    runtime = Runtime(tmp_path / "out", threads=2)
    some = [examples[place : place + 3 + place % 5] for place in range(20)]
    alone = [runtime.predict(each).answers for each in some]
    with ThreadPoolExecutor(4) as pool:
        together = [each.answers for each in pool.map(runtime.predict, 5 * some)]
    assert together == 5 * alone


@pytest.mark.parametrize("target", HERE)
def test_a_wrong_export_is_not_written(target, tmp_path):
    with pytest.raises(CompressError, match=r"predictions on 40 examples are equal, needed are 101\.00%"):
        written(target, tmp_path / "out", int8=True, agreement=1.01)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_cannot_run_is_not_written(tmp_path, monkeypatch):
    from compress.export.targets.onnx import OnnxEngine

    def run(self, inputs):
        return {"logits": self.session.run(None, {name: array[0] for name, array in inputs.items()})[0]}

    monkeypatch.setattr(OnnxEngine, "run", run)
    with pytest.raises(
        CompressError, match=r"the export does not run: .*its runtime cannot run it \(.+\); nothing was"
    ):
        written("ort", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_small_build_learns_its_operators(tmp_path):
    written("ort", tmp_path / "out", int8=True, agreement=0.9)
    assert (tmp_path / "out" / "model.ort").read_bytes()[4:8] == b"ORTM"
    assert "DynamicQuantizeMatMul" in (tmp_path / "out" / "model.required_operators.config").read_text()
    assert not (tmp_path / "out" / "model.onnx").exists()


@needs_openvino
@pytest.mark.parametrize("activations", ["token", "tensor"])
def test_openvino_multiplies_integers(activations, tmp_path):
    scheme = Int8(exclude=("*.query",), activations=activations)
    written("openvino", tmp_path / "out", int8=scheme, agreement=0.9)
    session = Runtime(tmp_path / "out", threads=1).session
    kinds = [node.get_rt_info() for node in session.get_runtime_model().get_ops()]
    products = [str(kind["runtimePrecision"].value) for kind in kinds if kind["layerType"].value == "FullyConnected"]
    assert sorted(products) == ["f32"] * 4 + ["u8"] * 16  # 3 queries and the classifier; 3 x 5 others and the pooler
    assert session.get_property("INFERENCE_NUM_THREADS") == 1


@needs_openvino
def test_fixed_ranges_come_along_to_openvino(tmp_path):
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec)
    step = StaticQuantization(keep_float="none").apply(model, Inputs(calibration=task.train), None)

    class Known(type(model)):
        lineage = (SimpleNamespace(export_scheme=step.export_scheme, config={}, facts={}),)

    known = Known(model.model, model.tokenizer, model.task)
    found = {}
    for target in ("onnx", "openvino"):
        export(known, tmp_path / target, target, examples=task.validation, agreement=0.9)
        found[target] = np.stack(Runtime(tmp_path / target).predict(task.validation).logits)
    assert (tmp_path / "openvino" / "openvino_model.xml").read_text().count('type="FakeQuantize"') == 14
    # 3 layers x 4, for queries, keys and values read one input; but in the last layer one token alone asks; the pooler.
    exact = np.stack(predict(model, task.validation).logits)
    assert np.abs(found["openvino"] - found["onnx"]).mean() < 0.5 * np.abs(found["onnx"] - exact).mean()


# ---- precision


def with_bf16(monkeypatch):
    """Let OpenVINO say that the processor has bfloat16; where it has none, all is computed in float32 as before."""
    with_capabilities(monkeypatch, lambda known: [*known, "BF16"])


@needs_openvino
def test_openvino_states_bf16_where_it_is_and_a_moved_folder_answers_in_float32(tmp_path, monkeypatch, has_bf16):
    from compress.export.check.verification import verify

    with monkeypatch.context() as processor:
        with_bf16(processor)
        _, _, report = written("openvino", tmp_path / "out", int8=False, agreement=0.9)
        runtime = Runtime(tmp_path / "out")
        assert (runtime.manifest["precision"], runtime.engine.precision) == ("bf16", "bf16")
        assert report.gate.limit is None  # predictions are compared, not logits
        assert runtime.manifest["tries"] == [{"form": "float32 with bf16", "agreement": 1.0, "passed": True}]
        [found] = verify(tmp_path / "out")
        assert (found.problems, found.remark) == ((), "")
    if has_bf16:
        return
    with pytest.warns(UserWarning, match="runs in float32, for this processor has no bfloat16"):
        [found] = verify(tmp_path / "out")
    assert (found.problems, found.remark) == ((), "in float32, for bf16 does not run here")
    with pytest.warns(UserWarning, match="runs in float32"):
        moved = Runtime(tmp_path / "out")
    assert (moved.engine.stated, moved.engine.precision) == ("bf16", "f32")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "out" / "predict.py"), "a line"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "runs in float32" in done.stderr) == (0, True)
    manifest = json.loads((tmp_path / "out" / "export.json").read_text())
    (tmp_path / "out" / "export.json").write_text(json.dumps(with_digest(manifest | {"precision": "f32"})))
    with pytest.warns(UserWarning, match="runs in float32"):
        [found] = verify(tmp_path / "out")
    assert found.problems == ("the network says bf16, export.json f32",)


@needs_openvino
def test_what_bf16_answers_too_badly_is_written_in_float32(tmp_path, monkeypatch):
    from compress.export import folder

    shares = iter((0.9, 1.0))
    compare = folder.compare
    known = lambda gate: folder.GateReport(**{**vars(gate), "agreement": next(shares)})  # noqa: E731
    monkeypatch.setattr(folder, "compare", lambda *given, **limits: known(compare(*given, **limits)))
    with_bf16(monkeypatch)
    _, _, report = written("openvino", tmp_path / "out", int8=False)
    manifest = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (manifest["precision"], report.gate.limit is None) == ("f32", False)
    assert [tried["form"] for tried in manifest["tries"]] == ["float32 with bf16", "float32"]
    assert Runtime(tmp_path / "out").engine.stated == "f32"


@needs_openvino
def test_precision_is_an_option(tmp_path, monkeypatch):
    from compress.export.targets import openvino as module

    target = get_target("openvino")
    monkeypatch.setattr(module, "has_bf16", lambda: True)
    assert list(target.precisions(target.read_options({}))) == [" with bf16", ""]
    assert list(target.precisions(target.read_options({"precision": "f32"}))) == [""]
    monkeypatch.setattr(module, "has_bf16", lambda: False)
    assert list(target.precisions(target.read_options({}))) == [""]
    with pytest.raises(UserError, match="this processor has no bfloat16; export it on one that has"):
        written("openvino", tmp_path / "out", options={"precision": "bf16"})
    with pytest.raises(UserError, match="precision: "):
        target.read_options({"precision": "f16"})


# ---- refusals


def test_targets_are_known_and_unknown_ones_refused():
    assert set(BUILT_IN) <= set(target_names())
    assert {name for name in BUILT_IN if library_of(name) is None} == {"web", "triton", "fastest"}
    with pytest.raises(UserError, match="--to: unknown target 'openvno'; did you mean 'openvino'"):
        get_target("openvno")


@pytest.mark.parametrize(
    ("target", "module"), [("openvino", "openvino"), ("executorch", "executorch.exir"), ("executorch", "executorch")]
)
def test_a_missing_library_is_named_with_its_extra(target, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{target} is not installed .*pip install 'nlp-compress\[{target}\]'"):
        export(tiny_taskmodel("bert", tiny_spec()), tmp_path / "out", target)


def test_an_export_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    written("onnx", tmp_path / "out")
    relabel(tmp_path / "out", "openvino")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ExportError, match=r"openvino is not installed .*; run: pip install openvino$"):
        Runtime(tmp_path / "out")
    edit(tmp_path / "out", target="tflite")
    with pytest.raises(ExportError, match=r"an export for 'tflite', which this cannot run"):
        Runtime(tmp_path / "out")


# ---- damaged folders


def files_of(target):
    library = library_of(target)
    return () if library is None else library.files


def edit(folder, **changes):
    """Change the manifest, and let it know the files as they are."""
    manifest = json.loads((folder / "export.json").read_text()) | changes
    names = [*files_of(manifest["target"]), "tokenizer.json", "encoder.json"]
    there = [folder / name for name in names if (folder / name).is_file()]
    manifest["files"] = {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in there}
    (folder / "export.json").write_text(json.dumps(with_digest(manifest)))


def relabel(folder, target):
    """Make an ONNX folder look like one for another target."""
    for name in files_of(target):
        shutil.copy(folder / "model.onnx", folder / name)
    edit(folder, target=target)


@pytest.mark.parametrize("target", HERE)
def test_truncated_tampered_and_foreign_files_are_told(target, tmp_path):
    written(target, tmp_path / "out")
    for name in files_of(target):
        file = tmp_path / "out" / name
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ExportError, match=rf"{name} has {len(whole) // 2} bytes instead of {len(whole)}"):
            Runtime(tmp_path / "out")
        file.write_bytes(bytes(reversed(whole)))
        with pytest.raises(ExportError, match=rf"{name} was changed"):
            Runtime(tmp_path / "out")
        file.unlink()
        with pytest.raises(ExportError, match=rf"{name} is missing"):
            Runtime(tmp_path / "out")
        file.write_bytes(whole)
    (tmp_path / "out" / files_of(target)[0]).write_bytes(b"a letter")
    edit(tmp_path / "out")
    with pytest.raises(ExportError, match=rf"{files_of(target)[0]}: {library_of(target).name} cannot load it \(.+\)$"):
        Runtime(tmp_path / "out")


def outside_data(folder, location):
    """Keep the largest weight of an ONNX export in another file."""
    import onnx

    file = folder / "model.onnx"
    graph = onnx.load(str(file))
    weight = max(graph.graph.initializer, key=lambda initializer: len(initializer.raw_data))
    onnx.external_data_helper.set_external_data(weight, location)
    raw = weight.raw_data
    weight.ClearField("raw_data")
    file.write_bytes(graph.SerializeToString())
    edit(folder)
    return raw


@pytest.mark.parametrize("there", [False, True], ids=["missing", "there"])
@pytest.mark.parametrize("location", ["weights.bin", "../weights.bin", "/etc/hostname"])
def test_weights_outside_of_the_listed_files_are_refused(location, there, tmp_path):
    folder = tmp_path / "out"
    written("onnx", folder)
    raw = outside_data(folder, location)
    if there and not Path(location).is_absolute():
        (folder / location).write_bytes(raw)
    with pytest.raises(ExportError, match=r"model\.onnx keeps weights in other files.*export it again$"):
        Runtime(folder)


@needs_openvino
@pytest.mark.parametrize("family", at_first([family for family in FAMILIES if family != "gpt2"], "bert", "xlnet"))
def test_openvino_leaves_where_the_model_leaves(family, tmp_path):
    from tests.parity.test_distill_early_exit import with_exits

    model, examples = with_exits(family, speed=0.4), tiny_task().validation
    report = export(model, tmp_path / "out", "openvino", examples=examples)
    files = [
        f"openvino_model{part}" for part in (".bin", ".exit2.bin", ".exit2.xml", ".exit3.bin", ".exit3.xml", ".xml")
    ]
    assert sorted(path.name for path in (tmp_path / "out").glob("openvino_model*")) == files
    assert (
        report.bytes == file_bytes(tmp_path / "out") == sum((tmp_path / "out" / file).stat().st_size for file in files)
    )
    assert sorted(Runtime(tmp_path / "out").weight_files) == files
    depths = set()
    for speed in (None, 0.0, 0.02, 0.2, 0.6, 1.0):
        model.model.config.speed = 0.4 if speed is None else speed
        runtime, expected = Runtime(tmp_path / "out", speed=speed), predict(model, examples)
        for batch_size in (1, 7, 32):
            found = predict(runtime, examples, batch_size)
            assert found.layers == expected.layers
            np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
        depths |= set(expected.layers)
    assert depths == {1, 2, 3}
    assert [(each.runtime, each.passed) for each in verify(tmp_path / "out")] == [("OpenVINO", True)]


@needs_openvino
def test_openvino_halts_where_the_model_halts(tmp_path):
    from tests.parity.test_share_adaptive_depth import halting_by_itself

    model, examples = halting_by_itself(), tiny_task().validation
    export(model, tmp_path / "out", "openvino", examples=examples)
    for speed in (None, 0.0, 0.4):
        model.model.config.speed = 0.01 if speed is None else speed
        found, expected = predict(Runtime(tmp_path / "out", speed=speed), examples), predict(model, examples)
        assert found.layers == expected.layers
        np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)


@needs_openvino
def test_early_exits_in_openvino_run_by_themselves_in_8_bits_and_are_checked(tmp_path):
    from tests.parity.test_distill_early_exit import with_exits

    model, examples = with_exits("bert", speed=0.4), tiny_task().validation
    out = tmp_path / "out"
    export(model, out, "openvino", examples=examples, int8=True, agreement=0.8)
    texts = [example["text"] for example in examples[:6]]
    program = subprocess.run(
        [sys.executable, str(out / "predict.py"), "--speed", "1", *texts], check=True, capture_output=True, text=True
    )
    answers = Runtime(out, speed=1.0).predict(texts).answers
    assert [json.loads(line)["label"] for line in program.stdout.splitlines()] == [a["label"] for a in answers]
    assert "stand in separate files" in (out / "README.md").read_text()
    (out / "openvino_model.exit4.xml").write_text("")
    with pytest.raises(ExportError, match=r"does not list openvino_model\.exit4\.xml"):
        Runtime(out)
    (out / "openvino_model.exit4.xml").unlink()
    (out / "openvino_model.exit3.bin").unlink()
    with pytest.raises(ExportError, match=r"openvino_model\.exit3\.bin is missing"):
        Runtime(out)
