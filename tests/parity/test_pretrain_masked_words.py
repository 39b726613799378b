"""What masked language hides, against the counts that the papers' rates give."""

import itertools
import math

import numpy as np
import pytest

from eval.encoding import IGNORED
from teachers.pretraining.masking import (
    Replacement,
    budget_of,
    choose,
    choose_spans,
    hide,
    phrases,
    span_lengths,
    tokens,
    whole_words,
)

WORDS = [-1, 0, 0, 1, 2, 2, 2, 3, -1, 4, 5, -1, -1]
"""[CLS], four words of 2, 1, 3 and 1 pieces, [SEP], two words, [SEP] and padding."""


def chance(seed=0):
    return np.random.default_rng(seed)


def test_units_leave_special_tokens_out():
    assert tokens(WORDS) == [[1], [2], [3], [4], [5], [6], [7], [9], [10]]
    assert whole_words(WORDS) == [[1, 2], [3], [4, 5, 6], [7], [9], [10]]


def test_phrases_are_units_and_the_longer_wins():
    assert phrases(WORDS, [(1, 3)]) == [[1, 2], [3, 4, 5, 6], [7], [9], [10]]
    assert phrases(WORDS, [(0, 2), (1, 4)]) == [[1, 2], [3, 4, 5, 6, 7], [9], [10]]
    assert phrases(WORDS, []) == whole_words(WORDS)
    assert phrases(WORDS, [(0, 1), (1, 2)]) == whole_words(WORDS), "two phrases side by side stay apart"


@pytest.mark.parametrize(("rate", "able", "expected"), [(0.15, 100, 15), (0.15, 9, 2), (0.15, 1, 1), (0.15, 0, 0)])
def test_the_budget_is_a_share_of_what_can_be_hidden(rate, able, expected):
    assert budget_of([[place] for place in range(able)], rate) == expected


def test_units_are_hidden_whole_and_never_pass_the_budget():
    words = list(itertools.chain.from_iterable([word] * (1 + word % 4) for word in range(60)))
    units = whole_words(words)
    budget = budget_of(units, 0.15)
    counts = []
    for seed in range(300):
        chosen = choose(units, budget, chance(seed))
        assert all(unit in units for unit in chosen)
        counts.append(sum(map(len, chosen)))
    assert max(counts) == budget == math.ceil(0.15 * len(words))
    assert np.mean(counts) > 0.97 * budget


def test_each_unit_is_as_likely_as_another():
    units = [[place] for place in range(20)]
    found = np.zeros(20)
    for seed in range(2000):
        for (place,) in choose(units, 3, chance(seed)):
            found[place] += 1
    assert np.abs(found / 2000 - 0.15).max() < 4 * math.sqrt(0.15 * 0.85 / 2000)


def test_span_lengths_are_those_of_the_paper():
    expected = [0.224058, 0.179246, 0.143397, 0.114718, 0.091774, 0.073419, 0.058735, 0.046988, 0.037591, 0.030073]
    np.testing.assert_allclose(span_lengths(), expected, atol=5e-7)
    assert (span_lengths() * np.arange(1, 11)).sum() == pytest.approx(3.797097, abs=1e-6)


def test_drawn_spans_have_these_lengths():
    words = [[place] for place in range(400)]
    lengths = [len(choose_spans(words, 10, chance(seed))[0]) for seed in range(10_000)]
    assert abs(np.mean(lengths) - 3.797) < 0.11
    assert max(lengths) <= 10


def test_spans_are_whole_words_apart_from_special_tokens_within_the_budget():
    units = whole_words([w + 6 * k if w >= 0 else -1 for k in range(8) for w in WORDS])
    budget = budget_of(units, 0.15)
    pieces = {place: tuple(unit) for unit in units for place in unit}
    for seed in range(300):
        spans = choose_spans(units, budget, chance(seed))
        hidden = [place for span in spans for place in span]
        assert len(hidden) == len(set(hidden)) <= budget
        for span in spans:
            assert span == list(range(span[0], span[-1] + 1))
            assert all(set(pieces[place]) <= set(span) for place in span)


def test_of_ten_thousand_hidden_tokens_eight_thousand_are_masks():
    ids = np.full(10_000, 7)
    changed, labels = hide(ids, [[place] for place in range(10_000)], 4, lambda n: np.full(n, 9), chance())
    assert (labels == 7).all()
    assert abs((changed == 4).sum() - 8000) < 160
    assert abs((changed == 9).sum() - 1000) < 120
    assert abs((changed == 7).sum() - 1000) < 120


def test_a_span_shares_one_draw_and_a_word_does_not():
    ids = np.arange(100, 1100)
    units = [list(range(start, start + 5)) for start in range(0, 1000, 5)]
    changed, _ = hide(ids, units, 4, lambda n: np.full(n, 9), chance(), Replacement(by_unit=True))
    kinds = [{4: "mask", 9: "random"}.get(int(value), "same") for value in changed]
    assert all(len(set(kinds[start : start + 5])) == 1 for start in range(0, 1000, 5))
    changed, _ = hide(ids, units, 4, lambda n: np.full(n, 9), chance())
    assert any(len(set((changed[unit] == 4).tolist())) == 2 for unit in units)


def test_the_text_itself_is_left_alone_and_comes_back_with_the_seed():
    ids = np.arange(50)
    units = [[place] for place in range(5, 45)]
    first, second, other = (
        hide(ids, choose(units, 6, c := chance(seed)), 4, lambda n: np.full(n, 1), c) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(ids, np.arange(50))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[1], other[1]), "another epoch hides other tokens"
    assert (first[1][:5] == IGNORED).all()
