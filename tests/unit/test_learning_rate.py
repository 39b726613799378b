"""The schedule of the learning rate: values by hand, from the papers' formulas."""

import pytest
from pydantic import ValidationError

from teachers.training.config import Training
from teachers.training.learning_rate import noam, rate, slanted_triangular
from teachers.training.loop import train
from tests.tiny import tiny_task, tiny_taskmodel


def test_linear_cosine_and_constant():
    training = Training(warmup_steps=0.1, schedule="linear")
    rates = [rate(training, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rate(Training(warmup_steps=0, schedule="cosine"), 50, 100) == pytest.approx(0.5)
    assert rate(Training(warmup_steps=0, schedule="constant"), 99, 100) == 1.0


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.0003125), (50, 0.00515625), (100, 0.01), (550, 0.00515625), (1000, 0.0003125)]
)
def test_slanted_triangular_rates_are_those_of_the_paper(step, expected):
    training = Training(schedule="slanted_triangular", learning_rate=0.01)
    assert training.learning_rate * rate(training, step, 1000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("total", [1, 2, 5, 9])
def test_a_short_slanted_training_begins_at_the_peak(total):
    rates = [slanted_triangular(step, total, 0.1) for step in range(total)]
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert slanted_triangular(total, total, 0.1) == pytest.approx(1 / 32)


@pytest.mark.parametrize("total", [10, 19, 29, 101, 999])
def test_a_slanted_rate_never_falls_below_a_32nd_even_where_the_cut_was_rounded_down(total):
    cut = total // 10
    rates = [slanted_triangular(step, total, 0.1) for step in range(total + 1)]
    assert max(rates) == rates[cut] == 1.0
    assert min(rates) == pytest.approx(1 / 32)
    falls = [before - after for before, after in zip(rates[cut:-1], rates[cut + 1 :], strict=True)]
    assert falls == pytest.approx([31 / 32 / (total - cut)] * (total - cut))


def test_noam_rises_in_a_straight_line_and_falls_with_the_root():
    size, warm = 512, 4000
    peak = size**-0.5 * warm**-0.5
    for step in (1, 100, 4000, 4001, 16000, 100000):
        paper = size**-0.5 * min(step**-0.5, step * warm**-1.5)
        assert peak * noam(step, warm) == pytest.approx(paper, rel=1e-12)
    training = Training(schedule="noam", warmup_steps=0.1)
    rates = [rate(training, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert rates[39] == pytest.approx(0.5), "four times the warm-up: half of the peak"
    without = Training(schedule="noam", warmup_steps=0)
    assert rate(without, 3, 100) == pytest.approx(0.5), "no warm-up falls from the start"


@pytest.mark.parametrize("schedule", ["linear", "noam", "slanted_triangular"])
def test_warmup_steps_are_a_share_below_1_and_a_number_from_1_on(schedule):
    """As in transformers 5, whose ``warmup_steps`` takes both."""

    def rates(warmup_steps):
        return [rate(Training(schedule=schedule, warmup_steps=warmup_steps), step, 40) for step in range(40)]

    assert rates(0.25) == rates(10)
    assert rates(10).index(1.0) == (10 if schedule == "slanted_triangular" else 9)
    assert rates(1)[0] == (1 / 32 if schedule == "slanted_triangular" else 1.0)
    assert max(rates(400)) < 0.2, "a warm-up that is longer than the training never reaches the peak"
    with pytest.raises(ValidationError, match="a share below 1 or a whole number of optimizer steps"):
        Training(warmup_steps=1.5)


def test_the_loop_takes_the_rate_of_the_schedule(monkeypatch):
    seen = []
    training = Training(schedule="slanted_triangular", max_steps=20, epochs=10, batch_size=8, learning_rate=0.01)

    def note(asked, step, total):
        seen.append(rate(asked, step, total))
        return seen[-1]

    monkeypatch.setattr("teachers.training.loop.rate", note)
    task = tiny_task(examples=16)
    train(tiny_taskmodel("bert", task.spec), task.train, training=training)
    assert seen == [slanted_triangular(step, 20, 0.1) for step in range(20)]
    assert seen[2] == 1.0
