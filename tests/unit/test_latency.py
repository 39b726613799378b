"""Timing on a clock of our own, peak memory of real processes, and the description of the machine."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from eval.cost import latency as latency_module
from eval.cost import machine as machine_module
from eval.cost import timing
from eval.cost.latency import LatencyPlan, LatencyRow, _place, latency, percentile_ms, speedup, stream
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
    assert (row.p50_ms, row.p95_ms, row.p99_ms) == (pytest.approx(4.0), None, None)
    assert (row.queries, row.iqr, row.settled) == (20, pytest.approx(0), True)
    assert row.round_ms == pytest.approx([4.0] * 20)
    assert (row.median.low, row.median.high) == (pytest.approx(4.0), pytest.approx(4.0))
    assert row.median.coverage > 0.95
    assert row.examples_per_second == pytest.approx(500)
    assert row.tokens_per_second == pytest.approx((2 + 4 + 2 + 1) / 2 / 0.004)
    assert row.machine == machine()["cpu"]


def test_batches_are_neighbours_in_the_data_and_padded_to_their_longest(clock):
    model = Timed("m", clock, base=1.0)
    latency({"m": model}, EXAMPLES, batch=(2,), seconds=0.001)
    assert model.shapes[:4] == [(2, 2), (2, 4), (2, 2), (2, 2)]  # three warm-up runs, then from the start
    assert set(model.shapes[3:]) == {(2, 4), (2, 2)}


def test_any_few_batches_in_a_row_hold_short_and_long_ones():
    for first in range(40):
        visited = sorted(_place(number, 100) for number in range(first, first + 8))
        assert visited[0] < 20
        assert visited[-1] >= 80
        assert max(np.diff(visited)) < 25


def test_rounds_of_texts_of_all_lengths_agree_where_single_texts_do_not(clock):
    texts = [{"text": " ".join(["film"] * (1 + number % 20))} for number in range(200)]
    model = Timed("m", clock, base=1.0, token=1.0)
    (row,) = latency({"m": model}, texts, batch=(1,), seconds=6.0)
    assert row.queries / row.rounds > 10
    assert row.settled
    assert row.p95_ms > 1.5 * row.p50_ms


def test_a_batch_larger_than_the_data_repeats_it(clock):
    model = Timed("m", clock, base=1.0)
    latency({"m": model}, EXAMPLES, batch=(6,), seconds=0.001)
    assert set(model.shapes) == {(6, 4)}


def test_percentiles_and_fixed_lengths(clock):
    model = Timed("m", clock, base=0.0, token=0.5)
    rows = latency({"m": model}, EXAMPLES, batch=(1, 3), lengths=(8, "data"), seconds=0.01)
    assert [(row.lengths, row.batch) for row in rows] == [(8, 1), (8, 3), ("data", 1), ("data", 3)]
    assert rows[0].p50_ms == pytest.approx(4.0)
    assert rows[1].p50_ms == pytest.approx(12.0)
    assert rows[1].tokens_per_second == pytest.approx(2000)
    assert set(model.shapes[:8]) == {(1, 8)}


def taking(clock, order, name, seconds):
    """Return a run that takes so long, by the number of the run."""

    def run(number):
        order.append(name)
        clock.now += seconds(number)

    return run


def test_models_run_in_a_random_order_in_each_round_and_equally_often(clock):
    order = []
    runs = {name: taking(clock, order, name, lambda number: 0.01) for name in "abc"}
    times = timing.interleave(runs, seconds=0.3)
    rounds = ["".join(order[start : start + 3]) for start in range(9, len(order), 3)]
    assert len(times["a"]) == len(times["b"]) == len(times["c"]) == len(rounds) == 30
    assert {"".join(sorted(one)) for one in rounds} == {"abc"}
    assert len(set(rounds)) == 6  # a rotation would have three orders
    assert times["a"] == pytest.approx(np.full((30, 1), 0.01))
    order.clear()
    timing.interleave(runs, seconds=0.3)
    assert ["".join(order[start : start + 3]) for start in range(9, len(order), 3)] == rounds


def test_rounds_that_do_not_agree_go_on_until_twice_the_time(clock):
    chance = np.random.default_rng(3).uniform(0.005, 0.015, 1000)
    runs = {"even": taking(clock, [], "even", lambda _: 0.01), "odd": taking(clock, [], "odd", lambda n: chance[n])}
    times = timing.interleave(runs, seconds=1.0, a_round=1)
    assert timing.spread(times["odd"][:, 0]) > timing.STEADY
    assert 2 * 1.9 < times["even"].sum() + times["odd"].sum() < 2 * 2.1
    alone = timing.interleave({"even": runs["even"]}, seconds=1.0, a_round=1)
    assert alone["even"].sum() == pytest.approx(1.0, abs=0.02)


def test_fast_things_run_several_times_a_round(clock):
    runs = {"slow": taking(clock, [], "slow", lambda _: 0.01), "fast": taking(clock, [], "fast", lambda _: 0.001)}
    times = timing.interleave(runs, seconds=1.0)
    assert times["slow"].shape == times["fast"].shape
    assert times["slow"].shape[1] == 5  # 20 rounds of the slow one in its second


def test_a_run_may_tell_its_own_seconds():
    times = timing.interleave({"elsewhere": lambda number: 0.5 + number}, seconds=0.0, a_round=1)
    assert times["elsewhere"][:, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]


def test_the_interval_of_a_median_has_the_coverage_that_it_says():
    chance = np.random.default_rng(7)
    for count in (3, 6, 9, 20):
        drawn = chance.lognormal(0, 0.5, (4000, count))
        found = [timing.median_interval(row) for row in drawn]
        held = np.mean([one.low <= 1 <= one.high for one in found])
        assert held == pytest.approx(found[0].coverage, abs=0.015)
        assert (found[0].coverage >= 0.95) == (count >= timing.FEWEST_ROUNDS)
    assert timing.median_interval([1.0, 2.0, 3.0]).coverage == 0.75
    assert timing.median_interval([4.0]).coverage == 0.0
    nine = timing.median_interval(range(1, 10))
    assert (nine.low, nine.value, nine.high, nine.coverage) == (2, 5, 8, pytest.approx(1 - 2 * 10 / 512))


def test_a_ratio_is_of_the_same_rounds():
    slowed = np.array([1.0, 5.0, 1.0, 1.0, 9.0, 1.0, 2.0])  # what else the machine did in each round
    found = timing.paired_ratio(3 * slowed, slowed)
    assert (found.value, found.low, found.high) == (3, 3, 3)


def test_percentiles_need_enough_queries():
    times = np.arange(1.0, 201.0).reshape(20, 10) / 1000
    assert percentile_ms(times, 0.95) == pytest.approx(190.05)
    assert percentile_ms(times[:19], 0.95) is None
    assert percentile_ms(times, 0.99) is None
    assert percentile_ms(np.full((100, 10), 0.5), 0.99) == 500


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
    assert (row.examples, row.passes, row.batch) == (4, 6, 2)
    assert row.pass_seconds == pytest.approx([0.02] * 6)
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
    assert speedup(rows, "small", "big").value == 2.5
    assert speedup(rows, "small", "big").coverage == 0  # rows of an earlier version have no rounds
    assert speedup(rows, "small", "big", batch=8) is None
    assert speedup(rows, "small", "other") is None
    assert speedup(rows, "small", "big", lengths=64) is None


def test_speedup_pairs_the_rounds_of_two_rows():
    small, big = rows_of(small=2.0, big=5.0)
    rounds = (1.0, 2.0, 2.0, 2.0, 2.0, 10.0)
    rows = [replace(small, round_ms=rounds), replace(big, round_ms=tuple(3 * value for value in rounds))]
    found = speedup(rows, "small", "big")
    assert (found.value, found.low, found.high) == (3, 3, 3)
    assert (found.rounds, found.coverage) == (6, 1 - 2 / 64)


def test_there_is_no_speedup_between_two_numbers_of_threads():
    small, big = rows_of(small=2.0, big=5.0)
    assert speedup([replace(small, threads=1), replace(big, threads=2)], "small", "big") is None
    assert speedup([replace(small, threads=2), replace(big, threads=2)], "small", "big").value == 2.5
    assert speedup([replace(small, threads=1), big], "small", "big").value == 2.5  # unknown


def test_rows_say_threads_engine_and_load(clock, monkeypatch):
    loads = iter([0.5, 1.25])
    monkeypatch.setattr(latency_module, "load_average", lambda: next(loads))
    model = Timed("m", clock, base=1.0)
    model.threads, model.manifest = 3, {"target": "openvino", "scheme": "int8"}
    (row,) = latency({"m": model}, EXAMPLES, batch=(1,), seconds=0.01)
    assert (row.threads, row.engine, row.load) == (3, "openvino int8", (0.5, 1.25))
    assert row.cpus == machine()["usable_cores"]


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


def test_the_mark_forgets_what_was_held_before_it():
    code = "data = bytearray(int(args[0])); data[::4096] = b'x' * len(data[::4096]); del data; mark()"
    assert peak_memory(code, str(80 * MEGABYTE)).bytes < 75 * MEGABYTE


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
    assert in_one_line({**here, "gpu": None}) == in_one_line(here)
    assert in_one_line({**here, "gpu": "Some GPU"}) == "Some CPU, avx2, avx512_vnni; Some GPU; torch 2.13.0, numpy 2.4"


def test_machine_is_plain_json_and_names_the_libraries():
    found = machine()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= found["usable_cores"] >= 1
    assert found["memory_bytes"] > 2**28
    assert found["versions"]["numpy"] == np.__version__
    assert versions(["numpy", "no-such-library"]) == {"numpy": np.__version__}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"meminfo": ["MemTotal: 9 kB", "MemAvailable:   4 kB"]}, 4096),
        ({"meminfo": ["MemAvailable: 4 kB"], "memory.max": ["max"], "memory.stat": ["anon 1000"]}, 4096),
        ({"meminfo": ["MemAvailable: 4 kB"], "memory.max": ["3000"], "memory.stat": ["file 9", "anon 1000"]}, 2000),
        ({"meminfo": ["MemAvailable: 4 kB"], "memory.max": ["900"], "memory.stat": ["anon 1000"]}, 0),
        ({}, None),
    ],
)
def test_memory_that_is_left_to_the_machine_and_to_a_container(files, left, monkeypatch):
    monkeypatch.setattr(machine_module, "_lines", lambda path: files.get(path.rsplit("/", 1)[1], []))
    assert machine_module.available_bytes() == left


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
