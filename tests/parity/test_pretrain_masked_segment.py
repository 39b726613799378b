"""MASS: a segment that the encoder does not see, written by a decoder that does not see the rest."""

import numpy as np
import pytest

from eval.encoding import IGNORED
from teachers.pretraining.objectives.masked_segment import MaskedSegment, segment
from tests.parity.drawn_text import MASK, drawn_of


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


def test_shares_are_of_one_whole():
    with pytest.raises(ValueError, match=r"mask 0\.8 and random 0\.3 are shares of one whole; at most 1 together"):
        MaskedSegment(random=0.3)
