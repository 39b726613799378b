"""Long streams run several batches at a time, each on one thread; their answers are those of one after another."""

from importlib.util import find_spec

import numpy as np
import pytest

from compress.export import export
from compress.export.runtime import answering
from compress.export.runtime.answering import ExportError, Runtime
from compress.export.runtime.windows import in_order
from tests.parity.test_distill_early_exit import with_exits
from tests.tiny import tiny_task, tiny_taskmodel

HAS_OPENVINO = find_spec("openvino") is not None
TARGETS = ["onnx", pytest.param("openvino", marks=pytest.mark.skipif(not HAS_OPENVINO, reason="needs openvino"))]


@pytest.fixture(scope="module")
def examples():
    """Texts of several lengths."""
    own = tiny_task().validation
    return [own[i % len(own)] for i in range(40)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exits", [False, True])
def test_answers_are_the_same_and_in_order(target, exits, examples, tmp_path, monkeypatch):
    task = tiny_task()
    model = with_exits("bert", speed=0.4) if exits else tiny_taskmodel("bert", task.spec)
    export(model, tmp_path / "export", target, examples=task.validation)
    alone = Runtime(tmp_path / "export", threads=1)
    assert alone.batch_engines == []
    expected = alone.predict(examples)

    monkeypatch.setattr(answering, "MANY", 0)
    monkeypatch.setattr(answering, "BATCH_TOKENS", 32)
    several = Runtime(tmp_path / "export", threads=3)
    found = several.predict(examples)
    assert len(several.batch_engines) == 3
    assert [answer["label"] for answer in found.answers] == [answer["label"] for answer in expected.answers]
    np.testing.assert_allclose(np.stack(found.logits), np.stack(expected.logits), atol=1e-5)
    assert found.layers == expected.layers
    assert [answer["label"] for answer in several.stream(examples)] == [a["label"] for a in expected.answers]


def test_a_short_stream_loads_nothing_again(examples, tmp_path):
    task = tiny_task()
    export(tiny_taskmodel("bert", task.spec), tmp_path / "export", examples=task.validation)
    runtime = Runtime(tmp_path / "export", threads=2)
    list(runtime.stream(examples))
    assert "batch_engines" not in vars(runtime)


def test_a_window_that_is_the_only_one_starts_no_thread(examples, tmp_path, monkeypatch):
    """Its start would cost a short text a good part of its time; of several windows the next is tokenized beside."""
    export(tiny_taskmodel("bert", tiny_task().spec), tmp_path / "export", "onnx")
    model, started = Runtime(tmp_path / "export", threads=1), []
    monkeypatch.setattr(answering, "usable_cores", lambda: 2)

    def noting(pool, make, source, ahead):
        started.append(pool)
        return in_order(pool, make, source, ahead)

    monkeypatch.setattr(answering, "in_order", noting)
    alone = model.predict(examples)
    assert not started
    monkeypatch.setattr(answering, "WINDOW", 16)
    assert model.predict(examples).answers == alone.answers
    assert len(started) == 1


def test_what_fails_on_a_thread_is_told_in_one_line(examples, tmp_path, monkeypatch):
    task = tiny_task()
    export(tiny_taskmodel("bert", task.spec), tmp_path / "export", examples=task.validation)
    runtime = Runtime(tmp_path / "export", threads=2)
    monkeypatch.setattr(answering, "MANY", 0)
    for engine in runtime.batch_engines:
        monkeypatch.setattr(engine, "run", lambda inputs: 1 / 0)
    with pytest.raises(ExportError, match="its runtime cannot run it"):
        runtime.predict(examples)
