"""A model as a folder for model servers: a repository for Triton, a service for KServe, and a client for both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from compress.export.targets.library import Library
from compress.export.targets.target import Target
from compress.export.targets.target_options import TargetBlock
from eval.encoding import Array, Inputs
from eval.report.markdown import escape

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel

REPOSITORY = "models"
"""The folder that Triton is started with."""
SERVICE = "kserve.yaml"
NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
"""What Kubernetes allows as a name of a service."""
DATATYPES = {"tensor(float)": "TYPE_FP32", "tensor(int64)": "TYPE_INT64"}
"""Element types of ONNX Runtime as Triton calls them."""
CONFIG = """\
backend: "onnxruntime"
max_batch_size: {rows}
input [
{inputs}
]
output [
{outputs}
]
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU }} ]
"""
KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
spec:
  predictor:
    model:
      modelFormat:
        name: triton
      protocolVersion: v2
      storageUri: STORAGE_URI  # where you put the folder {repository}, such as s3://bucket/{repository}
"""


class TritonEngine:
    """A model server that speaks the open inference protocol (v2): that of ``TRITON_URL``."""

    session = None
    rows = 32

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        import os

        del threads, spinning
        address = os.environ.get("TRITON_URL", "http://localhost:8000").rstrip("/")
        self.address = f"{address}/v2/models/{file.parent.parent.name}/infer"

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name; a larger batch than the server takes is sent in parts."""
        count = len(next(iter(inputs.values())))
        starts = range(0, count, self.rows)
        parts = [self._ask({name: x[start : start + self.rows] for name, x in inputs.items()}) for start in starts]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _ask(self, inputs: Inputs) -> dict[str, Array]:
        import json
        from urllib.request import Request, urlopen

        tensors = [
            {"name": name, "shape": list(values.shape), "datatype": "INT64", "data": values.ravel().tolist()}
            for name, values in inputs.items()
        ]
        request = Request(self.address, json.dumps({"inputs": tensors}).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            outputs = json.load(answer)["outputs"]
        return {each["name"]: np.array(each["data"], np.float32).reshape(each["shape"]) for each in outputs}


class TritonBlock(TargetBlock):
    """What may be asked of a folder for model servers.

    Attributes:
        model_name: What the servers call the model: lower-case letters, digits and dashes; by default its own name.
    """

    model_name: Annotated[str, Field(pattern=f"^{NAME}$")] | None = None


class TritonTarget(Target):
    """An ONNX export as a model repository for Triton and a service for KServe, with a client."""

    name = "triton"
    summary = "For model servers, Triton and KServe; it is compared with the model, but not measured."
    needs = ("onnx", "onnxruntime")
    basis = "onnx"
    try_it = f"tritonserver --model-repository={{out}}/{REPOSITORY}"

    def options(self) -> type[TargetBlock]:
        """Return the options of every target, and the name of the model."""
        return TritonBlock

    def refused(self, model: TaskModel, options: TargetBlock) -> list[str]:
        """Return that early exits cannot be served: their speed is an input without a batch."""
        del options
        if getattr(model.model.config, "speed", None) is None:
            return []
        return [f"{model.name}: has early exits, whose speed is no input of a batch; export it to onnx"]

    def arrange(
        self, model: TaskModel, beside: Path, manifest: Mapping[str, Any], options: TargetBlock
    ) -> dict[str, Any]:
        """Put the network where Triton looks for it, and describe it."""
        import onnxruntime

        name = getattr(options, "model_name", None) or service_name(str(manifest["name"]))
        file = f"{REPOSITORY}/{name}/1/model.onnx"
        (beside / file).parent.mkdir(parents=True)
        (beside / "model.onnx").rename(beside / file)
        session = onnxruntime.InferenceSession(str(beside / file), providers=["CPUExecutionProvider"])
        described = config(session.get_inputs(), session.get_outputs())
        (beside / REPOSITORY / name / "config.pbtxt").write_text(described, encoding="utf-8")
        (beside / SERVICE).write_text(KSERVE.format(name=name, repository=REPOSITORY), encoding="utf-8")
        return {"model": file}

    def client(self, manifest: Mapping[str, Any]) -> Library:
        """Return what asks a server."""
        return Library("Triton", "urllib", (manifest["model"],), TritonEngine)

    def page(self, model: TaskModel, manifest: Mapping[str, Any]) -> str:
        """Return the README of the folder."""
        del model
        return PAGE.format(
            title=escape(manifest["name"]),
            scheme=manifest["scheme"],
            size=manifest["files"][manifest["model"]]["bytes"] / 1e6,
            file=manifest["model"],
            repository=REPOSITORY,
            service=SERVICE,
            rows=TritonEngine.rows,
        )


def service_name(name: str) -> str:
    """Return a name as model servers and Kubernetes take it.

    Args:
        name: Any text.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"model-{plain}")[:40].strip("-")


def config(inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Return the configuration of a model for Triton, ``config.pbtxt``.

    Args:
        inputs: Those of a session of ONNX Runtime, as Triton compares them; their first dimension is the batch, which
            Triton adds itself.
        outputs: Those of the session.
    """
    parts = {"inputs": ",\n".join(map(_tensor, inputs)), "outputs": ",\n".join(map(_tensor, outputs))}
    return CONFIG.format(rows=TritonEngine.rows, **parts)


def _tensor(value: Any) -> str:
    sizes = ", ".join(str(size if isinstance(size, int) else -1) for size in value.shape[1:])
    return f'  {{ name: "{value.name}" data_type: {DATATYPES[value.type]} dims: [ {sizes} ] }}'


PAGE = """\
# {title}

A model for model servers: {scheme}, {size:.1f} MB.

| file | what it is |
|---|---|
| `{repository}/` | the model repository: `config.pbtxt`, and `{file}` |
| `{service}` | the service for KServe |
| `predict.py` | the client: it needs numpy and tokenizers, no server's library |
| `tokenizer.json`, `encoder.json` | how texts become inputs, on the side of the client |
| `conformance.json` | a few inputs with the answers they must get |
| `export.json` | what was exported, how it was checked, sizes and digests |

The server gets token ids, not texts: ONNX graphs hold no tokenizer. The client makes the ids and reads the answers.

## Triton

    tritonserver --model-repository={repository}

The server's image must contain the onnxruntime backend. Requests of the same length that wait together are computed as
one batch, of {rows} at most; the client pads its texts to one length a request.

## KServe

Copy `{repository}` to your storage, write its address into `{service}` in the place of `STORAGE_URI`, and

    kubectl apply -f {service}

## Client

    pip install numpy tokenizers
    TRITON_URL=http://localhost:8000 python predict.py "a line"

Or in Python:

    from predict import Runtime
    model = Runtime(".")
    answers = model.predict(["a line", "another line"]).answers

To check a server, compare its answers with those that the export gave:

    import json, numpy, pathlib
    from predict import Runtime
    model, worst = Runtime("."), 0
    known = json.loads(pathlib.Path("conformance.json").read_text("utf-8"))
    for row in known["rows"]:
        found = model.forward({{name: numpy.array([ids]) for name, ids in row["inputs"].items()}})[0]
        expected = numpy.array(row["logits"])
        worst = max(worst, abs(found[..., : expected.shape[-1]] - expected).max())
    print(f"largest difference {{worst:.2g}}, allowed {{known['limit']:.2g}}")
"""
