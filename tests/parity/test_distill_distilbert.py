"""DistilBERT's triple loss against the numbers of its formula, and its choice of layers."""

import random
from collections import Counter

import numpy as np
import pytest
import torch

from compress.distill.distilbert import DistilBertDistillation, TripleLoss
from compress.student.layer_choice import choose_layers
from eval.encoding import IGNORED
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch, smoothed, weighted_places
from teachers.signals.hooks import NOTHING, Signals
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel


def triple_loss(config, spec, signals):
    return TripleLoss(spec, lambda batch: signals, config, NOTHING, (3, 6))


def test_the_triple_loss_by_hand():
    """The weights 5, 2 and 1 on 0.113289, 0.313262 and 0.52 give 1.712968."""
    spec = TaskSpec(kind="masked-lm")
    teacher = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    student = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    labels = torch.tensor([[0, IGNORED]])
    batch = Batch({"input_ids": labels, "attention_mask": torch.ones(1, 2)}, {"labels": labels}, torch.arange(1))
    hidden = torch.tensor([[[3.0, 4.0], [1.0, 0.0]]])
    other = torch.tensor([[[4.0, 3.0], [0.0, 2.0]]])
    loss = triple_loss(DistilBertDistillation(), spec, Signals(teacher, {6: other}))
    terms = loss(Signals(student, {3: hidden}), batch)
    assert terms["soft"].item() == pytest.approx(5 * 0.113289, abs=1e-5)
    assert terms["task"].item() == pytest.approx(2 * 0.313262, abs=1e-5)
    assert terms["cosine"].item() == pytest.approx(0.52, abs=1e-6)
    assert sum(terms.values()).item() == pytest.approx(1.712968, abs=1e-5)


def test_only_predicted_compares_masked_places_alone():
    spec = TaskSpec(kind="masked-lm")
    teacher = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    student = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    labels = torch.tensor([[0, IGNORED]])
    batch = Batch({"input_ids": labels, "attention_mask": torch.ones(1, 2)}, {"labels": labels}, torch.arange(1))
    config = DistilBertDistillation(only_predicted=True, alpha_soft=1, alpha_task=0, alpha_cos=0, temperature=1)
    terms = triple_loss(config, spec, Signals(teacher))(Signals(student), batch)
    assert terms["soft"].item() == pytest.approx(0.067131, abs=1e-6)
    assert set(terms) == {"soft"}


def test_padding_changes_no_term():
    spec = TaskSpec(kind="classification", labels=("a", "b"))
    generator = torch.Generator().manual_seed(1)
    hidden, other = torch.randn(2, 3, 4, generator=generator), torch.randn(2, 3, 4, generator=generator)
    logits, labels = torch.randn(2, 2, generator=generator), torch.tensor([0, 1])
    sums = []
    for extra in (0, 5):
        mask = torch.nn.functional.pad(torch.tensor([[1, 1, 1], [1, 1, 0]]), (0, extra))
        batch = Batch({"input_ids": mask, "attention_mask": mask}, {"labels": labels}, torch.arange(2))
        wide = [torch.nn.functional.pad(x, (0, 0, 0, extra), value=7.0) for x in (hidden, other)]
        loss = triple_loss(DistilBertDistillation(), spec, Signals(logits * 2, {6: wide[1]}))
        sums.append(sum(loss(Signals(logits, {3: wide[0]}), batch).values()).item())
    assert sums[0] == pytest.approx(sums[1], abs=1e-6)


def test_layers_of_the_authors_script():
    assert choose_layers(12, 6, "spread") == (0, 2, 4, 7, 9, 11)
    assert choose_layers(12, 6, "stride") == (0, 2, 4, 6, 8, 10)
    assert choose_layers(12, 3, "stride") == (0, 4, 8)
    assert choose_layers(12, 4, "stride") == (0, 3, 6, 9)
    assert choose_layers(6, 3, "spread") == (0, 2, 5)
    assert choose_layers(6, 2, "first") == (0, 1)
    assert choose_layers(6, 2, "last") == (4, 5)
    for total in range(1, 25):
        for count in range(1, total + 1):
            for pick in ("spread", "stride"):
                kept = choose_layers(total, count, pick)
                assert len(set(kept)) == count
                assert list(kept) == sorted(kept)
                assert kept[-1] < total


def test_rare_tokens_are_masked_more_often_by_hand():
    assert smoothed(np.array([0, 1, 10, 100, 1000]), 0.7) == pytest.approx(
        [1, 1, 0.199526, 0.039811, 0.007943], abs=1e-6
    )
    assert smoothed(np.array([0, 1, 1000]), 0.0).tolist() == [1.0, 1.0, 1.0]


def test_places_are_drawn_without_replacement():
    """Shares of places against draws one by one, each in proportion to what is left; special tokens never."""
    ids = np.array([[0, 1, 2, 3, 0], [0, 3, 3, 0, 9]])
    weights = np.array([5.0, 4.0, 2.0, 1.0, 1, 1, 1, 1, 1, 5.0])
    generator, chance = np.random.default_rng(1), random.Random(2)
    rounds, found, expected = 4000, np.zeros(ids.shape), np.zeros(ids.shape)
    for _ in range(rounds):
        drawn = weighted_places(ids, np.array([0, 9]), weights, 2, generator)
        assert drawn.sum() == 2
        found += drawn
        left = [(row, place) for row, place in np.argwhere((ids != 0) & (ids != 9)).tolist()]
        for _ in range(2):
            (one,) = chance.choices(left, [weights[ids[place]] for place in left])
            left.remove(one)
            expected[one] += 1
    assert np.abs(found - expected).max() / rounds < 0.03
    assert found[ids == 0].sum() == found[ids == 9].sum() == 0
    assert weighted_places(ids, np.array([0, 9]), weights, 99, generator).sum() == 5


@pytest.mark.parametrize("smoothing", [0.0, 0.7, 3.0])
def test_masks_follow_the_smoothing(smoothing, tmp_path):
    task = tiny_task("masked-lm")
    student = tiny_taskmodel("bert", task.spec)
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1), cache=tmp_path)
    rows = rows_of(student, task.train, 1)
    DistilBertDistillation(mlm_smoothing=smoothing).bind(student, rows, teacher)
    counts = np.bincount([token for feature in rows.features for token in feature.ids])
    drawn, tokens, special = [], 0, set(student.tokenizer.all_special_ids)
    for epoch in range(40):
        for start in range(0, len(rows), 10):
            batch = rows.batch(range(start, start + 10), epoch)
            labels = batch.targets["labels"]
            predicted = labels[labels != IGNORED].tolist()
            if smoothing:
                shares = 0.15 * batch.mask.sum(dim=1)
                found = (labels != IGNORED).sum(dim=1)
                assert ((found >= shares.floor()) & (found <= shares.ceil())).all()
            drawn, tokens = drawn + predicted, tokens + int(batch.mask.sum())
    assert not special & set(drawn)
    assert not smoothing or len(drawn) / tokens == pytest.approx(0.15, abs=0.003)
    # Of the frequent and the rare half of all words, how much more often one of the rare ones is masked.
    words = [token for token in range(len(counts)) if counts[token] and token not in special]
    middle = np.median(counts[words])
    often = Counter(drawn)
    rate = {
        rare: sum(often[t] for t in words if (counts[t] <= middle) == rare)
        / sum(counts[t] for t in words if (counts[t] <= middle) == rare)
        for rare in (True, False)
    }
    ratio = rate[True] / rate[False]
    assert {0.0: 0.9 < ratio < 1.1, 0.7: 1.5 < ratio < 4, 3.0: ratio > 4}[smoothing], ratio
