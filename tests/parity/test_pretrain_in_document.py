"""ERNIE 2.0's token-document relation, by construction."""

from eval.encoding import IGNORED
from teachers.pretraining.objectives.in_document import in_document


def test_a_token_may_come_back_in_its_document():
    assert in_document([5, 6, 7, 8], [6, 8, 9], [0, 1, 3]).tolist() == [0, 1, IGNORED, 1]
