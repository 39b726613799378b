"""When checkpoints are written: at ends of epochs and by time, and never for more than a twentieth of it."""

from __future__ import annotations

from types import SimpleNamespace

from teachers.renamed import recorded
from teachers.training import loop
from teachers.training.checkpoint import CheckpointPace
from teachers.training.config import Training
from teachers.training.loop import train
from tests.tiny import tiny_task, tiny_taskmodel


def test_by_time_and_at_ends_of_epochs():
    pace = CheckpointPace(30.0, now=100.0)
    assert [pace.is_due(now, end_of_epoch=False) for now in (101.0, 129.9, 130.0)] == [False, False, True]
    assert pace.is_due(101.0, end_of_epoch=True)


def test_what_writing_took_is_waited_for_twenty_times():
    pace = CheckpointPace(30.0, now=0.0)
    pace.written(30.0, 31.0)  # a second: an epoch ends in vain for 20 s, and 30 s pass as before
    assert [pace.is_due(now, end_of_epoch=True) for now in (50.9, 51.0)] == [False, True]
    assert [pace.is_due(now, end_of_epoch=False) for now in (60.9, 61.0)] == [False, True]
    pace.written(61.0, 71.0)  # ten: both wait for 200 s
    for end_of_epoch in (True, False):
        assert [pace.is_due(now, end_of_epoch) for now in (270.9, 271.0)] == [False, True]


def test_zero_writes_after_every_step():
    pace = CheckpointPace(0.0, now=0.0)
    pace.written(0.0, 50.0)
    assert pace.is_due(50.0, end_of_epoch=False)


def test_the_default_is_half_a_minute_and_records_are_what_they_were():
    assert Training().checkpoint_seconds == 30.0
    assert Training().model_dump()["checkpoint_seconds"] == 30.0
    assert recorded(Training())["checkpoint_seconds"] == 120.0
    assert recorded(Training(checkpoint_seconds=50))["checkpoint_seconds"] == 50.0
    assert "checkpoint_seconds" not in recorded(Training(), exclude_defaults=True)


def test_a_long_epoch_is_kept_in_between(monkeypatch, tmp_path):
    clock, kept = SimpleNamespace(now=0.0), []
    step = loop._Loop._update

    def update(self, *arguments):
        clock.now += 7.0
        step(self, *arguments)

    def save(folder, modules, optimizer, state, random):
        del folder, modules, optimizer, random
        clock.now += 3.0
        kept.append(state["step"])

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(loop._Loop, "_update", update)
    monkeypatch.setattr(loop, "save_checkpoint", save)
    task = tiny_task("classification")
    train(tiny_taskmodel("bert", task.spec), task.train, training=Training(epochs=1, batch_size=2), folder=tmp_path)
    assert kept == [5, 14], "after 35 s; then after 60, since writing took 3; the epoch ends too soon after that"
