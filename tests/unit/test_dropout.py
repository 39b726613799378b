"""The dropout of a training: every one of a network, only while it is trained, and its place in a recipe."""

import pytest
import torch

from teachers.losses.loss import WrappedLoss
from teachers.losses.task_loss import TaskLoss
from teachers.taskmodel import weights_digest
from teachers.training.config import Training
from teachers.training.dropout import dropout_set
from teachers.training.loop import train
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel


@pytest.mark.parametrize("family", FAMILIES)
def test_all_of_a_network_is_changed_and_restored(family):
    model = tiny_taskmodel(family).model
    inputs = {"input_ids": torch.randint(6, 30, (2, 8)), "attention_mask": torch.ones(2, 8, dtype=torch.long)}

    def answers(times=2):
        with torch.no_grad():
            return [model(**inputs).logits for _ in range(times)]

    expected = answers(1)[0]
    model.train()
    before = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    with dropout_set([model], 0.5):
        assert all(module.p == 0.5 for module in model.modules() if isinstance(module, torch.nn.Dropout))
        assert not torch.equal(*answers())
    with dropout_set([model, model], 0.0):
        assert torch.allclose(answers(1)[0], expected, atol=1e-6)
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] == before


def test_attention_in_its_own_function_is_reached():
    """ModernBERT's attention holds a number, and its config says 0."""
    model = tiny_taskmodel("modernbert").model
    layer = next(module for module in model.modules() if "attention_dropout" in vars(module))
    with dropout_set([model], 0.25):
        assert layer.attention_dropout == 0.25
        assert model.config.attention_dropout == 0.0
    assert layer.attention_dropout == 0.0


def test_a_training_uses_it_and_leaves_no_trace():
    task = tiny_task("classification")
    digests = {}
    for dropout in (None, 0.1, 0.0):
        student = tiny_taskmodel("bert", task.spec)
        train(student, task.train, training=Training(max_steps=3, batch_size=8, dropout=dropout), seed=5)
        digests[dropout] = weights_digest(student.model)
        assert {module.p for module in student.model.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}
    assert digests[None] == digests[0.1], "0.1 is what BERT's config says"
    assert digests[0.0] != digests[0.1]


def test_what_is_trained_beside_the_network_has_it_too():
    task, seen = tiny_task("classification", examples=8), []

    class Beside(TaskLoss):
        def bind(self, student, rows):
            return Watching(super().bind(student, rows), [torch.nn.Dropout(0.3)])

    class Watching(WrappedLoss):
        def __call__(self, student, batch):
            seen.extend(part.p for part in self.modules.modules() if isinstance(part, torch.nn.Dropout))
            return super().__call__(student, batch)

    train(tiny_taskmodel("bert", task.spec), task.train, Beside(), Training(max_steps=1, batch_size=8, dropout=0.0))
    assert seen == [0.0]


def test_records_from_before_still_fit():
    assert "dropout" not in Training().model_dump()
    assert Training(dropout=0.0).model_dump()["dropout"] == 0.0
    with pytest.raises(ValueError, match="less than 1"):
        Training(dropout=1.0)
