"""What is under way: who tells it, and what plain lines say of it."""

from __future__ import annotations

import logging

import pytest

from compress.export.check.gate import compare
from eval.comparison import measure_together
from eval.cost.latency import LatencyPlan
from eval.progress.lines import Lines
from eval.progress.stages import advance, counted, displayed, one_by_one, passed, stage, under_way, whole
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import Training
from teachers.training.loop import train
from tests.tiny import tiny_task, tiny_taskmodel


class Noted:
    """A display that writes down what it is told."""

    def __init__(self):
        self.names, self.counts = [], []

    def begin(self, work):
        self.names.append(work.name)

    def advance(self, work):
        self.counts.append((work.name, work.done, work.total, work.figures))

    def end(self, work):
        pass

    def of(self, name):
        return [(done, total) for known, done, total, _ in self.counts if known == name]


@pytest.fixture
def noted():
    display = Noted()
    with displayed(display):
        yield display


@pytest.fixture
def now(monkeypatch):
    """A clock that a test sets."""

    class Clock:
        seconds = 0.0

    monkeypatch.setattr("time.perf_counter", lambda: Clock.seconds)
    return Clock


@pytest.fixture(scope="module")
def task():
    return tiny_task("classification")


class TestWork:
    def test_a_plan_is_what_has_not_begun_each_name_as_often_as_it_stands_there(self):
        with displayed(Noted()), whole("run", ["prune", "train", "prune", "measure"]) as run:
            assert run.to_come == ["prune", "train", "prune", "measure"]
            with stage("prune"):
                assert run.to_come == ["train", "prune", "measure"]
            passed("train", "already there")
            with stage("export"):  # which was not planned
                pass
            assert run.to_come == ["prune", "measure"]
            assert [(one.name, one.remark) for one in run.stages] == [
                *(("prune", ""), ("train", "already there"), ("export", ""))
            ]

    def test_time_left_is_told_by_the_speed_since_it_was_resumed(self, noted, now):
        with under_way("student", 100, done=60) as work:
            assert work.seconds_left is None
            now.seconds = 20.0
            advance(work, 70)
            assert work.seconds_left == 60.0

    def test_what_failed_says_so(self, noted):
        with pytest.raises(ValueError, match="no"), whole("run") as run, stage("train") as training:
            raise ValueError("no")
        assert (run.failed, training.failed) == (True, True)

    def test_batches_count_when_they_are_done(self, noted):
        for batch in counted([[1, 2], [3]], "rows", 3):
            assert noted.of("rows") == ([] if batch == [1, 2] else [(2, 3)])
        assert noted.of("rows") == [(2, 3), (3, 3)]
        assert list(one_by_one("ab", "letters")) == ["a", "b"]
        assert noted.of("letters") == [(1, 2), (2, 2)]


def test_plain_lines_come_at_stages_and_now_and_then(now, caplog):
    with caplog.at_level(logging.INFO, "eval.progress"), displayed(Lines(every_seconds=30.0)), whole("run", ["train"]):
        passed("prune", "already there")
        with stage("train"), under_way("student", 100) as work:
            for step in range(1, 8):
                now.seconds += 10.0
                advance(work, step, f"loss {1 / step:.2f}")
        with stage("measure"), stage("teacher"):
            now.seconds += 2.0
    assert caplog.messages == [
        "prune: already there",
        "train: started",
        "student: 3/100  loss 0.33  0:16:10 left",
        "student: 6/100  loss 0.17  0:15:40 left",
        "train: done in 70.0 s",
        *("measure: started", "measure: teacher: started", "measure: teacher: done in 2.0 s", "measure: done in 2.0 s"),
    ]


class TestWhoTells:
    def test_a_training_tells_every_step_with_loss_speed_and_score(self, noted, task):
        training = Training(epochs=2, batch_size=20)
        student = tiny_taskmodel("bert", task.spec)
        train(student, task.train, training=training, validation=task.validation)
        assert noted.of(student.name) == [(step, 4) for step in (1, 2, 3, 4)]
        first, *_, last = [figures for *_, figures in noted.counts]
        assert first.startswith("loss 0.")
        assert "tokens/s" in first
        assert "score" not in first
        assert "  score 0." in last

    def test_teacher_outputs(self, noted, task, tmp_path):
        from teachers.data.encoded_dataset import EncodedDataset

        teacher = tiny_taskmodel("bert", task.spec)
        ModelTeacher(teacher, tmp_path).read(EncodedDataset(task.train, teacher.encoder, task.spec))
        assert noted.of(f"outputs of {teacher.name}") == [(32, 40), (40, 40)]

    def test_the_gate_of_an_export(self, noted, task):
        model = tiny_taskmodel("bert", task.spec)
        compare(model, model, task.validation[:20])
        assert noted.of("comparing with the model")[:3] == [(8, 20), (16, 20), (20, 20)]

    def test_measuring_says_which_model_and_how_far(self, noted, task):
        from dataclasses import replace

        teacher, student = (replace(tiny_taskmodel("bert", task.spec), name=name) for name in ("teacher", "student"))
        plan = LatencyPlan(batch=(1,), seconds=0.01)
        measure_together([student], task, teacher, latency=plan)
        assert noted.names == ["measuring", "teacher", "student", "timing, batch size 1"]
        assert noted.of("student") == [(32, 40), (40, 40)]
        assert noted.of("measuring") == [(1, 2), (2, 2)]
        assert noted.counts[-1][3].startswith("round ")
