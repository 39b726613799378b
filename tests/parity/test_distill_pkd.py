"""BERT-PKD against the numbers of its formula, and the layer maps of its paper."""

from types import SimpleNamespace

import pytest
import torch

from compress.distill.components.layer_map import cka, map_layers, most_similar
from compress.distill.logits import LogitDistillation
from compress.distill.pkd import PatientDistillation, pkd_patience
from compress.technique import Inputs
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch
from teachers.signals.hooks import Signals, SignalSpec
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

STUDENT, TEACHER = [torch.tensor([[3.0, 4.0]])], [torch.tensor([[0.0, 2.0]])]


def test_patience_by_hand():
    assert pkd_patience(STUDENT, TEACHER).item() == pytest.approx(0.2, abs=1e-6)
    assert pkd_patience(STUDENT, TEACHER, "sum").item() == pytest.approx(0.4, abs=1e-6)


def test_patience_sees_directions_alone():
    generator = torch.Generator().manual_seed(1)
    own = [torch.randn(5, 8, generator=generator) for _ in range(3)]
    other = [torch.randn(5, 8, generator=generator) for _ in range(3)]
    scaled = [states * 7.0 for states in own]
    assert pkd_patience(scaled, other).item() == pytest.approx(pkd_patience(own, other).item(), abs=1e-6)
    assert pkd_patience(own, scaled).item() == pytest.approx(0.0, abs=1e-6)
    opposite = [-states for states in own]
    assert pkd_patience(own, opposite, "sum").item() == pytest.approx(3 * 4.0, abs=1e-5)


def test_the_sum_is_the_slow_loop():
    generator = torch.Generator().manual_seed(2)
    own = [torch.randn(4, 6, generator=generator) for _ in range(2)]
    other = [torch.randn(4, 6, generator=generator) for _ in range(2)]
    total = 0.0
    for first, second in zip(own, other, strict=True):
        for a, b in zip(first, second, strict=True):
            total += ((a / a.norm() - b / b.norm()) ** 2).sum().item()
    assert pkd_patience(own, other, "sum").item() == pytest.approx(total / 4, rel=1e-5)
    assert pkd_patience(own, other).item() == pytest.approx(total / 4 / 2 / 6, rel=1e-5)


def test_layer_maps_of_the_paper():
    """The sheet counts teacher layers from 1 and leaves the last student layer out."""
    skip, last = map_layers("uniform", 6, 12), map_layers("last", 6, 12)
    assert [layer + 1 for layer in skip[:-1]] == [2, 4, 6, 8, 10]
    assert [layer + 1 for layer in last[:-1]] == [7, 8, 9, 10, 11]
    assert [layer + 1 for layer in map_layers("uniform", 4, 12)] == [3, 6, 9, 12]
    assert map_layers("first", 3, 6) == (0, 1, 2)
    assert map_layers((0, 0, 5), 3, 6) == (0, 0, 5)
    with pytest.raises(ValueError, match="needs 3 numbers, one for each student layer, each from 0 to 5"):
        map_layers((0, 6, 1), 3, 6)
    for student in range(1, 13):
        for teacher in range(student, 25):
            found = map_layers("uniform", student, teacher)
            assert list(found) == sorted(set(found))
            assert found[-1] == teacher - 1


def test_auto_finds_the_layers_a_student_was_cut_from():
    generator = torch.Generator().manual_seed(3)
    states = [torch.randn(200, 16, generator=generator)]
    for _ in range(5):
        states.append(torch.tanh(states[-1] + torch.randn(200, 16, generator=generator)))
    turn = torch.linalg.qr(torch.randn(16, 16, generator=generator)).Q
    assert most_similar([states[1] @ turn, states[4] * 3], states) == (1, 4)
    assert cka(states[0], states[0] @ turn * 2) == pytest.approx(1.0, abs=1e-9)


def test_auto_compares_real_models(caplog, tmp_path):
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec)
    student = tiny_taskmodel("bert", task.spec)
    technique = PatientDistillation(layer_map="auto")
    with caplog.at_level("INFO"):
        loss = technique.bind(student, rows_of(student, task.train, 1), ModelTeacher(teacher, cache=tmp_path))
    assert loss.layer_map == (0, 1)
    assert "layer map chosen by similarity: [0, 1, 2]" in caplog.text


def test_the_whole_loss_is_the_weighted_sum():
    spec = TaskSpec(kind="classification", labels=("a", "b"))
    mask = torch.ones(1, 2, dtype=torch.int64)
    batch = Batch({"input_ids": mask, "attention_mask": mask}, {"labels": torch.tensor([0])}, torch.arange(1))
    states = torch.tensor([[[0.0, 2.0], [9.0, 9.0]]])
    own = Signals(torch.tensor([[1.0, 0.0]]), {1: torch.tensor([[[3.0, 4.0], [5.0, 5.0]]])})
    reader = lambda batch: Signals(torch.tensor([[2.0, 0.0]]), {2: states})  # noqa: E731
    config = PatientDistillation(temperature=1.0, alpha=0.7, beta=10.0)
    soft = LogitDistillation(temperature=1.0, alpha=0.7).bind(
        SimpleNamespace(task=spec), None, SimpleNamespace(read=lambda rows: reader)
    )
    from compress.distill.pkd import PatientLoss

    terms = PatientLoss(config, soft, (1,), 0, SignalSpec())(own, batch)
    assert terms["soft"].item() == pytest.approx(0.7 * 0.067131, abs=1e-6)
    assert terms["task"].item() == pytest.approx(0.3 * 0.313262, abs=1e-6)
    assert terms["patience"].item() == pytest.approx(10 * 0.2, abs=1e-5)


def test_what_cannot_be_is_refused_by_name():
    task = tiny_task("classification")
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec))
    thin = tiny_taskmodel("bert", task.spec, hidden_size=16, num_hidden_layers=1)
    found = PatientDistillation(layer_map=(0, 1)).check(thin, Inputs(teacher=teacher))
    assert [problem.split(": ")[0] for problem in found] == ["distill.pkd"] * 3
    assert "needs 1 numbers" in found[0]
    assert "the student has 16 and the teacher 32" in found[1]
    assert "at least 2 layers" in found[2]
