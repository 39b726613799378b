"""Siamese encoders: the losses by hand and in loops, pairs that stay whole in batches, and encoders that learn."""

import json
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from eval.data.loading import load_task
from eval.errors import UserError
from eval.task import Examples
from teachers.data.batches import WholeGroupBatches
from teachers.data.encoded_dataset import labelled
from teachers.data.example_pairs import matching_pairs
from teachers.finetuning.finetune import finetune
from teachers.losses.catalogue import (
    CosineRegression,
    InBatchNegatives,
    LossBlock,
    MarginContrast,
    PairwiseRanking,
    by_labels,
)
from teachers.losses.siamese import SiameseLoss, cosine_regression, in_batch_negatives, margin_contrast, scaled
from teachers.losses.task_loss import TaskLoss
from teachers.signals.hooks import Signals
from teachers.taskmodel import weights_digest
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.scoring import rows_of, scores
from tests.tiny import tiny_task, tiny_taskmodel

TASK = tiny_task("embedding", pair=True)
DEGREES = Examples([{**e, "label": float(i % 6)} for i, e in enumerate(TASK.train)], "train")
UNLABELLED = Examples([{k: e[k] for k in ("text_a", "text_b")} for e in TASK.train], "train")
LOSSES = (CosineRegression(), MarginContrast(), InBatchNegatives())


def random_vectors(seed=3, rows=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, 5, generator=generator)


class TestFormulas:
    def test_cosine_regression_by_hand(self):
        first, second = torch.tensor([[3.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        targets = scaled(torch.tensor([5.0, 1.0]), (0.0, 5.0))
        assert targets.tolist() == pytest.approx([1.0, 0.2])
        assert cosine_regression(first, second, targets).item() == pytest.approx((0 + 0.2**2) / 2)

    def test_labels_are_scaled_by_their_range_and_stay_inside(self):
        assert scaled(torch.tensor([1.0, 2.0, 5.0])).tolist() == pytest.approx([0, 0.25, 1])
        assert scaled(torch.tensor([-1.0, 9.0]), (0.0, 5.0)).tolist() == [0, 1]

    def test_margin_by_hand(self):
        first, second = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 1.0]])  # at a right angle: d = √2
        assert margin_contrast(first, second, torch.tensor([1.0]), 1.0).item() == pytest.approx(1.0)
        assert margin_contrast(first, second, torch.tensor([0.0]), 1.0).item() == 0.0
        expected = (2 - math.sqrt(2)) ** 2 / 2
        assert margin_contrast(first, second, torch.tensor([0.0]), 2.0).item() == pytest.approx(expected)

    def test_margin_has_a_gradient_where_two_vectors_are_equal(self):
        vectors = torch.ones(2, 1, 3, requires_grad=True)
        margin_contrast(vectors[0], vectors[1], torch.tensor([0.0]), 1.0).backward()
        assert torch.isfinite(vectors.grad).all()

    def test_in_batch_negatives_by_hand(self):
        vectors = torch.eye(2)
        assert in_batch_negatives(vectors, vectors, 1.0).item() == pytest.approx(0.313262, abs=1e-6)
        assert in_batch_negatives(3 * vectors, vectors, 0.5).item() == pytest.approx(0.126928, abs=1e-6)
        assert in_batch_negatives(vectors, vectors.flip(0), 0.5).item() == pytest.approx(2.126928, abs=1e-6)

    def test_all_of_them_in_loops(self):
        first, second = random_vectors()
        unit = [torch.stack([row / row.norm() for row in side]) for side in (first, second)]
        cosine = [[float(u @ v) for v in unit[1]] for u in unit[0]]
        labels = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]
        squares = [(cosine[i][i] - y) ** 2 for i, y in enumerate(labels)]
        found = cosine_regression(first, second, torch.tensor(labels))
        assert found.item() == pytest.approx(np.mean(squares), abs=1e-6)
        contrast = []
        for i, y in enumerate(labels):
            distance = float((unit[0][i] - unit[1][i]).norm())
            contrast.append(distance**2 / 2 if y else max(0, 1.3 - distance) ** 2 / 2)
        found = margin_contrast(first, second, torch.tensor(labels), 1.3)
        assert found.item() == pytest.approx(np.mean(contrast), abs=1e-6)
        ranks = [-c[i] / 0.1 + math.log(sum(math.exp(x / 0.1) for x in c)) for i, c in enumerate(cosine)]
        assert in_batch_negatives(first, second, 0.1).item() == pytest.approx(np.mean(ranks), abs=1e-5)


