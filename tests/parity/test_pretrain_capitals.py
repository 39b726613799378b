"""ERNIE 2.0's capitals, by construction."""

from eval.encoding import IGNORED
from teachers.pretraining.objectives.capitals import capitals


def test_capitals_are_asked_of_the_first_piece_of_a_word():
    labels = capitals([-1, 0, 0, 1, 2, -1], {0: True, 1: False, 2: True})
    assert labels.tolist() == [IGNORED, 1, IGNORED, 0, 1, IGNORED]
