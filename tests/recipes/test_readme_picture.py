"""The picture of README.md shows what the record of the inference bench holds."""

import json
from statistics import median

import pytest

from benchmarks import readme_picture
from benchmarks.archive import RESULTS
from benchmarks.readme_picture import CASE, NAME, RECORD, places, problems, said, write


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A record and its pictures, to be changed."""
    (tmp_path / RECORD).write_text((RESULTS / RECORD).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(readme_picture, "FOLDER", tmp_path)
    write(tmp_path)
    return tmp_path


def test_every_engine_of_the_record_is_a_point():
    record = json.loads((RESULTS / RECORD).read_text(encoding="utf-8"))
    expected = {(round(1000 * median(row["seconds"][CASE]), 6), 100 * row["agreement"]) for row in record["engines"]}
    assert {(round(place.milliseconds, 6), place.agreement) for place in places()} == expected


def test_the_fastest_at_each_level_of_agreement_is_ours():
    """README says so of the picture."""
    least = {level: next(place for place in places() if place.agreement >= level) for level in (100, 99, 98, 0)}
    assert {level: place.tool for level, place in least.items()} == dict.fromkeys(least, "ours")


def test_the_tools_are_named_in_both_themes(copy):
    for end in ("", "-dark"):
        words = {text for text, *_ in said((copy / f"{NAME}{end}.svg").read_bytes())}
        assert words >= {"torch", "ONNX Runtime", "optimum", "OpenVINO", "NNCF", "CTranslate2", "ours", "int8"}
    assert (copy / f"{NAME}.svg").read_bytes() != (copy / f"{NAME}-dark.svg").read_bytes()


def test_a_picture_of_other_figures_is_found(copy):
    assert problems(copy) == []
    record = json.loads((copy / RECORD).read_text(encoding="utf-8"))
    (ours,) = [row for row in record["engines"] if row["name"] == "ours, int8"]
    ours["agreement"] -= 0.01
    (copy / RECORD).write_text(json.dumps(record), encoding="utf-8")
    assert [problem.split(":")[0] for problem in problems(copy)] == [f"{NAME}.svg", f"{NAME}-dark.svg"]
    write(copy)
    assert problems(copy) == []


def test_without_a_record_nothing_is_drawn(tmp_path):
    assert problems(tmp_path) == []
    write(tmp_path)
    assert list(tmp_path.iterdir()) == []
