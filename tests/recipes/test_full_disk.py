"""A run whose disk is full from some change on ends with a sentence; once there is room it goes on to the same bits."""

import random
import re
import shutil

import pytest

from tests.interrupting import TAKES_SPACE, Interruption, contents, differing

MOMENTS = 60
FULL = r"the disk is full \(.+\); free some space, then go on with --resume or the same command"


@pytest.mark.parametrize("moments", [2, pytest.param(MOMENTS, marks=pytest.mark.slow)])
def test_a_disk_that_was_full_and_has_room_again(whole, tmp_path, moments):
    changes = sum(change.split(" ")[0] in TAKES_SPACE for change in whole.changes)
    assert changes > 200
    for at in sorted(random.Random(13).sample(range(1, changes + 1), moments)):
        place = whole.copy(tmp_path / str(at))
        ending = whole.go_on(place, Interruption(at=at, full=True))
        assert ending.code in (0, 1), (at, ending.code, ending.err)
        assert "unexpected error" not in ending.err, (at, ending.err)
        assert ending.code == 0 or re.search(FULL, ending.err), (at, ending.err)
        ending = whole.go_on(place)
        assert ending.code == 0, (at, ending.err)
        assert differing(contents(place / "out", place / "home"), whole.expected) == [], at
        shutil.rmtree(place)
