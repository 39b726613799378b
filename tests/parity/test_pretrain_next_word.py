"""GPT's next word, by construction."""

import numpy as np

from eval.encoding import IGNORED
from teachers.pretraining.objectives.next_word import NextWord
from teachers.pretraining.text.sequence import Drawn


def test_each_place_is_asked_for_the_token_after_it():
    ids = np.array([7, 3, 0, 5])
    drawn = Drawn(ids.copy(), np.array([0, 1, -1, 2]), np.zeros(4), np.array([0, 1, -1, 2]))
    NextWord().ask(None)(drawn, np.random.default_rng(0))
    assert drawn.targets["next_word"].tolist() == [3, 0, 5, IGNORED], "an end of text is asked for too"
    assert drawn.ids.tolist() == ids.tolist()
