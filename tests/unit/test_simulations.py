"""The simulations behind docs/results/statistics.md, and the page against its data."""

import json

import pytest

from benchmarks.simulations import DATA, PAGE, POPULATIONS, cells, error, false_exact, held, page, simulate


def test_the_page_is_what_its_data_says():
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(DATA.read_text(encoding="utf-8")))


def test_an_exact_error_rate():
    """With 400 examples of which nobody gains, the margin passes only if at most k are lost: a binomial tail."""
    from scipy.stats import binom

    rate = false_exact(400, 0.02, 0.02)["rate"]
    assert rate == pytest.approx(binom.cdf(2, 400, 0.02), rel=1e-6)
    assert rate < 0.025


def test_a_run_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    made = []
    few = [(str(number), lambda number=number: made.append(number) or {"cell": number}) for number in range(3)]
    monkeypatch.setattr("benchmarks.simulations.cells", lambda quick: few[: len(few) - (not made)])
    simulate(tmp_path / "all.json")
    assert simulate(tmp_path / "all.json") == {"0": {"cell": 0}, "1": {"cell": 1}, "2": {"cell": 2}}
    assert made == [0, 1, 2]


@pytest.mark.slow
def test_intervals_hold_and_losses_do_not_pass(tmp_path):
    known = simulate(tmp_path / "quick.json", quick=True)
    assert len(known) == len(list(cells(quick=True)))
    for name in POPULATIONS:
        cell = known[f"coverage|{name}|400"]
        assert held(cell) + error(held(cell), cell["samples"]) >= 0.93, name
    for name, cell in known.items():
        if name.startswith("false"):
            assert cell["rate"] - 1.5 * error(cell["rate"], cell["samples"]) <= 0.0262, name
