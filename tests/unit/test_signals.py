"""Teacher outputs: live and from disk they are the same numbers, and the cache knows what it holds."""

import errno
import json
import os

import numpy as np
import pytest
import torch

from eval.cost.size import device_of
from eval.errors import CompressError, UserError
from eval.task import Examples, TaskSpec
from teachers.number_format import LAUNCHED
from teachers.signals import cached_reader as signals
from teachers.signals.hooks import SignalSpec
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher, predicted_bytes
from teachers.signals.shared_teacher import SharedTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

EVERYTHING = SignalSpec(hidden_states=(0, 3), values=(1,))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("kind", ["classification", "tagging", "qa"])
def test_the_cache_equals_the_live_teacher(family, kind, tmp_path):
    task = tiny_task(kind)
    teacher = tiny_taskmodel(family, task.spec)
    rows = rows_of(teacher, task.train, seed=1)
    reader = ModelTeacher(teacher, cache=tmp_path).read(rows, EVERYTHING)
    assert type(reader).__name__ == "CachedReader"
    batch = rows.batch([5, 0, 11])
    cached, live = reader(batch), LiveReader(teacher, EVERYTHING)(batch)
    real = batch.mask.bool()
    if kind == "classification":
        assert torch.allclose(cached.logits, live.logits, atol=1e-5)
    else:
        assert torch.allclose(cached.logits[real], live.logits[real], atol=1e-5)
    for place in EVERYTHING.hidden_states:
        assert torch.allclose(cached.hidden_states[place][real], live.hidden_states[place][real], atol=1e-5)
    assert torch.allclose(cached.values[1][real], live.values[1][real], atol=1e-5)


def test_a_live_teacher_is_copied_to_the_device_of_a_batch_and_stays_where_it_is():
    teacher = tiny_taskmodel("bert", tiny_task("classification").spec)
    reader = LiveReader(teacher, EVERYTHING)
    assert reader.network(torch.device("cpu")) is teacher.model
    there = reader.network(torch.device("meta"))
    assert device_of(there).type == "meta"
    assert reader.network(torch.device("meta")) is there
    assert device_of(teacher.model).type == "cpu"


def test_the_predicted_size_is_the_size_on_disk(tmp_path):
    task = tiny_task("tagging")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)
    ModelTeacher(teacher, cache=tmp_path).read(rows, EVERYTHING)
    (folder,) = tmp_path.iterdir()
    numbers = sum(np.load(file, mmap_mode="r").size for file in folder.glob("*.npy"))
    assert predicted_bytes(teacher, rows.lengths, EVERYTHING) == 4 * numbers


def test_a_second_read_computes_nothing(tmp_path, monkeypatch):
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)
    source = ModelTeacher(teacher, cache=tmp_path)
    first = source.read(rows)(rows.batch([0, 1]))
    monkeypatch.setattr(LiveReader, "__call__", lambda *_: pytest.fail("the teacher ran again"))
    second = ModelTeacher(teacher, cache=tmp_path).read(rows)(rows.batch([0, 1]))
    assert torch.equal(first.logits, second.logits)


def test_other_weights_or_data_get_another_cache(tmp_path):
    task = tiny_task("classification")
    for seed in (0, 1):
        teacher = tiny_taskmodel("bert", task.spec, seed=seed)
        ModelTeacher(teacher, cache=tmp_path).read(rows_of(teacher, task.train, seed=1))
    other = Examples([*task.train[1:], task.train[0]], "train")
    ModelTeacher(teacher, cache=tmp_path).read(rows_of(teacher, other, seed=1))
    assert len(list(tmp_path.iterdir())) == 3


def test_beyond_the_budget_the_teacher_runs_live(tmp_path):
    task = tiny_task("tagging")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)
    reader = ModelTeacher(teacher, cache=tmp_path, budget_bytes=10).read(rows)
    assert isinstance(reader, LiveReader)
    assert not list(tmp_path.iterdir())


