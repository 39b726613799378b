"""docs/python.md says what is true: its code runs, and what it says of refusals is what is refused."""

import re
from math import cos, sin
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from compress.export import Runtime
from eval.inference import predict
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_task, tiny_taskmodel

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with what the page takes."""
    task = tiny_task("classification", examples=24)
    sizes = {"my-teacher": {}, "my-student": {"num_hidden_layers": 1, "hidden_size": 16}}
    for seed, (name, shape) in enumerate(sizes.items()):
        (tmp_path / name).mkdir()
        save_taskmodel(tiny_taskmodel("bert", task.spec, seed=seed, **shape), tmp_path / name)
    pandas.DataFrame([*task.train]).to_csv(tmp_path / "reviews.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # of the Trainer itself, without an accelerator
def test_its_code_runs(folder, capsys):
    codes = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(codes) == 7
    names = {}
    for code in codes:
        exec(compile(code, "docs/python.md", "exec"), names)
    assert names["trainer"].state.global_step == 4
    assert names["result"].metric == "minus_cost"
    assert names["result"].comparison.metric == "minus_cost"
    assert names["loss"].item() < 0.01
    said = capsys.readouterr().out
    assert said.count("minus_cost") > 1
    assert "gru" in said
    nezha_hears_distances(names["nezha"], names["split"])
    assert names["small"].lineage[-1].technique == "distill.logits"


def nezha_hears_distances(nezha, task):
    """Its export answers as it does, and its sums are those of the paper, a pair of tokens at a time."""
    own, exported = (predict(model, task.train).logits for model in (nezha, Runtime("runs/nezha-onnx")))
    np.testing.assert_allclose(own, exported, atol=1e-4)
    layer, size = nezha.model.module.layers[0].eval(), 16
    states = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(1))
    angles = [[[(j - i) / 10000 ** (2 * (k // 2) / size) for k in range(size)] for j in range(3)] for i in range(3)]
    distances = torch.tensor([[[(sin, cos)[k % 2](a) for k, a in enumerate(one)] for one in row] for row in angles])
    query, key, value = (part.view(3, 2, size) for part in layer.joint(states)[0].chunk(3, dim=-1))
    read = torch.zeros(3, 2, size)
    for i in range(3):
        for head in range(2):
            scores = [query[i, head] @ (key[j, head] + distances[i, j]) / size**0.5 for j in range(3)]
            weights = torch.stack(scores).softmax(dim=0)
            read[i, head] = sum(weights[j] * (value[j, head] + distances[i, j]) for j in range(3))
    between = layer.first(states[0] + layer.out(read.view(3, 32)))
    expected = layer.second(between + layer.feed(between))
    torch.testing.assert_close(layer(states, distances, torch.zeros(1, 1, 1, 3))[0], expected, atol=1e-5, rtol=1e-4)
    seen = []
    layer.register_forward_pre_hook(lambda module, given: seen.append(given[1]))
    nezha.model.module(torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.long))
    torch.testing.assert_close(seen[0], distances)
