"""Lineages on disk as versions before wrote them: format 1 without digests, format 2 with a structure a record."""

import hashlib
import json

import pytest

from compress.artifact.lineage import read_lineage, write_lineage
from compress.modules.int8_scheme import Int8, scheme_of
from eval.errors import UserError

SIZE = {"parameters": 10, "bytes": 40}
SCHEME = {"per_channel": True, "reduce_range": False, "embeddings": True, "activations": "tensor", "exclude": []}
RECORDS = [
    {
        "technique": "source",
        "version": 1,
        "config": {"origin": "bert-base"},
        "data": {},
        "teacher": None,
        "seed": None,
        "structure": {},
        "facts": {},
        "size_before": None,
        "size_after": SIZE,
        "weights_before": None,
        "weights_after": "aa",
        "files": {"config.json": "11"},
        "libraries": {"torch": "2.0"},
        "seconds": 0.0,
    },
    {
        "technique": "prune.vocabulary",
        "version": 1,
        "config": {"min_count": 1},
        "data": {"train": "22"},
        "teacher": None,
        "seed": 3,
        "structure": {"kept": [0, 1, 4], "layers": [0, 2]},
        "facts": {"kept": 3, "dropped": 2},
        "size_before": SIZE,
        "size_after": SIZE,
        "weights_before": "aa",
        "weights_after": "bb",
        "files": {"config.json": "12"},
        "libraries": {"torch": "2.0"},
        "seconds": 1.5,
    },
    {
        "technique": "quantize.dynamic",
        "version": 1,
        "config": {"activations": "tensor"},
        "data": {},
        "teacher": None,
        "seed": 4,
        "structure": {"export": {"int8": SCHEME}},
        "facts": {},
        "size_before": SIZE,
        "size_after": SIZE,
        "weights_before": "bb",
        "weights_after": "bb",
        "files": {"config.json": "12"},
        "libraries": {"torch": "2.0"},
        "seconds": 0.1,
    },
]


def chained(records):
    """Return records with their digest and that of the one before, as format 2 has them."""
    rows, previous = [], None
    for record in records:
        row = record | {"previous": previous}
        previous = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
        rows.append(row | {"digest": previous})
    return {"format": 2, "records": rows, "last": previous}


@pytest.mark.parametrize("values", [chained(RECORDS), {"format": 1, "records": RECORDS}], ids=["2", "1"])
def test_records_of_before_are_read_as_those_of_today(values, tmp_path):
    file = tmp_path / "lineage.json"
    file.write_text(json.dumps(values))
    source, cut, quantized = read_lineage(file)
    assert (source.technique, source.facts, source.export_scheme) == ("source", {}, None)
    assert (cut.config, cut.seed, cut.data, cut.seconds) == ({"min_count": 1}, 3, {"train": "22"}, 1.5)
    assert cut.facts == {"kept": 3, "dropped": 2, "layers": [0, 2]}, "what was cut is told; facts of that name count"
    assert (cut.weights_before, cut.weights_after, cut.files) == ("aa", "bb", {"config.json": "12"})
    assert (quantized.facts, quantized.export_scheme) == ({}, SCHEME)
    assert scheme_of((source, cut, quantized)) == Int8(activations="tensor", reduce_range=False)
    write_lineage((source, cut, quantized), tmp_path / "again.json")
    assert read_lineage(tmp_path / "again.json") == (source, cut, quantized)
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["format"] == 3
    assert not any("structure" in row for row in again["records"])


def test_a_structure_of_before_that_was_changed_is_refused(tmp_path):
    values, file = chained(RECORDS), tmp_path / "lineage.json"
    values["records"][2]["structure"]["export"]["int8"]["activations"] = "token"
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"record 3, quantize\.dynamic, was changed after it was written"):
        read_lineage(file)


@pytest.mark.parametrize("structure", ["a", {"export": 1}, {"export": {"int8": [1]}}])
def test_a_structure_of_before_that_is_none_is_a_message(structure, tmp_path):
    file = tmp_path / "lineage.json"
    file.write_text(json.dumps({"format": 1, "records": [RECORDS[0] | {"structure": structure}]}))
    with pytest.raises(UserError, match=r"lineage\.json: records.*structure"):
        read_lineage(file)
