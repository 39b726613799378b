"""The folder for model servers: what its configuration says, and its client against a stand-in for the server."""

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml

from compress.cli import main
from compress.export import export
from compress.export.runtime.answering import ExportError, Runtime
from compress.export.runtime.manifest import whole_manifest
from compress.export.targets.triton import NAME, TritonEngine, TritonTarget, service_name
from eval.errors import UserError
from eval.inference import predict
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
TYPES = {"TYPE_INT64": "tensor(int64)", "TYPE_FP32": "tensor(float)"}
TENSOR = re.compile(r'\{ name: "(\w+)" data_type: (\w+) dims: \[ ([-\d, ]*) \] \}')


def described(folder, name):
    """Return the inputs and the outputs of ``config.pbtxt``: name -> type and sizes."""
    text = (folder / "models" / name / "config.pbtxt").read_text()
    sides = text.split("output [")
    assert len(sides) == 2
    return [{found[0]: found[1:] for found in TENSOR.findall(side)} for side in sides]


class Server(BaseHTTPRequestHandler):
    """Answers as Triton does: it takes what the configuration describes, in batches that it allows.

    What it gives is in the order of names: Triton holds the outputs of a request in a ``std::set``.
    """

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = re.fullmatch(r"/v2/models/([\w-]+)/infer", self.path)[1]
        takes, gives = described(self.server.folder, name)
        assert {each["name"] for each in asked["inputs"]} == set(takes)
        feeds = {}
        for each in asked["inputs"]:
            assert (each["datatype"], takes[each["name"]][0], len(each["shape"])) == ("INT64", "TYPE_INT64", 2)
            feeds[each["name"]] = np.array(each["data"], np.int64).reshape(each["shape"])
        self.server.batches.append(len(feeds["input_ids"]))
        session = onnxruntime.InferenceSession(self.server.folder / "models" / name / "1" / "model.onnx")
        outputs = [
            {"name": name, "datatype": "FP32", "shape": list(values.shape), "data": values.ravel().tolist()}
            for name, values in zip(sorted(gives), session.run(sorted(gives), feeds), strict=True)
        ]
        for each in outputs:
            sizes = [len(feeds["input_ids"]), *map(int, gives[each["name"]][1].split(","))]
            assert all(size in (-1, found) for size, found in zip(sizes, each["shape"], strict=True))
        content = json.dumps({"outputs": outputs}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as found:
        found.batches = []
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["classification", "qa", "masked-lm"])
def test_the_configuration_is_that_of_the_graph(kind, tmp_path):
    export(tiny_taskmodel("bert", tiny_spec(kind)), tmp_path, "triton", name="My model: 2")
    session = onnxruntime.InferenceSession(tmp_path / "models" / "my-model-2" / "1" / "model.onnx")
    for described_side, side in zip(
        described(tmp_path, "my-model-2"), (session.get_inputs(), session.get_outputs()), strict=True
    ):
        assert {name: TYPES[kind] for name, (kind, _) in described_side.items()} == {
            each.name: each.type for each in side
        }
    service = yaml.safe_load((tmp_path / "kserve.yaml").read_text())
    assert service["metadata"]["name"] == "my-model-2"
    assert service["spec"]["predictor"]["model"]["modelFormat"] == {"name": "triton"}
    manifest = whole_manifest(tmp_path)
    assert manifest["model"] in manifest["files"]


@pytest.mark.parametrize("kind", ["classification", "tagging", "qa", "embedding", "multiple-choice"])
def test_the_client_answers_as_the_model(kind, server, tmp_path):
    task = tiny_task(kind)
    model = tiny_taskmodel("bert", task.spec)
    export(model, tmp_path, "triton")
    server.folder = tmp_path
    examples = list(task.validation)[:8]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    program = (
        "import json, sys\nfrom predict import Runtime\n"
        "model = Runtime('.')\nfound = model.predict([json.loads(line) for line in open('lines.jsonl')])\n"
        "print(json.dumps([[each.tolist() for each in found.logits], [each.get('text') for each in found.answers]]))\n"
        "assert not {'onnxruntime', 'torch', 'compress', 'eval'} & set(sys.modules)"
    )
    readme = (tmp_path / "README.md").read_text().partition("those that the export gave:")[2]
    check = "".join(line[4:] + "\n" for line in readme.splitlines() if line.startswith("    "))
    address = f"http://127.0.0.1:{server.server_port}"
    found, checked = (
        subprocess.run(
            [sys.executable, "-c", text],
            cwd=tmp_path,
            env={"TRITON_URL": address, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for text in (program, check)
    )
    expected, (logits, texts) = predict(model, examples), json.loads(found)
    for ours, theirs in zip(expected.logits, logits, strict=True):
        np.testing.assert_allclose(np.array(theirs), ours, atol=1e-4)
    assert texts == [answer.get("text") for answer in expected.answers]
    worst, allowed = re.fullmatch(r"largest difference (\S+), allowed (\S+)\n", checked).groups()
    assert float(worst) <= float(allowed)


def test_a_large_batch_is_sent_in_parts(server, tmp_path, monkeypatch):
    model = tiny_taskmodel("bert")
    export(model, tmp_path, "triton", options={"model_name": "small"})
    server.folder = tmp_path
    monkeypatch.setenv("TRITON_URL", f"http://127.0.0.1:{server.server_port}/")
    engine = TritonEngine(tmp_path / "models" / "small" / "1" / "model.onnx", 1, False)
    inputs = model.encoder.collate(model.encoder.encode([{"text": "a good film"}] * 70))
    logits = engine.run(inputs)["logits"]
    assert server.batches == [32, 32, 6]
    np.testing.assert_allclose(logits, model.forward(inputs), atol=1e-4)


def test_int8_and_the_command(tmp_path, capfd):
    from compress.artifact.artifact import Artifact

    Artifact.from_model(tiny_taskmodel("bert")).save(tmp_path / "2 model")
    out = tmp_path / "out"
    line = re.search(r"^    compress (export .* --to triton .*)$", PAGE, flags=re.MULTILINE)[1]
    words = line.replace("--option model_name=sst2 ", "").replace("runs/sst2-3l/model", "MODEL").split()
    places = {"MODEL": str(tmp_path / "2 model"), "served": str(out)}
    assert main([*(places.get(word, word) for word in words), "--agreement", "0"]) == 0
    assert f"next: tritonserver --model-repository={out}/models" in capfd.readouterr().err
    assert (out / "models" / "model-2-model" / "1" / "model.onnx").is_file()
    with pytest.raises(ExportError, match=r"an export for 'triton', which this cannot run; README\.md there says"):
        Runtime(out)


def test_what_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"triton: model_name: string should match pattern"):
        export(tiny_taskmodel("bert"), tmp_path / "out", "triton", options={"model_name": "A_b"})
    leaving = tiny_taskmodel("bert")
    leaving.model.config.speed = 0.5
    assert TritonTarget().refused(leaving, TritonTarget().options()()) == [
        "model: has early exits, whose speed is no input of a batch; export it to onnx"
    ]


@pytest.mark.parametrize("name", ["sst2-3l triton-int8", "3", "", "../../x", "é" * 80, "a" * 80 + "-"])
def test_names_of_services(name):
    assert re.fullmatch(NAME, service_name(name))
