"""Windows over any number of examples, and work on them that comes back in order."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pytest

from compress.export.runtime.windows import WINDOW_CHARACTERS, Window, in_order, windows


def test_a_window_ends_by_its_number_or_its_characters():
    half = "x" * (WINDOW_CHARACTERS // 2)
    items = ["a", "b", "c", half, {"text_a": half, "text_b": ""}, "d"]
    found = [(window.first, len(window.items)) for window in windows(items, 3)]
    assert found == [(1, 3), (4, 2), (6, 1)]
    assert [item for window in windows(items, 3) for item in window.items] == items
    assert list(windows([], 3)) == []
    assert [len(window.items) for window in islice(windows(map(str, count()), 5), 2)] == [5, 5]


def test_what_a_pool_makes_comes_in_order_and_no_more_is_read_than_asked():
    read = []

    def source():
        for number in range(1, 8):
            read.append(number)
            yield Window(number, [])

    with ThreadPoolExecutor(3) as pool:
        made = in_order(pool, lambda window: window.first * 10, source(), 2)
        assert next(made) == 10
        assert read == [1, 2, 3]
        assert list(made) == [20, 30, 40, 50, 60, 70]
        assert list(in_order(pool, lambda window: window.first, [], 2)) == []


@pytest.mark.parametrize("where", ["source", "made"])
def test_an_error_comes_in_its_turn(where):
    def source():
        yield from (Window(1, []), Window(2, []))
        if where == "source":
            raise ValueError("the third")
        yield Window(3, [])

    def make(window):
        if window.first == 3:
            raise ValueError("the third")
        return window.first

    with ThreadPoolExecutor(1) as pool:
        made = in_order(pool, make, source(), 5)
        assert [next(made), next(made)] == [1, 2]
        with pytest.raises(ValueError, match="the third"):
            next(made)
