"""What a command says to do next: the input that tries an export is one that its kind of task reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
