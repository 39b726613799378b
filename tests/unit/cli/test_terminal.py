"""What a command shows in a terminal: one live region, tables that fit, what comes next, how a stopped one goes on."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import shlex
import sys
import threading

import pytest
from rich.console import Console

from compress.cli import main
from compress.terminal.live_region import LiveRegion
from eval.progress.stages import advance, displayed, passed, stage, under_way, whole

CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


def screen(raw):
    """Return the lines that a terminal shows, everything that has scrolled away included."""
    lines, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[[?\d;]*[A-Za-z]|\r|\n)", raw):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif found := CONTROL.fullmatch(part):
            row -= int(found[1] or 1) if found[2] == "A" else 0
            if found[2] == "K":
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


@pytest.fixture
def drawn(monkeypatch):
    """A live region of 80 columns that draws whatever it is told, and what it has drawn so far."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=24, legacy_windows=False, color_system=None)
    monkeypatch.setattr("compress.terminal.live_region.SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with displayed(LiveRegion(console)):
        yield lambda: screen(file.getvalue())


class TestRegion:
    def test_stages_bar_figures_and_lines_above(self, drawn):
        with whole("sst2-3l", ["check", "distill.logits", "export"]):
            passed("check", "already there")
            with stage("distill.logits"), under_way("student", 200) as work:
                for step in (50, 100):
                    advance(work, step, "loss 0.0650  1,234 tokens/s  score 0.9000")
                    sys.stderr.write(f"step {step} of 200\n")
                *above, title, first, second, bar, figures, third = drawn()
                assert above == ["step 50 of 200", "step 100 of 200"]
                assert (title, first) == ("sst2-3l", "✓ check  already there")
                assert (second, third) == ("▸ distill.logits", "· export")
                assert re.fullmatch(r"  student ━+╸? +100/200  0:00:00 left", bar)
                assert len(bar) == 80
                assert figures == "  loss 0.0650  1,234 tokens/s  score 0.9000"
        left = ["sst2-3l", "✓ check  already there", "✓ distill.logits  0:00:00", "· export"]
        assert drawn() == [*above, *left, "", ""], "the lines of the bar are empty again"

    def test_an_error_leaves_a_mark_and_a_bar_alone_leaves_nothing(self, drawn):
        with pytest.raises(KeyboardInterrupt), whole("run", ["train"]), stage("train"):
            raise KeyboardInterrupt
        assert drawn() == ["run", "✗ train", ""]
        with under_way("timing", 10):
            assert re.fullmatch("timing +0/10", drawn()[-1])
        assert drawn() == ["run", "✗ train", ""]

    def test_a_long_list_fits_a_low_window(self, drawn):
        with whole("run", [f"step {number}" for number in range(60)]):
            for number in range(40):
                with stage(f"step {number}"):
                    lines = drawn()
            assert len(lines) <= 20
            assert lines[:2] == ["run", "… 34 done"]
            assert lines[-2:] == ["· step 45", "… 14 to come"]
            assert "▸ step 39" in lines


@pytest.fixture
def terminal(monkeypatch):
    """Run a command whose standard error is a pseudo-terminal of 80 columns; return its exit code and the screen."""
    for name, value in (("COLUMNS", "80"), ("LINES", "24"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(*arguments):
        ours, theirs = pty.openpty()
        seen = []

        def read():
            try:
                while part := os.read(ours, 65536):
                    seen.append(part)
            except OSError:  # the other end was closed
                return

        reader = threading.Thread(target=read)
        reader.start()
        with open(theirs, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            code = main([str(argument) for argument in arguments])
        reader.join(10)
        os.close(ours)
        return code, screen(b"".join(seen).decode())

    return run


def test_a_run_in_a_terminal(terminal, place, tmp_path, capsys):
    out = tmp_path / "out"
    code, lines = terminal("run", place / "recipe.yaml", "--out", out, "--set", "training.max_steps=3")
    assert code == 0, lines
    at = lines.index("small")
    assert [re.sub(r"\d:\d\d:\d\d", "TIME", line) for line in lines[at : at + 5]] == [
        *("small", "✓ check and prepare  TIME", "✓ distill.logits  TIME", "✓ prune.layers  TIME", "✓ measure  TIME")
    ]
    assert lines[at + 5 :] == [f"next: compress certify {out} --out {out}.cert", ""]
    assert not [line for line in lines[:at] if set(line) & set("✓▸·━")], "nothing of the region is left above it"
    assert "student: step 3 of 3, loss " in "\n".join(lines[:at])
    printed = capsys.readouterr().out
    assert printed.startswith("name")
    assert max(map(len, printed.split("\n\n")[0].splitlines())) <= 80


class TestStopped:
    def test_what_is_said_goes_on(self, call, place, tmp_path, monkeypatch):
        out, changes = tmp_path / "an out", ("--set", "training.max_steps=2", "--set", "evaluate=null")
        with monkeypatch.context() as patch:
            patch.setattr("compress.engine.pipeline.save_result", stopped)
            code, _, err = call("run", place / "recipe.yaml", "--out", out, *changes)
        words = ["compress", "run", str(place / "recipe.yaml"), "--out", str(out), *changes, "--resume"]
        assert code == 130
        assert err.endswith(f"stopped; what was done is kept in {out}\nnext: {shlex.join(words)}\n")
        code, _, err = call(*words[1:])
        assert code == 0
        assert "distill.logits: already there" in err
        assert err.endswith(f"next: compress export '{out}/model' --to onnx --int8 --out '{out}-onnx'\n")

    def test_resume_is_said_once(self, call, place, tmp_path, monkeypatch):
        monkeypatch.setattr("compress.engine.pipeline.foresee", stopped)
        (tmp_path / "out").mkdir()
        command = ("run", place / "recipe.yaml", "--out", tmp_path / "out", "--resume")
        assert call(*command) == (130, "", "check and prepare: started\nstopped\n"), "nothing was kept yet"
        (tmp_path / "out" / "recipe.yaml").write_text("")
        assert call(*command)[2].endswith(f" --out {tmp_path / 'out'} --resume\n")

    def test_a_teacher_goes_on_by_the_same_command(self, call, place, monkeypatch):
        keep = __import__("teachers.training.loop", fromlist=["save_checkpoint"]).save_checkpoint

        def kept_and_stopped(*arguments):
            keep(*arguments)
            raise KeyboardInterrupt

        command = ("teach", "--base", place / "teacher", "--task", "classification", "--data", place / "data")
        command += ("--epochs", "1")
        with monkeypatch.context() as patch:
            patch.setattr("teachers.training.loop.save_checkpoint", kept_and_stopped)
            code, _, err = call(*command)
        assert code == 130
        assert err.endswith(f"next: compress {shlex.join(map(str, command))}\n")
        code, said, err = call(*command)
        teacher = said.strip().removeprefix("teacher: ")
        assert (code, "resuming after step" in err) == (0, True)
        words = ("compress", "init", "--task", "classification", "--data", str(place / "data"), "--teacher", teacher)
        assert err.endswith(f"next: {shlex.join(words)}\n")


def stopped(*_, **__):
    raise KeyboardInterrupt


class TestNext:
    def test_check_then_plan_then_run(self, call, place):
        recipe, changes = place / "recipe.yaml", ("--set", "training.epochs=1")
        assert (
            call("check", recipe, "--file-only", *changes)[2]
            == f"next: compress check {recipe} {shlex.join(changes)}\n"
        )
        assert call("check", recipe, *changes)[2] == f"next: compress plan {recipe} {shlex.join(changes)}\n"
        assert call("plan", recipe, *changes)[2] == f"next: compress run {recipe} {shlex.join(changes)}\n"

    def test_never_beside_json(self, call, place, ran):
        assert "next:" not in ran[2]
        for command in (("check", place / "recipe.yaml"), ("plan", place / "recipe.yaml")):
            code, out, err = call(*command, "--json")
            assert (code, json.loads(out)["name"], err) == (0, "small", "")

    def test_a_certificate_and_its_check(self, call, ran, tmp_path):
        file = tmp_path / "a b.cert"
        code, _, err = call("certify", ran[0], "--out", file)
        assert code == 0
        _, *words = shlex.split(err.splitlines()[-1].removeprefix("next: "))
        assert words[:2] == ["recheck", str(file)]
        assert [word for word in words if word.startswith("--")] == ["--model", "--teacher", "--data"]
        assert call(*words, "--level", 3)[0] == 0


class TestWidth:
    @pytest.fixture(autouse=True)
    def eighty(self, home, monkeypatch):
        del home
        monkeypatch.setenv("COLUMNS", "80")

    @pytest.mark.parametrize(
        "command", [("list",), ("doctor",), ("show", "prune.movement"), ("show", "distill.tinybert")]
    )
    def test_tables_and_text_fit_80_columns(self, call, command):
        code, out, _ = call(*command)
        assert code == 0
        assert [line for line in out.splitlines() if len(line) > 80] == []
        assert "`" not in out

    def test_names_stay_whole(self, call):
        out = call("list")[1]
        assert "\nprune.vocabulary  " in out
        assert "reduces" not in out

    def test_lists_of_a_docstring_are_lists(self, call):
        out = call("show", "distill.mobilebert")[1]
        assert re.search(r"^- progressive: .*\n  \S", out, flags=re.MULTILINE)

    def test_results_stand_in_two_tables(self, ran):
        from eval.report.console import to_text
        from eval.result import Result

        results = [Result.load(folder) for folder in sorted((ran[0] / "results").iterdir())]
        scores, costs, *_ = to_text(results, width=80).split("\n\n")
        assert scores.split("\n")[0].split() == ["name", "accuracy", "difference", "[95%", "interval]", "verdict"]
        assert costs.split("\n")[-4].split()[:2] == ["name", "parameters"]
        assert max(map(len, [*scores.splitlines(), *costs.splitlines()])) <= 80
        assert to_text(results, width=200).split("\n")[0].split()[:2] == ["name", "accuracy"]
        assert "MACs" in to_text(results, width=200).split("\n")[0]


def test_log_lines_go_through_the_region(drawn):
    from compress.terminal.messages import _Messages

    with whole("run", ["train"]):
        _Messages().emit(logging.makeLogRecord({"msg": "a line"}))
        assert drawn() == ["a line", "run", "· train"]
