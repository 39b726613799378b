"""Margin-MSE: the formula said with loops, batches that keep a query together, and a reranker that is trained."""

import numpy as np
import pytest
import torch

from compress import load
from compress.distill.margin_mse import MarginDistillation, margin_mse
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import head_parts
from teachers.data.batches import LengthGroupedBatches
from teachers.losses.ranking import queries, scores
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, at_first, tiny_task, tiny_taskmodel


def by_loops(student, teacher, group, labels=None):
    found = [
        ((student[i] - student[j]) - (teacher[i] - teacher[j])) ** 2
        for i in range(len(group))
        for j in range(i + 1, len(group))
        if group[i] == group[j] and (labels is None or labels[i] != labels[j])
    ]
    return sum(found) / len(found) if found else 0.0


@pytest.mark.parametrize("labelled", [False, True])
def test_the_loss_is_the_mean_over_pairs_of_one_query(labelled):
    generator = torch.Generator().manual_seed(3)
    student, teacher = torch.randn(2, 9, generator=generator)
    group = torch.tensor([0, 1, 0, 2, 1, 0, 3, 3, 1])
    labels = torch.tensor([1, 0, 0, 1, 1, 0, 1, 1, 0]) if labelled else None
    expected = by_loops(student.tolist(), teacher.tolist(), group.tolist(), labels)
    assert margin_mse(student, teacher, group, labels).item() == pytest.approx(float(expected), rel=1e-5)


def test_numbers_by_hand():
    student, teacher = torch.tensor([3.0, 1.0, 0.0]), torch.tensor([5.0, 1.0, 9.0])
    assert margin_mse(student, teacher, torch.tensor([0, 0, 1])).item() == 4.0  # (2 - 4)²
    assert margin_mse(student, teacher, torch.tensor([0, 1, 2])).item() == 0.0
    assert margin_mse(student + 7.0, student, torch.zeros(3)).item() == 0.0  # only differences count
    assert scores(torch.tensor([[1.0, 4.0]])).item() == 3.0
    assert scores(torch.tensor([[1.5]])).item() == 1.5


def test_rows_of_a_query_stand_next_to_each_other():
    lengths = list(np.random.default_rng(0).integers(4, 30, 60))
    together = [number % 20 for number in range(60)]
    batches = LengthGroupedBatches(lengths, 6, seed=1, together=together)
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        rows = list(batches)
        assert sorted(row for batch in rows for row in batch) == list(range(60))
        whole = sum(len({together[row] for row in batch}) == 2 for batch in rows)
        assert whole == len(rows) == 10
    assert len({tuple(batch) for batch in rows}) == 10


def ranked_task():
    """Return a pair task in which every query has four passages."""
    task = tiny_task("classification", pair=True)
    lines = [{**example, "text_a": task.train[number // 4 * 4]["text_a"]} for number, example in enumerate(task.train)]
    return task, Examples(lines, "train")


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "deberta-v2", "xlnet"))
def test_a_reranker_is_trained_saved_and_loaded(family, tmp_path):
    task, train = ranked_task()
    student, teacher = tiny_taskmodel(family, task.spec), tiny_taskmodel(family, task.spec, seed=1)
    with torch.no_grad():
        head_parts(teacher.model)["classifier"].weight.mul_(50.0)  # random networks answer nearly the same to all
    source = ModelTeacher(teacher, cache=tmp_path / "signals")
    technique = MarginDistillation(pairs="all", epochs=10, batch_size=8, learning_rate=2e-3)
    result = run(Recipe(steps=(technique,)), student, Inputs(train=train, teacher=source), dry_run_first=False)
    result.save(tmp_path / "a")
    assert load(tmp_path / "a").digest == result.digest
    group = torch.tensor(queries(rows_of(student, train, 1)))
    assert group.tolist() == [number // 4 for number in range(40)]
    goal = scores(torch.from_numpy(np.stack(predict(teacher, train).logits)))
    before, after = (
        margin_mse(scores(torch.from_numpy(np.stack(predict(model, train).logits))), goal, group).item()
        for model in (student, result)
    )
    assert after < (0.8 if family == "bert" else 1.0) * before


def test_a_task_without_queries_is_refused(tmp_path):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(model, cache=tmp_path))
    with pytest.raises(UserError, match="this bert answers classification of single texts; give it pairs"):
        run(Recipe(steps=(MarginDistillation(),)), model, inputs)
    pairs = tiny_task("classification", pair=True)
    model = tiny_taskmodel("bert", pairs.spec)
    alone = Examples([{**example, "text_a": f"{i} {example['text_a']}"} for i, example in enumerate(pairs.train)], "t")
    inputs = Inputs(train=alone, teacher=ModelTeacher(model, cache=tmp_path))
    with pytest.raises(UserError, match="no two of the 40 training examples have the same text_a"):
        run(Recipe(steps=(MarginDistillation(),)), model, inputs)
