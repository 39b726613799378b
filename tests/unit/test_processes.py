"""Predicting in several processes: the same lines in the same order, and nothing half when it ends early."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compress.cli import main as compress
from compress.export import export_onnx
from compress.export.runtime.many_processes import SHARE, json_lines, process_count
from compress.export.targets.library import ExportError
from tests.killing import killed
from tests.tiny import tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    task = tiny_task("classification")
    folder = tmp_path_factory.mktemp("processes") / "export"
    export_onnx(tiny_taskmodel("bert", task.spec), folder, examples=task.validation)
    return folder


def lines(count):
    words = ("good", "film", "sad", "book", "rome")
    return [" ".join(words[(number + place) % 5] for place in range(number % 7)) for number in range(count)]


def test_how_many_there_are(monkeypatch):
    monkeypatch.setattr("compress.export.runtime.many_processes.usable_cores", lambda: 3)
    assert (process_count("auto"), process_count("7")) == (3, 7)
    for wrong in ("0", "-1", "1.5", "many", "²", "9" * 400, "1025"):
        with pytest.raises(ValueError, match="must be auto or a whole number from 1 to 1,024"):
            process_count(wrong)


def test_two_processes_answer_as_one_does_in_the_order_of_the_lines(export, tmp_path, capfd):
    texts = lines(2 * SHARE + 10)
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    out = tmp_path / "answers"
    assert (
        compress(["predict", str(export), "--file", str(tmp_path / "texts"), "--processes", "2", "--out", str(out)])
        == 0
    )
    assert capfd.readouterr() == (f"written to {out}\n", "")
    found = [json.loads(line) for line in out.read_text().splitlines()]
    wanted = [json.loads(line) for line in json_lines(export, texts)]
    assert [answer["label"] for answer in found] == [answer["label"] for answer in wanted]
    assert [a["probability"] for a in found] == pytest.approx([a["probability"] for a in wanted], abs=1e-5)


def test_an_error_of_a_process_is_told_and_leaves_no_file(export, tmp_path, capfd):
    (tmp_path / "texts").write_text("good\n" * SHARE + '{"text": 5}\n')
    out = tmp_path / "answers"
    out.write_text("from before")
    code = compress(["predict", str(export), "--file", str(tmp_path / "texts"), "--processes", "2", "--out", str(out)])
    said = f"example {SHARE + 1}: text must be a text, got int\n"
    assert (code, *capfd.readouterr()) == (2, "", said)
    assert out.read_text() == "from before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers", "texts"]
    assert compress(["predict", str(export), "good", "--processes", "some"]) == 2
    assert "--processes: got 'some', must be auto or a whole number" in capfd.readouterr().err


def test_a_process_that_is_killed_is_told(export, monkeypatch):
    monkeypatch.setattr("compress.export.runtime.many_processes._share_answered", killed)
    with pytest.raises(ExportError, match=r"a process ended before its answers came .*fewer processes need less"):
        list(json_lines(export, ["good"], 2))


@pytest.mark.slow
@pytest.mark.parametrize("ended", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_early_leaves_no_half_file_and_no_process(export, tmp_path, ended):
    os.mkfifo(tmp_path / "endless")
    out = tmp_path / "answers"
    command = ["predict", str(export), "--file", str(tmp_path / "endless"), "--processes", "2", "--out", str(out)]
    program = f"import sys; from compress.cli import main; sys.exit(main({command!r}))"
    run = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with (tmp_path / "endless").open("w") as feed:
        feed.write("good film\n" * 3 * SHARE)
        feed.flush()
        until = time.monotonic() + 60
        while len(children := processes_of(run.pid)) < 3 and time.monotonic() < until:  # two, and multiprocessing's own
            time.sleep(0.1)
        assert len(children) == 3
        time.sleep(1)
        os.killpg(run.pid, ended) if ended == signal.SIGINT else run.kill()
        said = run.communicate(timeout=60)[1]
    if ended == signal.SIGINT:
        assert (run.returncode, said) == (130, "stopped\n")
    else:  # Python itself then says what it cleans up
        assert run.returncode == -ended
    assert not out.exists()
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def processes_of(parent):
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in found]