def test_another_tokenizer_still_teaches_sentences(tmp_path):
    task = tiny_task("classification")
    teacher, student = tiny_taskmodel("roberta", task.spec), tiny_taskmodel("bert", task.spec)
    rows = rows_of(student, task.train, seed=1)
    found = ModelTeacher(teacher, cache=tmp_path).read(rows)(rows.batch([3, 1]))
    own = teacher.forward(teacher.encoder.collate(teacher.encoder.encode([task.train[3], task.train[1]])))
    assert np.allclose(found.logits.numpy(), own, atol=1e-5)


def test_another_tokenizer_cannot_teach_tokens(tmp_path):
    task = tiny_task("tagging")
    rows = rows_of(tiny_taskmodel("bert", task.spec), task.train, seed=1)
    with pytest.raises(UserError, match="tokenize differently"):
        ModelTeacher(tiny_taskmodel("roberta", task.spec), cache=tmp_path).read(rows)


def test_other_labels_are_refused(tmp_path):
    task = tiny_task("classification")
    rows = rows_of(tiny_taskmodel("bert", task.spec), task.train, seed=1)
    other = tiny_taskmodel("bert", TaskSpec(kind="classification", labels=("x", "y", "z"), max_length=32))
    with pytest.raises(UserError, match="they must be the same"):
        ModelTeacher(other, cache=tmp_path).read(rows)


def test_a_damaged_cache_is_named(tmp_path):
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)
    ModelTeacher(teacher, cache=tmp_path).read(rows)
    (folder,) = tmp_path.iterdir()
    layout = json.loads((folder / "layout.json").read_text())
    np.save(folder / "logits.npy", np.zeros(3, dtype=np.float32))
    with pytest.raises(UserError, match=r"logits\.npy does not fit the data; remove the folder"):
        ModelTeacher(teacher, cache=tmp_path).read(rows)
    (folder / "logits.npy").write_bytes(b"\x00")
    with pytest.raises(UserError, match="damaged"):
        ModelTeacher(teacher, cache=tmp_path).read(rows)
    assert layout == {"logits": [2]}


class Stopped(BaseException):
    """A user or a machine ends the process here."""


@pytest.mark.parametrize("left", ["whole", "damaged", "short", "nothing"])
def test_outputs_of_an_interrupted_call_are_not_computed_again(left, tmp_path, monkeypatch):
    task = tiny_task("tagging")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, Examples([*task.train, *task.train, *task.train]), seed=1)
    read, compute, seen = LiveReader.__call__, ModelTeacher(teacher, cache=tmp_path), []

    def until_second(reader, batch):
        if len(seen) == 2:
            raise Stopped
        seen.append(len(batch.rows))
        return read(reader, batch)

    monkeypatch.setattr(signals, "SAVED_EVERY", 0 if left != "nothing" else 1000)
    monkeypatch.setattr(LiveReader, "__call__", until_second)
    with pytest.raises(Stopped):
        compute.read(rows, EVERYTHING)
    assert not list(tmp_path.glob("*/layout.json"))
    if left == "damaged":
        next(tmp_path.glob("*.working/logits.npy")).write_bytes(b"0")
    if left == "short":
        np.save(next(tmp_path.glob("*.working/logits.npy")), np.zeros(3, dtype=np.float32))
    counted = []
    monkeypatch.setattr(
        LiveReader, "__call__", lambda self, batch: (counted.append(len(batch.rows)), read(self, batch))[1]
    )
    resumed = compute.read(rows, EVERYTHING)
    assert sum(counted) == len(rows) - (sum(seen) if left == "whole" else 0)
    assert not list(tmp_path.glob("*.working"))
    afresh = ModelTeacher(teacher, cache=tmp_path / "afresh").read(rows, EVERYTHING)
    for name, array in afresh.arrays.items():
        assert np.array_equal(resumed.arrays[name], array), name


@pytest.mark.parametrize("place", ["os.posix_fallocate", "os.fsync", "pathlib.Path.write_text"])
def test_a_disk_that_is_full_is_told_and_leaves_no_cache(place, tmp_path, monkeypatch):
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(place, refuse)
        if place == "os.posix_fallocate":  # a map into space that is not there ends in SIGBUS
            full.setattr(
                "teachers.signals.cached_reader._store", lambda *_: pytest.fail("written into space that was refused")
            )
        with pytest.raises(CompressError, match=r"the disk is full \(.+\); free some space"):
            ModelTeacher(teacher, cache=tmp_path).read(rows)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    reader = ModelTeacher(teacher, cache=tmp_path).read(rows)
    assert type(reader).__name__ == "CachedReader"


