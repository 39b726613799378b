"""A run that is killed, at any moment and any number of times, ends with the same bits: weights, exports, report."""

import itertools
import random
import re
import shutil
import signal

import pytest

from tests.interrupting import Interruption, contents, differing
from tests.whole_run import STEADY

KILLS = 200
QUICK = 1
DISTANCE = 60
"""Most changes to the disk that a run makes before its first kill; the whole run makes some 500."""
FARTHER = 10
"""More of them for each kill, for what ends a training is made again whole and takes more changes than the first."""


def assert_the_same(whole, place, how):
    """Assert that a run left what the uninterrupted one left, byte for byte, and nothing else."""
    assert differing(contents(place / "out", place / "home"), whole.expected) == [], how


def killed_until_it_ends(whole, place, draw):
    """Kill a run again and again, each time where ``draw`` says, and return what ended each but the last."""
    endings = []
    while True:
        how = draw()
        ending = whole.go_on(place, **how)
        if ending.code == 0:
            assert_the_same(whole, place, endings)
            return endings
        assert ending.code in (-signal.SIGKILL, -signal.SIGALRM), (endings, how, ending.err)
        endings.append(how)


@pytest.mark.parametrize("kills", [QUICK, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_kills_at_random_moments(whole, tmp_path, kills):
    chance, done, number = random.Random(13), 0, 0
    while done < kills:
        place = whole.copy(tmp_path / str(number))
        done += len(killed_until_it_ends(whole, place, lambda: {"seconds": chance.uniform(0.1, whole.seconds)}))
        shutil.rmtree(place)
        number += 1


@pytest.mark.parametrize("kills", [QUICK, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_kills_between_two_changes_to_the_disk(whole, tmp_path, kills):
    chance, done, number = random.Random(13), 0, 0
    first = DISTANCE if kills > QUICK else 4 * DISTANCE
    while done < kills:
        place = whole.copy(tmp_path / str(number))
        most = itertools.count(first, FARTHER)
        at = lambda: {"interruption": Interruption(at=chance.randint(1, next(most)))}  # noqa: B023, E731
        done += len(killed_until_it_ends(whole, place, at))
        shutil.rmtree(place)
        number += 1


def test_a_kill_before_the_results_are_written(whole, tmp_path):
    place = whole.copy(tmp_path / "place")
    at = next(number for number, change in enumerate(whole.changes, start=1) if "out/results" in change)
    assert whole.go_on(place, Interruption(at=at)).code == -signal.SIGKILL
    assert whole.go_on(place).code == 0
    assert_the_same(whole, place, at)


@pytest.mark.slow
def test_every_state_of_the_disk_is_one_to_go_on_from(whole, tmp_path):
    place = whole.copy(tmp_path / "place")
    assert whole.go_on(place, Interruption(states=str(tmp_path / "states")), seconds=600).code == 0
    seen, wrong = set(), []
    for state in sorted((tmp_path / "states").iterdir()):
        found = contents(state / "out", state / "home")
        known = frozenset((re.sub(r"\.[0-9a-f]{8}\.", ".", name), data) for name, data in found.items())
        if known not in seen:
            seen.add(known)
            ending = whole.go_on(state)
            left = differing(contents(state / "out", state / "home"), whole.expected)
            if ending.code or left:
                wrong.append((whole.changes[int(state.name) - 1], ending.err[-500:] if ending.code else left))
        shutil.rmtree(state)
    assert len(seen) > 200
    assert wrong == []


def test_everything_is_written_beside_its_place(whole):
    opened = [change.removeprefix("open ") for change in whole.changes if change.startswith("open ")]
    assert len(opened) > 50
    beside = r"\.writing/|\.lock$|/signals/\w+\.working/\w+\.npy$"  # outputs of a teacher go on, and tell damage
    assert [path for path in opened if not re.search(beside, path)] == []


def test_a_run_that_has_ended_changes_nothing(whole, tmp_path):
    place = whole.copy(tmp_path / "place")
    shutil.copytree(whole.scene.parent / "whole", place, dirs_exist_ok=True)
    log = tmp_path / "changes.txt"
    assert whole.go_on(place, Interruption(log=str(log))).code == 0
    assert_the_same(whole, place, STEADY)
    assert "steps" not in log.read_text()
