"""BART's denoising: one mask for each span, sentences in another order, the whole original as target."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from eval.errors import UserError
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.objectives.denoising import Denoising, infill_spans, infilled, permuted
from teachers.pretraining.text.sequence import START
from tests.parity.drawn_text import END, MASK, drawn_of


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


def test_they_stand_alone():
    with pytest.raises(ValueError, match="denoising is what a decoder writes of a sequence; leave the other"):
        Objectives.model_validate({"denoising": {}, "mlm": {}})
