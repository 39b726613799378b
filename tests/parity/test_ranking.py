"""Pairwise ranking: the sheet's number, the formula in loops, whole queries in batches, and a ranker that learns."""

import math

import pytest
import torch

from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples, TaskSpec
from teachers.finetuning.finetune import finetune
from teachers.losses.catalogue import PairwiseRanking
from teachers.losses.ranking import ranking_loss
from teachers.signals.hooks import Signals
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.scoring import rows_of
from teachers.training.training_task import TrainingTask
from tests.tiny import BAD, GOOD, tiny_task, tiny_taskmodel


def by_loops(scores, right, group):
    found = []
    for i in range(len(scores)):
        wrong = [math.exp(scores[j]) for j in range(len(scores)) if group[j] == group[i] and not right[j]]
        if right[i] and wrong:
            found.append(-math.log(math.exp(scores[i]) / (math.exp(scores[i]) + sum(wrong))))
    return sum(found) / len(found) if found else 0.0


def ranked(kind="regression", queries=16, seed=1):
    """Return a task in which the one good text among four is right, whatever the query says."""
    generator = torch.Generator().manual_seed(seed)
    splits = {}
    for name in ("train", "validation"):
        rows = []
        for query in range(queries):
            right = int(torch.randint(4, (1,), generator=generator))
            for place in range(4):
                words = GOOD if place == right else BAD
                word = words[int(torch.randint(len(words), (1,), generator=generator))]
                label = float(place == right) if kind == "regression" else ("no", "yes")[place == right]
                rows.append({"text_a": f"{name} {query}", "text_b": f"the film is {word}", "label": label})
        splits[name] = Examples(rows, name)
    labels = () if kind == "regression" else ("no", "yes")
    spec = TaskSpec(kind=kind, labels=labels, metric="spearman" if not labels else "accuracy", pair=True, max_length=32)
    task = tiny_task()
    return type(task)(spec, splits, source="ranked")


class TestFormula:
    def test_the_right_one_first_of_two(self):
        loss = ranking_loss(torch.tensor([2.0, 0.0]), torch.tensor([True, False]), torch.tensor([0, 0]))
        assert loss.item() == pytest.approx(0.126928, abs=1e-6)

    def test_several_queries_in_loops(self):
        scores = torch.tensor([0.3, -1.0, 2.0, 0.5, 0.1, -0.4, 1.2, 0.7])
        right = torch.tensor([True, False, False, True, True, False, True, False])
        group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3])  # two right ones in 1; 2 and 3 teach nothing
        found = ranking_loss(scores, right, group)
        assert found.item() == pytest.approx(by_loops(scores.tolist(), right.tolist(), group.tolist()), abs=1e-6)
        assert ranking_loss(scores[6:], right[6:], group[6:]).item() == 0.0

    def test_the_gradient_is_the_probability_less_the_truth(self):
        scores = torch.tensor([2.0, 0.0, 1.0], requires_grad=True)
        ranking_loss(scores, torch.tensor([True, False, False]), torch.zeros(3)).backward()
        expected = scores.detach().softmax(dim=0) - torch.tensor([1.0, 0.0, 0.0])
        assert torch.allclose(scores.grad, expected, atol=1e-6)


class TestRows:
    @pytest.mark.parametrize(("relevant", "sign"), [(None, 1), ("yes", 1), ("no", -1)])
    def test_the_score_is_the_logit_of_the_relevant_label_less_the_other(self, relevant, sign):
        task = ranked("classification")
        loss = PairwiseRanking(relevant=relevant)
        student = tiny_taskmodel("bert", task.spec)
        rows = rows_of(student, loss.select(task.spec, task.train), 1)
        bound = loss.bind(student, rows)
        logits = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
        order = [4, 1, 7, 0, 3, 2, 6, 5]
        found = bound(Signals(logits), rows.batch(order))["ranking"].item()
        scores = (sign * (logits[:, 1] - logits[:, 0])).tolist()
        right = [task.train[row]["label"] == (relevant or "yes") for row in order]
        assert found == pytest.approx(by_loops(scores, right, [row // 4 for row in order]), abs=1e-6)

    def test_of_numbers_the_largest_of_a_query_is_right(self):
        task = ranked()
        student = tiny_taskmodel("bert", task.spec)
        marks = [2.0, 1.0, 0.0, 2.0, 3.0, 3.0]
        texts = ["q"] * 4 + ["p"] * 2
        examples = Examples([{"text_a": q, "text_b": "x", "label": y} for q, y in zip(texts, marks, strict=True)])
        loss = PairwiseRanking()
        chosen = loss.select(task.spec, examples)
        assert [example["text_a"] for example in chosen] == ["q"] * 4, "all of p are equal, so p teaches nothing"
        bound = loss.bind(student, rows_of(student, chosen, 1))
        assert list(bound.right) == [True, False, False, True]

    def test_a_query_stays_in_one_batch(self):
        task = ranked()
        training_task = TrainingTask(tiny_taskmodel("bert", task.spec), task.train, PairwiseRanking())
        for size in (8, 10):
            batches = training_task.bind(1).batches(Training(batch_size=size), 1)
            for batch in batches:
                found = [task.train[row]["text_a"] for row in batch]
                assert len(set(found)) == 2
                assert len(found) == 8

    def test_pieces_of_a_batch_add_up(self):
        task, found = ranked(), []
        for pieces in (1, 2, 3):
            student = tiny_taskmodel("bert", task.spec, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
            training = Training(max_steps=2, batch_size=20, gradient_accumulation_steps=pieces)
            found.append(train(student, task.train, PairwiseRanking(), training)[-1]["loss"])
        assert found == pytest.approx([found[0]] * 3, rel=1e-4)


class TestMistakes:
    @pytest.mark.parametrize(
        ("kind", "pair", "match"),
        [("classification", False, "the task is classification of single texts"), ("tagging", False, "is tagging of")],
    )
    def test_other_tasks_are_refused(self, kind, pair, match):
        task = tiny_task(kind, pair=pair)
        with pytest.raises(UserError, match=match):
            train(tiny_taskmodel("bert", task.spec), task.train, PairwiseRanking())

    def test_what_cannot_be_ranked_is_refused(self):
        task = ranked("classification")
        with pytest.raises(UserError, match="relevant: there is no label 'yess'; did you mean 'yes'"):
            PairwiseRanking(relevant="yess").select(task.spec, task.train)
        alone = Examples(task.train.items[::4], "train")
        with pytest.raises(UserError, match=r"none of the 16 queries \(text_a\) of train has both a right candidate"):
            PairwiseRanking().select(task.spec, alone)


def test_a_ranker_learns_to_put_the_right_text_first(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
    task = ranked()
    training = Training(epochs=6, learning_rate=3e-3, batch_size=16)
    start = tiny_taskmodel("bert", task.spec)
    ranker, _ = finetune(start, task, training, loss=PairwiseRanking())

    def first(model):
        scores = [answer["score"] for answer in predict(model, task.validation).answers]
        hits = 0
        for query in range(16):
            four = scores[4 * query : 4 * query + 4]
            hits += task.validation[4 * query + four.index(max(four))]["label"] == 1.0
        return hits / 16

    assert first(ranker) >= 0.9
    assert first(tiny_taskmodel("bert", task.spec)) < 0.9
