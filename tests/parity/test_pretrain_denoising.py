"""T5's span corruption, BART's denoising and MASS's segment against the examples and figures of their papers."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from eval.encoding import IGNORED
from eval.errors import UserError
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.objectives.denoising import Denoising, infill_spans, infilled, permuted
from teachers.pretraining.objectives.masked_segment import MaskedSegment, segment
from teachers.pretraining.objectives.span_corruption import SpanCorruption, corrupted, noise_spans
from teachers.pretraining.text.sequence import START, Drawn

END, MASK = 1, 3
SENTINELS = [100, 101, 102, 103, 104, 105, 106, 107]


def drawn_of(ids, sentences=()):
    """Return a sequence with an end after it, and what objectives read beside it."""
    words = np.array([*range(len(ids)), -1])
    drawn = Drawn(np.array([*ids, END]), words, np.zeros(len(words), dtype=np.int64), words.copy())
    vocabulary = {f"<extra_id_{number}>": token for number, token in enumerate(SENTINELS)}
    tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary, eos_token_id=END)
    frame = SimpleNamespace(mask=MASK, random=lambda count, chance: np.full(count, 9))
    return drawn, SimpleNamespace(
        corpus=SimpleNamespace(sentence_starts=np.array(sentences)), frame=frame, tokenizer=tokenizer
    )


def restored(seen, taken):
    """Put each span back in the place of its sentinel."""
    spans, name = {}, None
    for token in taken.tolist():
        if token in SENTINELS:
            name = token
            spans[name] = []
        else:
            spans[name].append(token)
    return [one for token in seen.tolist() for one in (spans[token] if token in SENTINELS else [token])]


def test_the_papers_example_of_span_corruption():
    seen, taken = corrupted(np.array([10, 11, 12, 13, 14, 15, 16]), [(1, 3), (5, 6)], SENTINELS)
    assert seen.tolist() == [10, 100, 13, 14, 101, 16]
    assert taken.tolist() == [100, 11, 12, 101, 15, 102]


def test_a_hundred_tokens_have_fifteen_in_five_spans():
    for seed in range(20):
        chance = np.random.default_rng(seed)
        spans = noise_spans(100, 0.15, 3.0, chance)
        assert len(spans) == 5
        assert sum(end - start for start, end in spans) == 15
        assert all(start > before for (_, before), (start, _) in zip([(0, 0), *spans], spans, strict=False))
        seen, taken = corrupted(np.arange(200, 300), spans, SENTINELS)
        assert (len(seen), len(taken)) == (90, 21)
        assert restored(seen, taken) == list(range(200, 300))
    assert noise_spans(1, 0.15, 3.0, chance) == []
    assert noise_spans(2, 0.15, 3.0, chance) == [(1, 2)]


def test_what_a_network_reads_and_writes_of_a_corrupted_span():
    drawn, text = drawn_of(range(10, 50))
    SpanCorruption(rate=0.2, mean=2.0).ask(text)(drawn, np.random.default_rng(1))
    targets = drawn.targets["span_corruption"]
    assert drawn.ids[-1] == targets[-1] == END
    assert restored(drawn.ids[:-1], targets[:-1]) == list(range(10, 50))
    assert drawn.decoder.tolist() == [START, *targets[:-1]]
    assert len(drawn.types) == len(drawn.ids)
    few = SimpleNamespace(get_vocab=lambda: {"a": 0}, eos_token_id=END)
    with pytest.raises(UserError, match="span_corruption: the tokenizer has no sentinels"):
        SpanCorruption().ask(SimpleNamespace(tokenizer=few))


def test_infilling_gives_each_span_one_mask_and_may_insert_one():
    ids = np.arange(10, 110)
    sizes = []
    for seed in range(60):
        spans = infill_spans(100, 0.3, 3.0, np.random.default_rng(seed))
        assert sum(end - start for start, end in spans) == 30
        seen = infilled(ids, spans, MASK)
        assert len(seen) == 70 + len(spans)
        hidden = [one for start, end in spans for one in ids[start:end].tolist()]
        assert sorted([*seen[seen != MASK].tolist(), *hidden]) == ids.tolist()
        assert all(later > before for (_, before), (later, _) in pairwise(spans)), "a token is kept between two spans"
        sizes += [end - start for start, end in spans[:-1]]
    assert 0 in sizes, "a span of no token"
    assert np.mean(sizes) == pytest.approx(3.0, abs=0.3)
    assert infill_spans(4, 0.0, 3.0, np.random.default_rng(0)) == []


def test_sentences_are_permuted_whole():
    ids, begins = np.arange(6), np.array([1, 0, 1, 0, 0, 1], dtype=bool)
    seen = {tuple(permuted(ids, begins, np.random.default_rng(seed)).tolist()) for seed in range(60)}
    sentences = [(0, 1), (2, 3, 4), (5,)]
    assert len(seen) == 6
    assert all(sorted(order) == ids.tolist() for order in seen)
    assert all(any(order[i : i + len(one)] == one for i in range(6)) for order in seen for one in sentences)


def test_a_decoder_writes_the_whole_original():
    drawn, text = drawn_of(range(10, 30), sentences=[0, 7, 12])
    Denoising().ask(text)(drawn, np.random.default_rng(3))
    targets = drawn.targets["denoising"]
    assert targets.tolist() == [*range(10, 30), END]
    assert drawn.decoder.tolist() == [START, *range(10, 30)]
    assert drawn.ids[-1] == END
    kept = drawn.ids[(drawn.ids != MASK) & (drawn.ids != END)]
    assert len(kept) == 14
    assert set(kept.tolist()) <= set(range(10, 30))
    with pytest.raises(UserError, match="denoising: the tokenizer has no mask token"):
        Denoising().ask(SimpleNamespace(frame=SimpleNamespace(mask=-1), corpus=text.corpus))


def test_the_papers_example_of_a_masked_segment():
    targets, read = segment(np.array([10, 11, 12, 13, 14, 15]), 2, 3, MASK)
    assert targets.tolist() == [IGNORED, IGNORED, 12, 13, 14]
    assert read.tolist() == [MASK, MASK, MASK, 12, 13]


def test_the_decoder_sees_nothing_that_the_encoder_sees():
    shares = []
    for seed in range(40):
        drawn, text = drawn_of(range(10, 30))
        MaskedSegment().ask(text)(drawn, np.random.default_rng(seed))
        targets = drawn.targets["masked_segment"]
        asked = targets[targets != IGNORED].tolist()
        assert asked == list(range(asked[0], asked[0] + 10))
        hidden = drawn.ids[asked[0] - 10 : asked[-1] - 9]
        outside = set(drawn.ids[:-1].tolist()) - {*hidden.tolist()}
        assert outside == set(range(10, 30)) - set(asked)
        assert not outside & set(drawn.decoder.tolist())
        shares.append([(hidden == MASK).mean(), (hidden == 9).mean()])
    assert np.mean(shares, axis=0) == pytest.approx([0.8, 0.1], abs=0.06)


def test_they_stand_alone():
    with pytest.raises(ValueError, match="denoising is what a decoder writes of a sequence; leave the other"):
        Objectives.model_validate({"denoising": {}, "mlm": {}})
