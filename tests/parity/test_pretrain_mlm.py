"""What masked language hides, against the counts that the papers' rates give."""

import itertools
import math
from collections import Counter
from operator import itemgetter

import numpy as np
import pytest

from eval.data.sources import Source
from eval.encoding import IGNORED
from teachers.pretraining.objectives import MaskedLM
from teachers.pretraining.objectives.masking import (
    Replacement,
    budget_of,
    choose,
    choose_spans,
    hide,
    last_lengths,
    ngram_lengths,
    phrases,
    span_lengths,
    tokens,
    whole_words,
)
from teachers.pretraining.objectives.pretext_objective import Text
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.text.corpus import build
from teachers.pretraining.text.sequence import Frame
from teachers.pretraining.text.sequence_sources import Packed
from tests.tiny import tiny_tokenizer

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


def test_ngram_lengths_are_those_of_the_paper():
    np.testing.assert_allclose(ngram_lengths(), [0.545455, 0.272727, 0.181818], atol=5e-7)
    np.testing.assert_allclose(ngram_lengths(4), [12 / 25, 6 / 25, 4 / 25, 3 / 25])
    assert (ngram_lengths() * np.arange(1, 4)).sum() == pytest.approx(1.636, abs=5e-4)


def sequence(count, pieces, seed):
    """Return words of one piece or more, ``pieces`` on average, after a special token."""
    sizes = 1 + chance(seed).poisson(pieces - 1, count)
    ends = 1 + np.cumsum(sizes)
    return [list(range(end - size, end)) for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)]


def lengths_of(shares, count, pieces=1.0, rounds=150):
    """Return the lengths in words of all spans of many sequences, and the part of the budgets that they take."""
    found, spent, allowed = [], 0, 0
    for seed in range(rounds):
        words = sequence(count, pieces, seed)
        word_of = {place: number for number, word in enumerate(words) for place in word}
        budget = budget_of(words, 0.15)
        spans = choose_spans(words, budget, chance(seed + 1000), shares)
        assert sum(map(len, spans)) <= budget
        spent, allowed = spent + sum(map(len, spans)), allowed + budget
        found += [len({word_of[place] for place in span}) for span in spans]
    return found, spent / allowed


@pytest.mark.parametrize("pieces", [1.0, 1.35])
@pytest.mark.parametrize(
    "shares", [span_lengths(), ngram_lengths(), span_lengths(0.5, 4)], ids=["span", "ngram", "other"]
)
def test_all_spans_of_long_sequences_have_these_lengths(shares, pieces):
    """A span loses nothing to the end of the text, to other spans, or to the end of the budget."""
    mean = (shares * np.arange(1, len(shares) + 1)).sum()
    found, spent = lengths_of(shares, 500, pieces)
    assert np.mean(found) == pytest.approx(mean, rel=0.03)
    assert spent > 0.99
    frequencies = np.bincount(found, minlength=len(shares) + 1)[1:] / len(found)
    assert np.abs(frequencies - shares).max() < 0.02


@pytest.mark.parametrize(("count", "least"), [(48, 3.45), (96, 3.5)])
def test_spans_of_short_sequences_are_hardly_shorter(count, least):
    """What the recipes read: 64 and 128 tokens; cutting the last span to the budget gives 3.1 and 3.3."""
    found, spent = lengths_of(span_lengths(), count, 1.35, rounds=1000)
    assert least < np.mean(found) < 3.95
    assert spent > 0.95


@pytest.mark.parametrize("shares", [span_lengths(), ngram_lengths()], ids=["span", "ngram"])
def test_no_span_touches_another_and_none_reaches_over_what_is_not_a_word(shares):
    words = [w + 60 * k if w >= 0 else -1 for k in range(4) for w in (-1, *(i // 2 for i in range(40)))]
    units = whole_words(words)
    for seed in range(300):
        spans = choose_spans(units, budget_of(units, 0.3), chance(seed), shares)
        hidden = {place for span in spans for place in span}
        for span in spans:
            assert span == list(range(span[0], span[-1] + 1))
            assert all(words[place] >= 0 for place in span)
            assert not {span[0] - 1, span[-1] + 1} & hidden


@pytest.mark.parametrize("able", range(1, 8))
def test_something_is_hidden_however_short_the_sequence_is(able):
    single, long = [[place] for place in range(able)], [list(range(4 * n, 4 * n + 4)) for n in range(able)]
    for seed in range(50):
        assert len(choose_spans(single, 1, chance(seed))) == 1
        assert choose_spans(long, 3, chance(seed)) == [], "no word fits"
        assert [len(span) for span in choose_spans(long, 5, chance(seed))] == [4]
    assert choose_spans([], 0, chance()) == choose_spans([], 3, chance()) == []


def test_the_last_spans_keep_the_mean_and_take_what_is_left():
    for shares, rooms in ((span_lengths(), (4, 6.6, 9)), (ngram_lengths(), (2, 2.6))):
        mean = (shares * np.arange(1, len(shares) + 1)).sum()
        for room in rooms:
            drawn = [last_lengths(room, shares, chance(seed)) for seed in range(2000)]
            assert np.mean([abs(sum(lengths) - room) for lengths in drawn]) < 0.5
            assert np.mean(list(map(len, drawn))) == pytest.approx(room / mean, rel=0.04)
    assert last_lengths(0.8, span_lengths(), chance()) == [1]


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


def test_alberts_ngrams_are_seen_in_the_labels_and_each_token_has_its_own_draw(tmp_path):
    tokenizer, own = tiny_tokenizer("bert"), ["film", "good", "warm", "room", "of", "ann", "in", "paris", "it", "was"]
    documents = (" ".join(chance(seed).choice(own, 700)) for seed in range(40))
    (tmp_path / "a.txt").write_text("\n\n".join(documents), encoding="utf-8")
    corpus = build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")
    frame = Frame(tokenizer)
    source = Packed(corpus, frame, 512, "doc_sentences", "sentence_order")
    rows = PretextDataset(source, frame, {"mlm": MaskedLM(units="ngram").ask(Text(corpus, frame, tokenizer))})
    lengths, kinds, hidden = Counter(), Counter(), 0
    for number in range(len(rows)):
        drawn = rows.draw(number, 0)
        labels, words = drawn.targets["mlm"], drawn.words
        hidden += (labels != IGNORED).sum() / (words >= 0).sum() / len(rows)
        for masked, run in itertools.groupby(enumerate((labels != IGNORED).tolist()), key=itemgetter(1)):
            places = [place for place, _ in run]
            if masked:
                lengths[len(set(words[places]))] += 1
                kinds[len(places), frozenset((drawn.ids[places] == frame.mask).tolist())] += 1
                assert set(words[places]).isdisjoint({words[places[0] - 1], words[places[-1] + 1]}), "whole words"
    shares = np.array([lengths[n] for n in (1, 2, 3)]) / lengths.total()
    assert lengths.total() > 1500
    assert max(lengths) == 3
    np.testing.assert_allclose(shares, [6 / 11, 3 / 11, 2 / 11], atol=0.03)
    assert hidden == pytest.approx(0.15, abs=0.003)
    mixed, two = kinds[2, frozenset({True, False})], sum(count for (size, _), count in kinds.items() if size == 2)
    assert mixed / two == pytest.approx(2 * 0.8 * 0.2, abs=0.08)
