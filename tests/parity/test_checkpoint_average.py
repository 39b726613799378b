"""Checkpoint averaging against torch's own average, through interruption and in memory, and what is told of it."""

from __future__ import annotations

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from teachers.taskmodel import weights_digest
from teachers.training.checkpoint import weights
from teachers.training.checkpoint_average import LastWeights
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.scoring import scores
from tests.stopping import StopsAt
from tests.tiny import tiny_task, tiny_taskmodel

HOW = {"batch_size": 20, "schedule": "constant", "warmup_steps": 0, "learning_rate": 1e-3, "keep": "last"}


@pytest.fixture(scope="module")
def task():
    return tiny_task("classification")


def test_the_mean_is_that_of_torch(tmp_path):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    network[1].weight = network[0].bias  # shared: one tensor, one mean
    average = AveragedModel(network, use_buffers=True)
    kept, steps = {folder: LastWeights(3, folder) for folder in (None, tmp_path)}, {None: [], tmp_path: []}
    for step in range(1, 6):
        network(torch.randn(4, 3)).sum().backward()
        with torch.no_grad():
            network[0].weight.add_(torch.randn(2, 3))
            network[0].bias.add_(torch.randn(2))
        for folder, last in kept.items():
            steps[folder] = last.keep(10 * step, steps[folder], [network, network])
        if step > 2:
            average.update_parameters(network)
    assert steps == {None: [30, 40, 50], tmp_path: [30, 40, 50]}
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"weights-{step}.safetensors" for step in (30, 40, 50)]
    expected = {name: tensor.clone() for name, tensor in weights(average.module).items()}
    for folder, last in kept.items():
        last.load_mean(steps[folder], [network, network])
        for name, tensor in weights(network).items():
            if tensor.is_floating_point():
                assert torch.allclose(tensor, expected[name], atol=1e-6), name
            else:
                assert tensor.item() == 5


def test_a_training_returns_the_mean_of_its_last_epochs(task, tmp_path):
    """At a constant rate a training of fewer epochs ends where a longer one has been."""
    parts = []
    for epochs in (2, 3):
        model = tiny_taskmodel("bert", task.spec)
        train(model, task.train, training=Training(epochs=epochs, **HOW), seed=3)
        parts.append({name: tensor.detach().clone() for name, tensor in weights(model.model).items()})
    training = Training(epochs=3, average_checkpoints=2, checkpoint_seconds=0, **HOW)
    whole = tiny_taskmodel("bert", task.spec)
    history = train(whole, task.train, training=training, seed=3, validation=task.validation)
    for name, tensor in weights(whole.model).items():
        assert torch.allclose(tensor.double(), sum(part[name].double() for part in parts) / 2, atol=1e-7), name
    assert history[-1]["averaged"] == [entry["step"] for entry in history[-2:]]
    assert not any("averaged" in entry for entry in history[:-1])

    assert history[-1]["score"] == scores(whole, task.validation)["accuracy"]
    stop, stopped = StopsAt(history[-2]["step"] + 1), tiny_taskmodel("bert", task.spec)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, task.train, stop, training, seed=3, validation=task.validation, folder=tmp_path)
    again = tiny_taskmodel("bert", task.spec)
    resumed = train(again, task.train, training=training, seed=3, validation=task.validation, folder=tmp_path)
    assert weights_digest(again.model) == weights_digest(whole.model)
    assert resumed[-1]["score"] == history[-1]["score"]


def test_the_best_epoch_is_no_mean():
    with pytest.raises(
        ValueError, match="average_checkpoints: 5 returns the mean of the last epochs, and keep: best a"
    ):
        Training(average_checkpoints=5)
    assert "average_checkpoints" not in Training().model_dump()
    assert Training(keep="last", average_checkpoints=5).model_dump()["average_checkpoints"] == 5
