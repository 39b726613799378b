"""How many hostile cases there are, over all tables."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.hostile.case import Case

TABLES = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py") if path.stem != "test_count")


def test_there_are_a_thousand():
    cases = [case for name in TABLES for case in getattr(import_module(f"tests.hostile.{name}"), "CASES", ())]
    assert all(isinstance(case, Case) for case in cases)
    assert len(cases) >= 1000, len(cases)
    assert len({(case.command, case.name) for case in cases}) >= 1000
