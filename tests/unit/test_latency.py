"""Timing on a clock of our own, peak memory of real processes, and the description of the machine."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from eval.cost import machine as machine_module
from eval.cost import timing
from eval.cost.latency import LatencyPlan, LatencyRow, latency, speedup, stream
from eval.cost.machine import device_name, in_one_line, int8_note, machine, versions
from eval.cost.memory import peak_memory
from eval.errors import CompressError, UserError
from tests.unit.bagofwords import WORDS, BagOfWords, encoder

EXAMPLES = [{"text": "good film"}, {"text": "a very bad film"}, {"text": "not fine"}, {"text": "poor"}]
MEGABYTE = 2**20


class Clock:
    """Time that passes only when a model says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Timed(BagOfWords):
    """Takes so many milliseconds, and so many more for every padded token."""

    def __init__(self, name, clock, base, token=0.0):
        super().__init__(name, np.zeros((len(WORDS), 2)), encoder())
        self.clock, self.base, self.token, self.shapes = clock, base, token, []

    def forward(self, inputs):
        self.shapes.append(inputs["input_ids"].shape)
        self.clock.now += (self.base + self.token * inputs["input_ids"].size) / 1000
        return super().forward(inputs)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_rows_hold_the_time_of_the_model_alone(clock):
    model = Timed("m", clock, base=4.0)
    (row,) = latency({"m": model}, EXAMPLES, batch=(2,), seconds=0.08)
    assert (row.name, row.batch, row.lengths, row.rounds) == ("m", 2, "data", 20)
    assert (row.p50_ms, row.p95_ms, row.p99_ms) == (pytest.approx(4.0), pytest.approx(4.0), pytest.approx(4.0))
    assert row.examples_per_second == pytest.approx(500)
    assert row.tokens_per_second == pytest.approx((2 + 4 + 2 + 1) / 2 / 0.004)
    assert row.machine == machine()["cpu"]


def test_batches_keep_the_order_of_the_data_and_are_padded_to_their_longest(clock):
    model = Timed("m", clock, base=1.0)
    latency({"m": model}, EXAMPLES, batch=(2,), seconds=0.001)
    assert model.shapes[:4] == [(2, 4), (2, 2), (2, 4), (2, 4)]  # three warm-up rounds, then from the start
    assert set(model.shapes[3:]) == {(2, 4), (2, 2)}


def test_a_batch_larger_than_the_data_repeats_it(clock):
    model = Timed("m", clock, base=1.0)
    latency({"m": model}, EXAMPLES, batch=(6,), seconds=0.001)
    assert set(model.shapes) == {(6, 4)}


def test_percentiles_and_fixed_lengths(clock):
    model = Timed("m", clock, base=0.0, token=0.5)
    rows = latency({"m": model}, EXAMPLES, batch=(1, 3), lengths=(8, "data"), seconds=0.01)
    assert [(row.lengths, row.batch) for row in rows] == [(8, 1), (8, 3), ("data", 1), ("data", 3)]
    assert rows[0].p50_ms == pytest.approx(4.0)
    assert rows[1].p99_ms == pytest.approx(12.0)
    assert rows[1].tokens_per_second == pytest.approx(2000)
    assert set(model.shapes[:8]) == {(1, 8)}


def test_models_take_turns_and_run_equally_often(clock):
    order = []
    runs = {
        name: (lambda number, name=name: (order.append(name), setattr(clock, "now", clock.now + 0.01))) for name in "ab"
    }
    times = timing.interleave(runs, seconds=0.05)
    assert len(times["a"]) == len(times["b"]) == 5
    assert "".join(order) == "aaabbb" + "abbaabbaab"
    assert times["a"] == pytest.approx([0.01] * 5)


def test_slow_models_get_a_few_rounds_even_when_time_is_up(clock):
    model = Timed("m", clock, base=900.0)
    (row,) = latency({"m": model}, EXAMPLES, batch=(1,), seconds=0.1)
    assert row.rounds == timing.FEWEST_ROUNDS


def test_collection_is_off_while_timing_and_on_again_after():
    seen = []
    timing.interleave({"a": lambda number: seen.append(gc.isenabled())}, seconds=0.0001)
    assert seen[: timing.WARM_UP] == [True] * timing.WARM_UP
    assert not any(seen[timing.WARM_UP :])
    assert gc.isenabled()


def test_stream_counts_whole_passes(clock):
    model = Timed("m", clock, base=10.0)
    (row,) = stream({"m": model}, EXAMPLES, batch=2, seconds=0.1)
    assert (row.examples, row.passes, row.batch) == (4, 5, 2)
    assert row.seconds == pytest.approx(0.02)
    assert row.examples_per_second == pytest.approx(200)
    assert model.shapes[:2] == [(2, 4), (2, 2)]  # longest first


