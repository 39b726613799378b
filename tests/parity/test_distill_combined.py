"""A weighted sum of distillations is the sum of its terms, and the teacher runs once for all of them."""

import torch

from compress.distill.combined import CombinedDistillation
from compress.distill.labels import LabelTraining
from compress.objective import ObjectiveBlock
from compress.technique import Inputs
from teachers.signals.hooks import observe
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

TERMS = {
    "distill.logits": {"temperature": 4.0, "alpha": 1.0, "weight": 3.0},
    "distill.labels": {},
    "distill.distilbert": {},
    "distill.pkd": {},
}


def test_the_sum_is_the_sum_and_the_teacher_runs_once(monkeypatch, tmp_path):
    task = tiny_task("tagging")
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1), cache=tmp_path, budget_bytes=1)
    student = tiny_taskmodel("bert", task.spec)
    rows = rows_of(student, task.train, 1)
    batch = rows.batch([0, 1, 2])
    inputs = Inputs(train=task.train, teacher=teacher)
    block = ObjectiveBlock.model_validate(TERMS)
    parts = {}
    for term in block.terms:
        loss = term.technique.make_objective(inputs).bind(student, rows)
        for name, value in loss(observe(student.model, batch.inputs, loss.reads), batch).items():
            parts[f"{term.technique.name}.{name}"] = term.weight * value
    runs = []
    original = LiveReader.__call__
    monkeypatch.setattr(LiveReader, "__call__", lambda self, batch: runs.append(1) or original(self, batch))
    loss = block.make(inputs).bind(student, rows)
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    assert found.keys() == parts.keys()
    assert all(torch.allclose(found[name], parts[name], atol=1e-5) for name in found)
    assert len(runs) == 1


def test_without_a_teacher_the_labels_are_left():
    step = CombinedDistillation(objective=TERMS, epochs=2)
    assert step.without_teacher() == LabelTraining(epochs=2)
    assert step.check(tiny_taskmodel("bert", num_hidden_layers=1), Inputs()) == []
    thin = tiny_taskmodel("bert", hidden_size=16)
    teacher = ModelTeacher(tiny_taskmodel("bert"))
    *_, problem = step.check(thin, Inputs(teacher=teacher))
    assert problem.startswith("distill.combined: objective: distill.pkd: hidden sizes must be equal")
