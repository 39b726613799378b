"""How commands start and how they end."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compress import __version__
from compress.commands import doctor as doctor_command
from eval.errors import CompressError, DivergedError, UserError
from tests.unit.cli.conftest import ROOT


class TestStart:
    def test_nothing_heavy_is_imported(self):
        code = (
            "import sys; from compress.cli import main; main(['--help']);"
            "heavy = {'torch', 'transformers', 'numpy', 'onnxruntime', 'pydantic', 'yaml', 'matplotlib', 'datasets'};"
            "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def test_help_names_every_command(self, call):
        code, out, _ = call("--help")
        assert code == 0
        commands = re.findall(r"^  ([a-z]+)  ", out, flags=re.MULTILINE)
        assert commands == [
            *("optimize", "distill", "run", "check", "plan", "list", "show", "recipes", "init", "schema", "search"),
            *("teach", "augment", "eval", "export", "compare", "verify", "certify", "recheck"),
            *("history", "predict", "push", "demo", "doctor"),
        ]

    def test_version(self, call):
        assert call("--version") == (0, f"nlp-compress {__version__}\n", "")

    @pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["run", "a.yaml", "--nonsense"], ["eval", "model"]])
    def test_wrong_arguments_end_with_2(self, call, arguments):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert "Usage: compress" in err
        assert "Error: " in err


class TestFailures:
    @pytest.fixture
    def broken(self, monkeypatch, call):
        def run(error, *options):
            def fail():
                raise error

            monkeypatch.setattr(doctor_command, "diagnosis", fail)
            return call(*options, "doctor")

        return run

    def test_a_user_s_mistakes_end_with_2_and_are_counted(self, broken):
        assert broken(UserError("one thing")) == (2, "", "one thing\n")
        assert broken(UserError("one", "two", "one")) == (2, "", "one\ntwo\n2 errors\n")

    def test_our_errors_end_with_1(self, broken):
        assert broken(CompressError("no")) == (1, "", "no\n")
        assert broken(DivergedError("loss is nan at step 3")) == (1, "", "loss is nan at step 3\n")

    def test_a_full_disk(self, broken):
        code, _, err = broken(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/model.onnx"))
        assert code == 1
        assert err.startswith("the disk is full (out/model.onnx); free some space")

    def test_other_trouble_with_files(self, broken):
        code, _, err = broken(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "some/file"))
        assert (code, err) == (1, "some/file: Permission denied\n")

    def test_memory(self, broken):
        code, _, err = broken(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
        assert code == 1
        assert err.startswith("out of memory (CUDA out of memory. Tried to allocate 2 GiB); a smaller batch_size")

    def test_interruption(self, broken):
        assert broken(KeyboardInterrupt()) == (130, "", "stopped\n")

    def test_the_unexpected_leaves_a_traceback_in_a_file(self, broken):
        code, out, err = broken(ZeroDivisionError("by zero"))
        assert (code, out) == (1, "")
        assert err.startswith("unexpected error, most likely a bug: ZeroDivisionError: by zero; the traceback is in ")
        assert err.count("\n") == 1
        file = Path(re.search(r"is in (\S+),", err)[1])
        try:
            assert "ZeroDivisionError: by zero" in file.read_text(encoding="utf-8")
        finally:
            file.unlink()

    def test_debug_shows_it(self, broken):
        code, _, err = broken(ZeroDivisionError("by zero"), "--debug")
        assert code == 1
        assert err.startswith("Traceback (most recent call last):")
        assert err.endswith("unexpected error, most likely a bug: ZeroDivisionError: by zero\n")