def test_stream_and_latency_refuse_nothing_and_too_long(clock):
    model = Timed("m", clock, base=1.0)
    with pytest.raises(UserError) as caught:
        latency({}, [], lengths=99)
    assert len(caught.value.problems) == 2
    with pytest.raises(UserError, match="m: 99 tokens are more than the 32 it takes"):
        latency({"m": model}, EXAMPLES, lengths=99)
    with pytest.raises(UserError, match="no examples"):
        stream({"m": model}, [])


def rows_of(**medians):
    return [LatencyRow(name, 1, "data", 9, ms, ms, ms, 1.0, 1.0, "cpu") for name, ms in medians.items()]


def test_speedup_is_a_ratio_of_medians():
    rows = rows_of(small=2.0, big=5.0)
    assert speedup(rows, "small", "big") == 2.5
    assert speedup(rows, "small", "big", batch=8) is None
    assert speedup(rows, "small", "other") is None
    assert speedup(rows, "small", "big", lengths=64) is None


def test_plan_takes_one_value_for_a_list_and_refuses_nonsense():
    assert LatencyPlan(batch=4, lengths="data") == LatencyPlan(batch=(4,), lengths=("data",))
    assert LatencyPlan(lengths=["data", 64]).lengths == ("data", 64)
    for wrong in ({"batch": 0}, {"lengths": "long"}, {"seconds": 0}, {"batches": 1}, {"batch": []}):
        with pytest.raises(ValidationError):
            LatencyPlan(**wrong)


def test_peak_memory_sees_what_was_freed_again():
    code = "mark(); data = bytearray(int(args[0])); data[::4096] = b'x' * len(data[::4096]); del data"
    found = peak_memory(code, str(80 * MEGABYTE))
    assert 75 * MEGABYTE < found.rise_bytes < 110 * MEGABYTE
    assert found.baseline_bytes > MEGABYTE
    assert peak_memory("mark()").rise_bytes < 20 * MEGABYTE


def test_peak_memory_does_not_inherit_the_memory_of_its_parent():
    heavy = bytearray(200 * MEGABYTE)
    heavy[::4096] = b"x" * len(heavy[::4096])
    assert peak_memory("pass").bytes < 100 * MEGABYTE


def test_peak_memory_reports_a_failure_with_its_last_words():
    with pytest.raises(CompressError, match=r"ended with 1[\s\S]*no such thing"):
        peak_memory("print('noise'); raise SystemError('no such thing')")
    with pytest.raises(CompressError, match=r"more than 0\.2 seconds"):
        peak_memory("import time; time.sleep(5)", timeout=0.2)


def test_machine_in_one_line():
    here = {"cpu": "Some CPU", "features": ["avx2", "avx512_vnni"], "versions": {"torch": "2.13.0", "numpy": "2.4"}}
    assert in_one_line(here) == "Some CPU, avx2, avx512_vnni; torch 2.13.0, numpy 2.4"


def test_machine_is_plain_json_and_names_the_libraries():
    found = machine()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= found["usable_cores"] >= 1
    assert found["memory_bytes"] > 2**28
    assert found["versions"]["numpy"] == np.__version__
    assert versions(["numpy", "no-such-library"]) == {"numpy": np.__version__}


def test_cpu_features_are_read_from_the_flags(monkeypatch):
    lines = ["model name\t: Some  CPU 3000", "flags\t\t: fpu avx2 avx512_vnni nonsense"]
    monkeypatch.setattr(machine_module, "_lines", lambda path: lines)
    assert machine_module.cpu_features.__wrapped__() == ("avx2", "avx512_vnni")
    assert machine_module.cpu_name.__wrapped__() == "Some CPU 3000"


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (["avx2", "avx512f"], "no VNNI: u8 x s8 products saturate; exact schemes only"),
        (["avx2", "avx_vnni"], "VNNI or AMX"),
        (["asimddp"], "ARM"),
        ([], "no 8-bit dot product"),
    ],
)
def test_int8_note(features, said):
    assert int8_note(features).startswith(said)


def test_device_name_is_the_processor_unless_the_model_says_otherwise():
    class OnCpu:
        device = "cpu"

    assert device_name(object()) == device_name(OnCpu()) == machine()["cpu"]


def test_measuring_loads_no_heavy_library():
    heavy = ("torch", "transformers", "matplotlib", "sklearn", "rich", "onnx", "onnxruntime", "scipy")
    code = f"import sys, eval.measurement; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