class TestPairs:
    def test_no_batch_cuts_a_pair_and_every_pair_is_seen_once(self):
        chance = np.random.default_rng(0)
        lengths = chance.integers(3, 30, size=2 * 37).tolist()
        groups = [i // 2 for i in range(74)]
        for size in (8, 9):
            batches = WholeGroupBatches(lengths, size, seed=5, together=groups)
            for epoch in range(2):
                batches.set_epoch(epoch)
                found = list(batches)
                assert len(found) == len(batches) == -(-37 // 4)
                assert all(
                    batch[i + 1] == batch[i] + 1 and batch[i] % 2 == 0
                    for batch in found
                    for i in range(0, len(batch), 2)
                )
                assert all(len(batch) <= size and len(batch) % 2 == 0 for batch in found)
                assert sorted(row for batch in found for row in batch) == list(range(74))
            longest = max(range(74), key=lambda row: lengths[row])
            batches.set_epoch(0)
            assert longest in next(iter(batches)), "the longest first, so that a run out of memory shows at once"
        assert len(WholeGroupBatches([3] * 6, 2, seed=1, together=[0, 0, 0, 0, 1, 1])) == 2, "a large group stays whole"

    def test_one_large_group_leaves_the_others_in_full_batches(self):
        groups = [i // 5 for i in range(200)] + [40] * 30
        batches = WholeGroupBatches([7] * 230, 60, seed=5, together=groups)
        found = list(batches)
        assert len(found) == len(batches) == 5, "ten groups each; two, if all were as large as the largest"
        assert len(found[0]) == max(map(len, found)), "the one with most rows first: a run out of memory shows at once"
        assert sorted(row for batch in found for row in batch) == list(range(230))

    @pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
    def test_the_loss_of_a_batch_is_that_of_its_pairs(self, loss):
        student = tiny_taskmodel("bert", TASK.spec)
        examples = loss.select(TASK.spec, TASK.train)
        rows = rows_of(student, examples, 1)
        bound = loss.bind(student, rows)
        vectors = torch.randn(len(rows), 7, generator=torch.Generator().manual_seed(1))
        order = [5, 4, 0, 13, 12, 1]  # in any order, as a shuffled batch would be
        found = bound(Signals(vectors[order]), rows.batch(order))
        pairs = [2, 0, 6]
        first, second = vectors[[2 * p for p in pairs]], vectors[[2 * p + 1 for p in pairs]]
        labels = torch.tensor([examples[p]["label"] for p in pairs])
        expected = {
            "regression": lambda: cosine_regression(first, second, labels),
            "margin": lambda: margin_contrast(first, second, labels, 1.0),
            "contrastive": lambda: in_batch_negatives(first, second, 0.05),
        }
        (name,) = found
        assert found[name].item() == pytest.approx(expected[name]().item(), abs=1e-6)
        assert bound(Signals(vectors[[1, 2]]), rows.batch([1, 2]))[name].item() == 0.0, "two halves are no pair"

    def test_only_matching_pairs_are_brought_together(self):
        assert len(matching_pairs(TASK.spec, UNLABELLED)) == len(TASK.train)
        found = matching_pairs(TASK.spec, DEGREES)
        assert {example["label"] for example in found} == {5.0}
        assert found[0]["text_a"] == TASK.train[5]["text_a"]
        mixed = Examples([*DEGREES, *UNLABELLED], "train")
        assert matching_pairs(TASK.spec, mixed).items == found.items, "of a pair without a label nothing is known there"

    def test_the_labels_choose_the_loss(self):
        assert by_labels(TASK.train) == MarginContrast()
        assert by_labels(DEGREES) == CosineRegression()
        student = tiny_taskmodel("bert", TASK.spec)
        assert TaskLoss().bind(student, rows_of(student, DEGREES, 1)).name == "regression"

    def test_texts_without_a_label_are_left_out(self):
        mixed = Examples([*TASK.train, {"text": "a film"}, *UNLABELLED[:3]], "train")
        assert labelled(TASK.spec, mixed).items == TASK.train.items


class TestMistakes:
    @pytest.mark.parametrize(
        ("loss", "examples", "match"),
        [
            (CosineRegression(), UNLABELLED, "no labels to learn from unless its examples are pairs"),
            (MarginContrast(), DEGREES, "has 6 different labels; name loss: regression"),
            (CosineRegression(), Examples([TASK.train[1]], "train"), "all 1 pairs of train have the label 1"),
            (InBatchNegatives(), Examples([TASK.train[1]], "train"), "two or more pairs .* and train has 1"),
        ],
    )
    def test_data_that_teaches_nothing_is_refused(self, loss, examples, match):
        with pytest.raises(UserError, match=match):
            train(tiny_taskmodel("bert", TASK.spec), examples, loss, Training(max_steps=1))

    def test_other_kinds_are_refused(self):
        task = tiny_task()
        for loss in LOSSES:
            with pytest.raises(UserError, match="compare vectors of texts, and the task is classification"):
                loss.select(task.spec, task.train)

    def test_single_texts_among_pairs_are_refused_where_nothing_was_selected(self):
        student = tiny_taskmodel("bert", TASK.spec)
        rows = rows_of(student, Examples([*TASK.train[:2], {"text": "a film", "label": 1.0}]), 1)
        with pytest.raises(UserError, match="some examples are single texts"):
            SiameseLoss("regression", rows, lambda u, v, pairs: u.sum())

    def test_a_block_names_one_loss(self):
        assert LossBlock.model_validate("margin").objective == MarginContrast()
        assert LossBlock.model_validate({"contrastive": {"temperature": 0.2}}).objective.temperature == 0.2
        assert LossBlock.model_validate({"ranking": None}).objective == PairwiseRanking()
        for wrong in ({}, {"margin": {}, "regression": {}}):
            with pytest.raises(ValidationError, match="name one loss, of regression, margin, contrastive, ranking"):
                LossBlock.model_validate(wrong)
        with pytest.raises(ValidationError, match="the first number must be below the second"):
            CosineRegression(scale=(5.0, 0.0))


class TestTraining:
    @pytest.mark.parametrize("loss", [None, *LOSSES], ids=lambda loss: type(loss).__name__)
    def test_an_encoder_learns_which_texts_match(self, loss, tmp_path, monkeypatch):
        monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
        task = tiny_task("embedding", pair=True, examples=64)
        start = tiny_taskmodel("bert", task.spec)
        before = scores(start, task.validation)["spearman"]
        training = Training(epochs=6, learning_rate=3e-3, batch_size=16, warmup_steps=0.0)
        teacher, folder = finetune(start, task, training, loss=loss)
        after = scores(teacher, task.validation)["spearman"]
        assert after > max(0.5, before + 0.2)
        again, same = finetune(tiny_taskmodel("bert", task.spec), task, training, loss=loss)
        assert same == folder
        assert again.digest == teacher.digest
        name = next(iter(json.loads((folder / "teacher.json").read_text())["history"][0]["terms"]))
        assert name == {CosineRegression: "regression", InBatchNegatives: "contrastive"}.get(type(loss), "margin")

    def test_each_loss_gives_a_teacher_of_its_own(self, tmp_path, monkeypatch):
        monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
        short = Training(max_steps=2, batch_size=8)
        folders = {finetune(tiny_taskmodel("bert", TASK.spec), TASK, short, loss=loss)[1] for loss in (None, *LOSSES)}
        folders.add(finetune(tiny_taskmodel("bert", TASK.spec), TASK, short, loss=MarginContrast(margin=0.5))[1])
        assert len(folders) == 5

    def test_a_stopped_training_goes_on_to_the_same_weights(self, tmp_path):
        training = Training(epochs=2, batch_size=8, checkpoint_seconds=0.0, learning_rate=1e-3)
        whole, stopped, again = (tiny_taskmodel("bert", TASK.spec) for _ in range(3))
        train(whole, TASK.train, MarginContrast(), training)
        kills = Kills(7)
        with pytest.raises(KeyboardInterrupt):
            train(stopped, TASK.train, kills, training, folder=tmp_path)
        train(again, TASK.train, MarginContrast(), training, folder=tmp_path)
        assert weights_digest(again.model) == weights_digest(whole.model)

    def test_pieces_of_a_batch_add_up(self):
        found = []
        for pieces in (1, 2, 3):
            student = tiny_taskmodel("bert", TASK.spec, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
            training = Training(max_steps=2, batch_size=16, gradient_accumulation_steps=pieces)
            history = train(student, TASK.train, CosineRegression(), training)
            found.append(history[-1]["loss"])
        assert found == pytest.approx([found[0]] * 3, rel=1e-4)


class Kills:
    """The loss by margin, until one update kills the training."""

    def __init__(self, update):
        self.update, self.loss = update, MarginContrast()

    def select(self, spec, examples):
        return self.loss.select(spec, examples)

    def bind(self, student, rows):
        bound = self.loss.bind(student, rows)
        compare = bound.compare

        def kill(*given):
            self.update -= 1
            if self.update < 0:
                raise KeyboardInterrupt
            return compare(*given)

        bound.compare = kill
        return bound


class TestData:
    def written(self, folder, labels):
        for split in ("train", "validation"):
            lines = [{"text_a": "a", "text_b": "b", "label": label} for label in labels]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def test_train_keeps_its_labels_only_where_they_are_asked_for(self, tmp_path):
        data = self.written(tmp_path, [0.5, 1.5])
        assert all("label" not in example for example in load_task("embedding", data).train)
        assert [example["label"] for example in load_task("embedding", data, keep_labels=True).train] == [0.5, 1.5]

    def test_names_of_labels_become_numbers(self, tmp_path):
        data = self.written(tmp_path, ["same", "different"])
        numbers = {"same": "1", "different": "0"}
        for kind in ("embedding", "regression"):
            task = load_task(kind, data, keep_labels=True, label_map=numbers)
            assert [example["label"] for example in task.train] == [1.0, 0.0]
        with pytest.raises(UserError, match="label_map gives 'same' the name 'yes', which must be a number"):
            load_task("embedding", data, label_map={"same": "yes", "different": "0"})
        with pytest.raises(UserError, match="'label' must be a finite number, not 'same'"):
            load_task("embedding", data)