def test_the_space_of_the_whole_cache_is_reserved_before_anything_is_stored(tmp_path, monkeypatch):
    task = tiny_task("tagging")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)
    events = []
    reserve, store = os.posix_fallocate, signals._store
    monkeypatch.setattr(os, "posix_fallocate", lambda *given: (events.append(given[1:]), reserve(*given)))
    monkeypatch.setattr(signals, "_store", lambda *given: (events.append("store"), store(*given)))
    ModelTeacher(teacher, cache=tmp_path).read(rows, EVERYTHING)
    (folder,) = tmp_path.iterdir()
    sizes = [(0, file.stat().st_size) for file in folder.glob("*.npy")]
    assert sorted(event for event in events if event != "store") == sorted(sizes)
    assert "store" in events[1:]


@pytest.mark.parametrize("family", ["bert", "albert", "mobilebert", "xlnet", "modernbert"])
def test_the_head_does_not_run_where_no_loss_reads_logits(family, monkeypatch):
    task = tiny_task("classification")
    teacher = tiny_taskmodel(family, task.spec)
    batch = rows_of(teacher, task.train, seed=1).batch([0, 4])
    inside = SignalSpec(hidden_states=(1, 3), logits=False)
    everything = LiveReader(teacher, SignalSpec(hidden_states=(1, 3)))(batch)
    monkeypatch.setattr(type(teacher.model), "forward", lambda *_, **__: pytest.fail("the whole model ran"))
    seen = LiveReader(teacher, inside)(batch)
    assert not len(seen.logits)
    for place in (1, 3):
        assert torch.allclose(seen.hidden_states[place], everything.hidden_states[place], atol=1e-6)


def test_a_cache_without_logits_holds_none(tmp_path):
    task = tiny_task("tagging")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)
    inside = SignalSpec(queries=(0,), logits=False)
    reader = ModelTeacher(teacher, cache=tmp_path).read(rows, inside)
    assert not len(reader(rows.batch([0, 1])).logits)
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.glob("*.npy")} == {"queries.npy"}
    assert predicted_bytes(teacher, rows.lengths, inside) == 4 * np.load(folder / "queries.npy", mmap_mode="r").size


def test_two_losses_want_what_either_wants():
    inside, outside = SignalSpec(queries=(2,), logits=False), SignalSpec(hidden_states=(1,))
    assert inside | outside == SignalSpec(hidden_states=(1,), queries=(2,))
    assert inside | inside == inside


def test_what_a_later_loss_wants_is_there_although_an_earlier_one_has_read(tmp_path):
    """As ``distill.contrastive`` does, which mines with the teacher's vectors while it is bound."""
    task = tiny_task("embedding")
    model = tiny_taskmodel("bert", task.spec)
    rows, inside = rows_of(model, task.train, seed=1), SignalSpec(queries=(1,), logits=False)
    batch, teacher = rows.batch([0, 1]), SharedTeacher(ModelTeacher(model, cache=tmp_path))
    first = teacher.read(rows)
    assert not first(batch).queries
    second = teacher.read(rows, inside)
    alone = ModelTeacher(model, cache=tmp_path).read(rows, inside)(batch)
    assert torch.equal(second(batch).queries[1], alone.queries[1])
    assert first(batch) is second(batch), "it is computed once for both"


def test_signals_are_kept_in_bf16_where_students_are_trained_in_it(tmp_path, monkeypatch):
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec)
    rows = rows_of(teacher, task.train, seed=1)

    def logits(**how):
        return ModelTeacher(teacher, tmp_path, **how).read(rows)(rows.batch([0, 1, 2])).logits

    exact = logits()
    monkeypatch.setenv(LAUNCHED, "bf16")
    rounded = logits()
    assert 0 < (rounded - exact).abs().max() < 0.02
    assert torch.equal(logits(precision="bf16"), rounded)
    assert torch.equal(logits(precision="fp32"), exact)
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.delenv(LAUNCHED)
    assert torch.equal(logits(), exact)
