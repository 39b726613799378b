"""Speed and memory in reports: every ratio by the name of its reference."""

from dataclasses import replace

from eval.cost.memory import PeakMemory
from eval.report.console import to_text
from eval.report.page import page
from eval.report.speed import speed_sentence
from eval.report.summary import headline, shipped
from tests.unit.test_report import result, row


def with_own_export(**changes):
    """An export, timed beside the teacher in torch and the teacher's own export."""
    rounds = tuple(4.0 + number / 100 for number in range(8))
    rows = [
        replace(row(name, ms), engine=engine, threads=2, round_ms=tuple(ms / 4 * value for value in rounds))
        for name, ms, engine in (
            ("onnx-int8", 4.0, "onnx int8"),
            ("teacher", 16.0, "eager torch"),
            ("teacher, onnx-int8", 8.0, "onnx int8"),
        )
    ]
    return result(name="onnx-int8", latency=tuple(rows), same_engine="teacher, onnx-int8", size=None, **changes)


def test_each_speedup_names_its_reference_and_engine():
    said = "speedup 2.0 over teacher, onnx-int8 (onnx int8) and 4.0 over teacher (eager torch) at batch size 1"
    assert headline(with_own_export()).endswith(said)
    text = page("t", [result(), with_own_export()])
    assert text.index("onnx-int8 retains") < text.index("student retains")  # what ships stands at the top
    first = text.index("faster in the same engine than teacher, onnx-int8 (onnx int8) at batch 1")
    assert first < text.index("faster than teacher (eager torch) at batch 1")
    assert "2.00 to 2.00 (99%)" in text
    assert speed_sentence(result(latency=())) == ""


def timed(name, ms, **changes):
    return result(name=name, latency=(row(name, ms), row("teacher", 9.0)), **changes)


def test_what_ships_is_the_fastest_export_and_never_the_teachers():
    student, slow, fast, own = (
        timed(*one) for one in (("s", 1.0), ("onnx", 5.0), ("int8", 4.0), ("teacher, onnx", 2.0))
    )
    everything = [result(name="teacher", comparison=None), student, slow, fast, own]
    assert shipped(everything, ("onnx", "int8")) is fast
    assert shipped(everything[:3], ("onnx", "int8")) is slow
    assert shipped(everything) is student
    assert shipped([with_own_export(), student]).name == "onnx-int8"  # it says itself that it is an export
    assert shipped([result(comparison=None)]) is None


def test_of_exports_that_were_not_timed_the_smallest_ships():
    large, small = (result(name=name, latency=(), file_bytes=size) for name, size in (("onnx", 900), ("int8", 300)))
    assert shipped([large, small], ("onnx", "int8")) is small
    assert shipped([small, large], ("onnx", "int8")) is small


def test_models_with_other_threads_give_no_speedup_but_the_reason():
    one = with_own_export()
    rows = (replace(one.latency[0], threads=1), *one.latency[1:])
    said = "no speedup over teacher, onnx-int8, which ran with another number of threads"
    assert said in headline(one.model_copy(update={"latency": rows}))


def test_memory_is_shown_or_the_reason_why_there_is_none():
    known = result(memory=PeakMemory(250_000_000, 90_000_000))
    absent = result(name="other", no_memory="it lies in no folder")
    text = page("t", [known, absent])
    assert "250 MB" in text
    assert "160 MB of it above its libraries" in text
    assert "it lies in no folder" in text
    assert "250 MB" in to_text([known, absent])
    assert "peak memory" not in to_text([result()])
