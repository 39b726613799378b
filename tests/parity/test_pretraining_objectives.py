"""Objectives of pretraining beside the masked language, against numbers made by hand."""

import math

import numpy as np
import pytest
import torch

from teachers.pretraining.masking import IGNORED
from teachers.pretraining.replaced import WEIGHT, auc, discriminator_loss, replaced, sample
from teachers.pretraining.span_boundary import SpanBoundary, boundary_places
from teachers.pretraining.words import capitals, in_document, shuffle_trigrams

# ---- ELECTRA


def test_a_discriminator_that_knows_nothing_loses_ln_2_times_50():
    mask = torch.ones(2, 5)
    loss = discriminator_loss(torch.zeros(2, 5), torch.randint(0, 2, (2, 5)).float(), mask)
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert WEIGHT * loss.item() == pytest.approx(34.657, abs=1e-3)


def test_padding_is_not_judged():
    scores, labels = torch.tensor([[0.0, 9.0]]), torch.tensor([[1.0, 0.0]])
    assert discriminator_loss(scores, labels, torch.tensor([[1.0, 0.0]])).item() == pytest.approx(math.log(2))


def test_what_the_generator_guesses_right_is_original():
    text = torch.arange(20)[None]
    labels = torch.full((1, 20), IGNORED)
    labels[0, [3, 7, 11]] = text[0, [3, 7, 11]]
    ids = text.clone()
    ids[0, [3, 7, 11]] = 30
    logits = torch.full((1, 20, 40), -1e4)
    logits[0, 3, 3] = logits[0, 7, 8] = logits[0, 11, 12] = 1e4
    filled, is_replaced = replaced(ids, labels, logits, torch.Generator().manual_seed(0))
    assert is_replaced.sum().item() == 2
    assert (1 - is_replaced).sum().item() == 18
    assert filled[0, [3, 7, 11]].tolist() == [3, 8, 12]
    assert (filled[labels == IGNORED] == text[labels == IGNORED]).all()


def test_no_gradient_of_the_discriminator_reaches_the_generator():
    generator, discriminator = torch.nn.Linear(4, 10), torch.nn.Embedding(10, 1)
    logits = generator(torch.randn(1, 6, 4))
    labels = torch.tensor([[1, IGNORED, 3, IGNORED, IGNORED, 2]])
    filled, is_replaced = replaced(
        torch.zeros(1, 6, dtype=torch.int64), labels, logits, torch.Generator().manual_seed(0)
    )
    discriminator_loss(discriminator(filled)[..., 0], is_replaced, torch.ones(1, 6)).backward()
    assert generator.weight.grad is None
    assert discriminator.weight.grad.abs().sum() > 0


def test_samples_follow_the_softmax():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2])).repeat(20_000, 1)
    counts = torch.bincount(sample(logits, torch.Generator().manual_seed(0)), minlength=3) / 20_000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.2], atol=4 * math.sqrt(0.25 / 20_000))


def test_the_area_under_the_curve_counts_pairs_in_order():
    chance = np.random.default_rng(0)
    scores = torch.tensor(np.round(chance.normal(size=40), 1))
    labels = torch.tensor(chance.integers(0, 2, 40)).float()
    mask = torch.tensor(chance.integers(0, 2, 40)).float()
    values = [(s, y) for s, y, m in zip(scores.tolist(), labels.tolist(), mask.tolist(), strict=True) if m]
    ones, zeros = ([s for s, y in values if y == kind] for kind in (1, 0))
    pairs = [(a > b) + 0.5 * (a == b) for a in ones for b in zeros]
    assert auc(scores, labels, mask) == pytest.approx(np.mean(pairs))
    assert math.isnan(auc(scores, labels * 0, mask))


# ---- SpanBERT


def test_a_token_is_told_from_the_ends_of_its_span_and_its_place():
    places = boundary_places([[[3, 4, 5], [8]], [[2, 3]]])
    assert places.tolist() == [[0, 2, 6, 0], [0, 2, 6, 1], [0, 2, 6, 2], [0, 7, 9, 0], [1, 1, 4, 0], [1, 1, 4, 1]]
    torch.manual_seed(0)
    head, hidden = SpanBoundary(8, positions=5).eval(), torch.randn(2, 12, 8)
    found = head(hidden, places)
    for vector, (row, before, after, number) in zip(found, places.tolist(), strict=True):
        x = torch.cat([hidden[row, before], hidden[row, after], head.places.weight[number]])
        for dense, norm in ((head.layers[0], head.layers[2]), (head.layers[3], head.layers[5])):
            x = dense.weight @ x + dense.bias
            x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
            x = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + norm.eps) * norm.weight + norm.bias
        torch.testing.assert_close(vector, x)


def test_what_stands_inside_a_span_is_not_read():
    torch.manual_seed(0)
    head, hidden, places = SpanBoundary(8), torch.randn(1, 12, 8), boundary_places([[[3, 4, 5]]])
    other = hidden.clone()
    other[0, 3:6] = 99.0
    torch.testing.assert_close(head(hidden, places), head(other, places))


# ---- labels that a text gives for nothing


def test_runs_of_three_are_shuffled_and_asked_for():
    ids, able = np.arange(100, 400), [place for place in range(300) if place % 50]
    shares = []
    for seed in range(100):
        changed, labels = shuffle_trigrams(ids, able, 0.05, np.random.default_rng(seed))
        places = np.flatnonzero(labels != IGNORED)
        assert set(places) <= set(able)
        assert (labels[places] == ids[places]).all()
        assert (np.sort(changed) == ids).all()
        assert (changed[labels == IGNORED] == ids[labels == IGNORED]).all()
        shares.append(len(places) / len(able))
    assert np.mean(shares) == pytest.approx(0.05, abs=0.002)


def test_orders_of_a_run_are_equally_likely_but_for_its_own():
    seen = {}
    for seed in range(5000):
        changed, _ = shuffle_trigrams(np.arange(3), [0, 1, 2], 1.0, np.random.default_rng(seed))
        seen[tuple(changed)] = seen.get(tuple(changed), 0) + 1
    assert len(seen) == 5
    assert np.abs(np.array(list(seen.values())) / 5000 - 0.2).max() < 4 * math.sqrt(0.2 * 0.8 / 5000)


def test_capitals_are_asked_of_the_first_piece_of_a_word():
    labels = capitals([-1, 0, 0, 1, 2, -1], [True, False, True])
    assert labels.tolist() == [IGNORED, 1, IGNORED, 0, 1, IGNORED]


def test_a_token_may_come_back_in_its_document():
    assert in_document([5, 6, 7, 8], [6, 8, 9], [0, 1, 3]).tolist() == [0, 1, IGNORED, 1]
