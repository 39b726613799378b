"""StructBERT's shuffled trigrams, by count over many sequences."""

import math

import numpy as np
import pytest

from eval.encoding import IGNORED
from teachers.pretraining.objectives.word_structural import shuffle_trigrams


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
