"""What a command says to do next: the input that tries an export is one that its kind of task reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from compress.commands.run import _say_next
from compress.terminal.next_command import TEXT, example_of


@pytest.mark.parametrize(
    ("kind", "pair", "expected"),
    [
        ("classification", False, TEXT),
        ("classification", True, {"text_a": TEXT, "text_b": "another text"}),
        ("qa", False, {"question": TEXT, "context": TEXT}),
        ("embedding", True, TEXT),
        ("seq2seq", False, TEXT),
    ],
)
def test_the_example_has_what_is_read_and_nothing_else(monkeypatch, kind, pair, expected):
    told = {"task": {"kind": kind, "pair": pair}}
    monkeypatch.setattr("compress.export.runtime.manifest.read_manifest", lambda folder: told)
    line = example_of(Path("export"))
    assert (line if isinstance(expected, str) else json.loads(line)) == expected


@pytest.mark.parametrize(("kind", "target"), [("classification", "onnx"), ("seq2seq", "generator")])
def test_after_a_run_without_exports_comes_one_that_its_kind_of_task_has(kind, target, tmp_path, capsys):
    artifact = SimpleNamespace(task=SimpleNamespace(kind=kind))
    _say_next(SimpleNamespace(exports={}, folder=tmp_path / "r", results=(), artifact=artifact))
    command = f"compress export {tmp_path}/r/model --to {target} --int8 --out {tmp_path}/r-{target}"
    assert command in capsys.readouterr().err


@pytest.mark.parametrize("given", ["v1.5", "."])
def test_the_certificate_of_a_run_gets_the_whole_name_of_its_folder(given, tmp_path, monkeypatch, capsys):
    here = tmp_path / "v1.5"
    here.mkdir()
    (here / "claim.json").write_text("[]")
    monkeypatch.chdir(here if given == "." else tmp_path)
    result = SimpleNamespace(role="final", comparison="held against the teacher")
    _say_next(SimpleNamespace(exports={}, folder=Path(given), results=(result,), artifact=None))
    assert capsys.readouterr().err.rstrip().endswith("v1.5.cert")
