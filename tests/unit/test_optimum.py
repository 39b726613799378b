"""Optimum beside our own code: its normalised configs, and our ONNX folders in its ``ORTModelFor…``.

The release with those classes needs an older transformers, so they run in a Python of their own.
"""

import json
import os
import subprocess

import numpy as np
import pytest

from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from teachers.anatomy.encoder import shape_of
from tests.tiny import FAMILIES, tiny_config, tiny_task, tiny_taskmodel

PYTHON = os.environ.get("COMPRESS_OPTIMUM_PYTHON")
KINDS = {
    "classification": "ORTModelForSequenceClassification",
    "tagging": "ORTModelForTokenClassification",
    "qa": "ORTModelForQuestionAnswering",
    "embedding": "ORTModelForFeatureExtraction",
}
PROGRAM = """
import json, sys
import numpy as np
import optimum.onnxruntime as runtime
import torch

for folder, name in json.loads(sys.argv[1]):
    model = getattr(runtime, name).from_pretrained(folder)
    inputs = {key: torch.from_numpy(array) for key, array in np.load(f"{folder}/inputs.npz").items()}
    outputs = {key: value.detach().numpy() for key, value in model(**inputs).items()}
    np.savez(f"{folder}/outputs.npz", **outputs)
    print(json.dumps(model.config.id2label))
"""


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("ernie", "xlnet", "mobilebert")])
def test_shapes_are_those_of_its_normalised_configs(family):
    utils = pytest.importorskip("optimum.utils", reason="optimum is not installed: pip install 'nlp-compress[optimum]'")
    config = tiny_config(family, num_hidden_layers=5, num_attention_heads=2)
    known = utils.NormalizedConfigManager.get_normalized_config_class(family)(config)
    shape = shape_of(config)
    assert (shape.layers, shape.heads) == (5, 2)
    assert (known.num_layers, known.num_attention_heads) == (5, 2)
    assert (known.hidden_size, known.vocab_size) == (shape.hidden_size, shape.vocab_size)


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="COMPRESS_OPTIMUM_PYTHON names no Python that has optimum-onnx[onnxruntime]")
def test_optimum_loads_every_kind_unchanged(tmp_path):
    made = []
    for kind, name in KINDS.items():
        task = tiny_task(kind)
        model = tiny_taskmodel("bert", task.spec)
        for int8 in (False, True):
            folder = tmp_path / f"{kind}-{int8}"
            export_onnx(model, folder, int8=int8, examples=task.validation, agreement=0.9)
            features = model.encoder.encode(task.validation)[:16]
            np.savez(folder / "inputs.npz", **model.encoder.collate(features))
            made.append((str(folder), name))
    command = [str(PYTHON), "-c", PROGRAM, json.dumps(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    labels = [json.loads(line) for line in done.stdout.splitlines()]
    assert labels[0] == {"0": "bad", "1": "good"}
    assert labels[2] == {"0": "O", "1": "B-PER", "2": "B-LOC"}
    for folder, _ in made:
        inputs, found = dict(np.load(f"{folder}/inputs.npz")), dict(np.load(f"{folder}/outputs.npz"))
        expected = Runtime(folder).forward(inputs)
        if "start_logits" in found:
            logits = np.stack([found["start_logits"], found["end_logits"]], axis=-1)
        elif "last_hidden_state" in found:  # the mean of real tokens, scaled to length 1, is our vector
            mask = inputs["attention_mask"][..., None]
            logits = (found["last_hidden_state"] * mask).sum(axis=1) / mask.sum(axis=1)
            logits /= np.linalg.norm(logits, axis=-1, keepdims=True)
        else:
            logits = found["logits"]
        np.testing.assert_allclose(logits, expected, atol=1e-5)
        np.testing.assert_array_equal(logits.argmax(axis=-1), expected.argmax(axis=-1))
