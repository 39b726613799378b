"""Long streams run several batches at a time, each on one thread; their answers are those of one after another."""

from importlib.util import find_spec

import numpy as np
import pytest

from compress.export import export
from compress.export.runtime import answering
from compress.export.runtime.answering import ExportError, Runtime
from compress.export.runtime.batch_threads import BATCH_TOKENS, BATCHES_BEFORE, BATCHES_TOGETHER
from compress.export.runtime.windows import in_order
from tests.parity.test_distill_early_exit import with_exits
from tests.tiny import tiny_task, tiny_taskmodel

HAS_OPENVINO = find_spec("openvino") is not None
TARGETS = ["onnx", pytest.param("openvino", marks=pytest.mark.skipif(not HAS_OPENVINO, reason="needs openvino"))]


def always(monkeypatch):
    """Run several batches at a time, whatever is asked."""
    monkeypatch.setattr(answering, "worth_it", lambda *given: True)
    monkeypatch.setattr(answering, "BATCH_TOKENS", 32)


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

    always(monkeypatch)
    several = Runtime(tmp_path / "export", threads=3)
    found = several.predict(examples)
    assert len(several.batch_engines) == 3
    assert [answer["label"] for answer in found.answers] == [answer["label"] for answer in expected.answers]
    np.testing.assert_allclose(np.stack(found.logits), np.stack(expected.logits), atol=1e-5)
    assert found.layers == expected.layers
    assert [answer["label"] for answer in several.stream(examples)] == [a["label"] for a in expected.answers]


def test_the_network_is_loaded_again_once_so_much_was_answered_that_it_pays(examples, tmp_path):
    task = tiny_task()
    export(tiny_taskmodel("bert", task.spec), tmp_path / "export", examples=task.validation)
    runtime, many = Runtime(tmp_path / "export", threads=2), 6 * list(examples)
    expected = [answer["label"] for answer in runtime.stream(many)]
    one_call = runtime.answered_tokens
    assert one_call >= 2 * BATCHES_TOGETHER * BATCH_TOKENS
    while runtime.answered_tokens + one_call < 2 * BATCHES_BEFORE * BATCH_TOKENS:
        runtime.predict(many)
    assert "batch_engines" not in vars(runtime)
    assert [answer["label"] for answer in runtime.stream(many)] == expected
    assert len(runtime.batch_engines) == 2
    assert runtime.batches([8])[1] is False, "a single text has all threads for itself"


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
    always(monkeypatch)
    for engine in runtime.batch_engines:
        monkeypatch.setattr(engine, "run", lambda inputs: 1 / 0)
    with pytest.raises(ExportError, match="its runtime cannot run it"):
        runtime.predict(examples)
