"""T5's span corruption against the example and the figures of its paper."""

from types import SimpleNamespace

import numpy as np
import pytest

from eval.errors import UserError
from teachers.pretraining.objectives.span_corruption import SpanCorruption, corrupted, noise_spans
from teachers.pretraining.text.sequence import START
from tests.parity.drawn_text import END, SENTINELS, drawn_of


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
