"""The comparison of engines: who is measured, in which order, what is said of the others, and the page of it."""

import json

import numpy as np
import pytest

from benchmarks import inference, inference_report
from benchmarks.archive import Archive
from benchmarks.engines import process
from benchmarks.engines.catalogue import ENGINES, REFERENCE
from benchmarks.engines.engine import Files, tool_of
from benchmarks.engines.environment import EngineError, Environment
from benchmarks.figures import expected
from benchmarks.inference_report import CASES, STREAMS, kind_of_processor, report, sections, unknown_to
from compress.artifact.artifact import Artifact
from compress.testing.tiny import tiny_task, tiny_taskmodel
from eval.cost.machine import machine
from tests.recipes import fake_engines as fake

OTHERS = (fake.NotThere, fake.NoSense, fake.Unprepared, fake.Dying, fake.DyingLater)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = Files(tmp_path_factory.mktemp("files"))
    chance = np.random.default_rng(1)
    for case in (*CASES, inference.COMPARED):
        ids = chance.integers(1, 20, (8, 10))
        made.write_batches(
            case, [{"input_ids": ids, "attention_mask": np.ones_like(ids)}] * (3 if case == STREAMS[1] else 2)
        )
    return made


@pytest.fixture(scope="module")
def found(files, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESS_HOME", str(tmp_path_factory.mktemp("home")))
        engines = (fake.Fake, *OTHERS, fake.Same, fake.Ours, fake.Wrong)
        measured = inference.compare(files, engines, CASES, 2, 0.01)
    return {"machine": machine(), "threads": 2, "sentences": 8} | json.loads(json.dumps(measured))


def test_an_engine_that_does_not_run_is_listed_with_the_reason_and_the_others_are_measured(found):
    assert [row["name"] for row in found["engines"]] == [
        "torch, eager",
        "CTranslate2, int8",
        "ours, int8",
        "ours, wrong",
    ]
    reasons = found["not_measured"]
    assert set(reasons) == {engine.name for engine in OTHERS}
    assert reasons[fake.NotThere.name].startswith("cannot be installed: ERROR: ")
    assert "no-such-package" in reasons[fake.NotThere.name]
    assert reasons[fake.NoSense.name] == "this processor has no such products"
    assert reasons[fake.Unprepared.name] == "RuntimeError: no such operator"
    assert reasons[fake.Dying.name].startswith("its process ended with 7")
    assert reasons[fake.DyingLater.name].startswith(f"{STREAMS[1]}: its process ended with 9")
    row = found["engines"][2]
    assert (row["megabytes"], row["versions"]) == (0.0015, {"numpy": np.__version__})
    assert all(len(row["seconds"][case]) >= 6 for row in found["engines"] for case in CASES)


def test_every_round_runs_all_engines_in_an_order_of_its_own(found, files):
    """Each pass over the last case makes three calls, one a batch; warm-up comes before the rounds."""
    names = [row["name"] for row in found["engines"]]
    count = len(found["engines"][0]["seconds"][STREAMS[1]])
    calls = (files.folder / "calls.txt").read_text().splitlines()[-3 * len(names) * count :]
    assert calls[::3] == calls[1::3] == calls[2::3]
    rounds = np.array(calls[::3]).reshape(count, len(names))
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


def test_predictions_that_disagree_are_shown(found):
    assert {row["name"]: row["agreement"] for row in found["engines"]} == {
        "torch, eager": 1.0,
        "CTranslate2, int8": 1.0,
        "ours, int8": 1.0,
        "ours, wrong": 0.0,
    }
    text = report(found)
    (line,) = [line for line in text.splitlines() if line.startswith("| ours, wrong")]
    assert line.startswith("| ours, wrong ² |")
    assert "| 0.0% |" in line
    assert "² It agrees with torch in float32 on fewer than 99% of the sentences." in text
    assert "- NNCF, cannot be installed: cannot be installed: ERROR" in text


def test_the_best_peer_is_the_fastest_of_all_that_are_not_ours():
    times = {"torch, eager": 4.0, "NNCF, int8": 1.5, "CTranslate2, int8": 2.0, "ours, int8": 1.2, "ours, float32": 3.0}
    rows = [{"name": name, "megabytes": 1.0, "agreement": 0.997, "seconds": {}} for name in times]
    for row in rows:
        row["seconds"] = {case: [times[row["name"]] * noise for noise in (1, 1.1, 0.9, 1, 1, 1)] for case in CASES}
    text = report({"machine": machine(), "threads": 1, "sentences": 256, "engines": rows})
    assert f"| {STREAMS[0]} | NNCF, int8, agreement 99.7% | **1.25 [1.25, 1.25]** | 0.50 [0.50, 0.50] |" in text
    assert "| ours, int8 | 1.0 | 0.0 | 0 | 99.7% | 1200.00 (3.33) |" in text
    assert "| 213 (3.33) |" in text


def test_a_run_without_ours_has_its_table(found):
    peers = [row for row in found["engines"] if tool_of(row["name"]) != "ours"]
    text = report(found | {"engines": peers, "rates": {"2 x 2 x 2": {"u8 x s8": 1.0}}, "billions": 1.0})
    assert "| CTranslate2, int8 | " in text
    assert "best peer" not in text


def test_the_page_is_made_from_the_records(found, tmp_path):
    pages, records = tmp_path / "pages", tmp_path / "results"
    (pages / "plots").mkdir(parents=True)
    records.mkdir()
    (pages / "inference.md").write_text("# Page\n\n<!-- study inference -->\n<!-- end -->\n")
    (records / "inference-fine-tuned-avx2.json").write_text(json.dumps(found))
    inference_report.write(records, pages)
    text = sections(records)
    assert expected("inference", Archive(records)) == text
    assert text in (pages / "inference.md").read_text()
    assert "*Measured with fewer peers, before these were in the bench: torch, compiled; " in text
    light, dark = (pages / "plots" / f"inference-fine-tuned-avx2{end}.svg" for end in ("", "-dark"))
    assert "the best of fewer peers" in light.read_text()
    assert light.read_text() != dark.read_text()
    complete = {"engines": [{"name": engine.name} for engine in ENGINES]}
    assert unknown_to(complete) == []


def test_a_process_that_hangs_is_ended(files, monkeypatch):
    monkeypatch.setattr(process, "ANSWER_WITHIN", 1.0)
    with pytest.raises(EngineError, match="its process ended with -9"):
        process.Process(fake.Hanging(), files, 1)


def test_an_environment_is_made_once_and_again_when_its_requirements_change(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
    made = []
    monkeypatch.setattr(
        Environment,
        "_make",
        lambda self, folder: (made.append(self.requirements), folder.mkdir(parents=True, exist_ok=True)),
    )
    first, later = Environment("a", ("x==1",)), Environment("a", ("x==2",))
    assert first.python() == first.python() == str(tmp_path / "environments" / "a" / "bin" / "python")
    later.python()
    assert made == [("x==1",), ("x==2",)]


def test_all_engines_are_well_named():
    names = [engine.name for engine in ENGINES]
    assert len(set(names)) == len(names)
    assert ENGINES[0] is REFERENCE
    assert {tool_of(name) for name in names} == {
        "torch", "ONNX Runtime", "optimum", "OpenVINO", "NNCF", "CTranslate2", "ours",
    }  # fmt: skip
    pinned = [requirement for engine in ENGINES for requirement in engine.environment.requirements]
    assert all("==" in requirement for requirement in pinned)


@pytest.mark.parametrize(
    ("features", "short"),
    [
        (("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8"), "amx"),
        (("avx2", "avx_vnni", "avx512f", "avx512_vnni"), "avx-vnni"),
        (("avx2", "avx512f", "avx512_vnni"), "vnni"),
        (("avx2", "avx512f"), "avx512"),
        (("avx2",), "avx2"),
        (("asimddp",), "arm"),
        ((), "other"),
    ],
)
def test_a_record_is_named_by_what_decides_the_speed(features, short):
    assert kind_of_processor(features)[0] == short


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    made = Files(tmp_path_factory.mktemp("prepared"))
    task = tiny_task("classification")
    inference.write_files(made, Artifact.from_model(tiny_taskmodel("bert", task.spec), origin="random"), task)
    return made


def test_peers_start_from_a_plain_graph_and_equal_batches(prepared):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(prepared.graph))
    assert [value.name for value in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    eager = REFERENCE().load(prepared, prepared.folder, 1)
    unsorted, ordered = (prepared.batches(case) for case in STREAMS)
    for batch in unsorted[:2]:
        np.testing.assert_allclose(session.run(None, batch)[0], eager(batch), atol=1e-5)
    lengths = [
        [int(row.sum()) for batch in batches for row in batch["attention_mask"]] for batches in (unsorted, ordered)
    ]
    assert sorted(lengths[0]) == lengths[1] != lengths[0]
    assert {len(batch["input_ids"]) for batch in ordered[:-1]} <= {inference.BATCH}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_engine_predicts_as_torch_does(engine, prepared):
    """It runs where it is measured; the first run installs the packages of peers."""
    if reason := engine().absent():
        pytest.skip(reason)
    process.prepare(engine(), prepared)
    running, _ = process.start(engine(), prepared, 1)
    try:
        found = running.logits(inference.COMPARED)
        assert running.run(STREAMS[0]) > 0
    finally:
        running.close()
    reference = REFERENCE().load(prepared, prepared.folder, 1)
    wanted = np.concatenate([reference(batch) for batch in prepared.batches(inference.COMPARED)])
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).mean() < 0.1 * np.abs(wanted).mean()
