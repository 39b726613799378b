"""Two runs that start together and share a cache: one trains what both need, and both end with the same bits."""

import shutil

import pytest

from tests.interrupting import contents, differing
from tests.whole_run import call

PAIRS = 10


@pytest.mark.parametrize("pairs", [1, pytest.param(PAIRS, marks=pytest.mark.slow)])
def test_pairs_of_runs_that_share_a_cache(whole, tmp_path, pairs):
    for number in range(pairs):
        place = whole.copy(tmp_path / str(number))
        endings = whole.forker.run_together([call(place, out="out"), call(place, out="other")])
        assert [ending.code for ending in endings] == [0, 0], [ending.err[-2000:] for ending in endings]
        for begun in ("stage 1 of 1", "training teacher"):
            assert sorted(begun in ending.err for ending in endings) == [False, True], (begun, endings)
        assert differing(contents(place / "out", place / "home"), whole.expected) == []
        (place / "out").rename(place / "first")
        (place / "other").rename(place / "out")
        assert differing(contents(place / "out", place / "home"), whole.expected) == []
        shutil.rmtree(place)
