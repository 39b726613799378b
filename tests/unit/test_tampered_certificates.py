"""Tampered certificates: each is told apart by a word, at the lowest level that can see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from eval.certificate import recheck
from eval.certificate.canonical import sha256
from eval.certificate.contents import Contents, Part
from eval.certificate.findings import Word
from eval.certificate.replay import is_tie
from eval.example_digests import examples_digest
from eval.ranking.index_fields import IndexFields
from tests.certificates import (
    CANDIDATE,
    MACHINE,
    SPLITS,
    TEACHER,
    TEST,
    Again,
    certificate,
    lineage,
    predictions,
    refixed,
)

Change = Callable[[Contents], Contents]


@dataclass(frozen=True)
class Tampered:
    """What was done to a certificate, and how it must come out.

    Attributes:
        name: What was done.
        change: What makes a certificate another; it is packed with right digests of its members.
        word: The word.
        level: The level that says it.
        says: What stands in its sentences.
        given: What the check gets instead of the right files, data and predictions.
    """

    name: str
    change: Change
    word: Word
    level: int
    says: str
    given: dict[str, Any] = field(default_factory=dict)


def nothing(contents: Contents) -> Contents:
    return contents


def main(**values) -> Change:
    return lambda contents: replace(contents, main=replace(contents.main, **values))


def outcome(**values) -> Change:
    return lambda contents: main(outcome=replace(contents.main.outcome, **values))(contents)


def claim(**values) -> Change:
    """Move the claim, and say that it was so from the beginning, but leave the looks alone."""

    def change(contents: Contents) -> Contents:
        fixed = replace(contents.main.fixed, claim=replace(contents.main.fixed.claim, **values))
        looks = contents.main.looks
        return replace(refixed(contents, fixed=fixed), main=replace(refixed(contents, fixed=fixed).main, looks=looks))

    return change


def moved_everywhere(contents: Contents) -> Contents:
    """Move the margin in the claim and in the looks: no trace is left inside."""
    return refixed(contents, fixed=replace(contents.main.fixed, claim=replace(contents.main.fixed.claim, margin=0.03)))


def row(number: int, **values) -> Change:
    def change(contents: Contents) -> Contents:
        rows = list(contents.rows)
        rows[number] = replace(rows[number], **values)
        return replace(contents, rows=tuple(rows))

    return change


def consistent(change: Change) -> Change:
    """Compute all figures anew after a change, so that the certificate agrees with itself."""
    return lambda contents: refixed(change(contents))


def exchanged(contents: Contents) -> Contents:
    first, second, *others = contents.rows
    return replace(contents, rows=(second, first, *others))


def without_last(contents: Contents) -> Contents:
    parts = {**contents.main.data.parts, "test": Part(contents.main.data.parts["test"].digest, len(contents.rows) - 1)}
    data = replace(contents.main.data, parts=parts)
    return refixed(replace(contents, rows=contents.rows[:-1]), data=data)


def data(**values) -> Change:
    return lambda contents: main(data=replace(contents.main.data, **values))(contents)


def chosen_on_test(contents: Contents) -> Contents:
    return data(chosen_on={"best epoch": contents.main.fixed.claim.digest})(contents)


def selects_on_test(contents: Contents) -> Contents:
    parts = contents.main.data.parts
    return data(parts={**parts, "select": parts["test"]})(contents)


def trained_on_test(contents: Contents) -> Contents:
    return replace(contents, lineage=lineage({"train": contents.main.fixed.claim.digest}))


def record_edited(contents: Contents) -> Contents:
    records = [dict(record) | {"technique": "distill.labels"} for record in contents.lineage["records"]]
    return replace(contents, lineage=contents.lineage | {"records": records})


def other_weights(contents: Contents) -> Contents:
    """Put another model in the place of the candidate, also in the claim."""
    files = contents.main.candidate.files
    files = files | {"model.onnx": replace(files["model.onnx"], sha256=sha256(b"other"))}
    return refixed(contents, candidate=replace(contents.main.candidate, files=files))


def smaller(contents: Contents) -> Contents:
    return main(candidate=replace(contents.main.candidate, bytes=1))(contents)


def faster(contents: Contents) -> Contents:
    (speed,) = contents.main.speeds
    return main(speeds=(replace(speed, ratio=9.0),))(contents)


def faster_rounds(contents: Contents) -> Contents:
    (speed,) = contents.main.speeds
    row = {"p50_ms": 0.5, "round_ms": [0.5, 0.5]}
    return main(speeds=(replace(speed, candidate=row, ratio=12.0),))(contents)


def other_cost(**values) -> Change:
    return lambda contents: main(candidate=replace(contents.main.candidate, **values))(contents)


def looked_before(contents: Contents) -> Contents:
    """Tell of a look before the claim, when nothing was claimed."""
    (look,) = contents.main.looks
    return main(looks=({**look, "time": "2026-01-01T09:00:00+00:00", "claim": ""}, look))(contents)


def of_a_family(contents: Contents, family=(1.0, 1.0), margin=0.01) -> Contents:
    """Make the candidate one of several: its p-value is 0.012, and no longer shows the margin once it is corrected."""
    fixed = replace(contents.main.fixed, claim=replace(contents.main.fixed.claim, margin=margin))
    return refixed(contents, fixed=fixed, family=family)


def without_family(contents: Contents) -> Contents:
    return main(family=())(of_a_family(contents))


def same_file_twice(contents: Contents) -> Contents:
    return main(data=replace(contents.main.data, overlap={"train": (5,), "select": ()}))(contents)


WRONG = {"label": "good", "probability": 0.75}
OTHER_TEST = {**SPLITS, "test": [*TEST[:9], {"text": "a film", "label": "good"}, *TEST[10:]]}
GROUPED = {**SPLITS, "test": [{**example, "group": str(n // 2)} for n, example in enumerate(TEST)]}
OTHER_TRAIN = {**SPLITS, "train": SPLITS["train"][1:]}
RIGHT_LABEL = {"label": "good"}

TAMPERED = [
    Tampered("a score", outcome(candidate={"accuracy": 0.999}), Word.INVALID, 1, "candidate accuracy: is 0.999"),
    Tampered("the interval", outcome(low=-0.001), Word.INVALID, 1, "low: is -0.001"),
    Tampered("the verdict", outcome(verdict="inferior"), Word.INVALID, 1, "verdict: is inferior"),
    Tampered("a prediction alone", row(0, candidate={"label": "bad"}), Word.INVALID, 1, "candidate accuracy"),
    Tampered("a truth alone", row(0, gold=RIGHT_LABEL), Word.INVALID, 1, "candidate accuracy"),
    Tampered("a prediction of no kind", row(0, candidate={"tag": 1}), Word.INVALID, 1, "cannot be scored"),
    Tampered("predictions and all figures", consistent(row(0, candidate={**CANDIDATE[0], "label": "bad"})),
             Word.NOT_REPRODUCED, 3, "candidate, example 0"),
    Tampered("the teacher's predictions and all figures", consistent(row(9, teacher={**TEACHER[9], "label": "bad"})),
             Word.NOT_REPRODUCED, 3, "teacher, example 9"),
    Tampered("a truth and all figures", consistent(row(0, gold=RIGHT_LABEL)), Word.OTHER_DATA, 2, "its truth"),
    Tampered("the digest of an example", row(3, digest="0" * 64), Word.OTHER_DATA, 2, "example 3"),
    Tampered("the order of examples", exchanged, Word.OTHER_DATA, 2, "example 0"),
    Tampered("an example left out", without_last, Word.OTHER_DATA, 2, "has 600 examples, the certificate 599"),
    Tampered("other examples", nothing, Word.OTHER_DATA, 2, "example 9", {"splits": OTHER_TEST}),
    Tampered("other training examples", nothing, Word.OTHER_DATA, 2, "the train split", {"splits": OTHER_TRAIN}),
    Tampered("groups left out", nothing, Word.OTHER_DATA, 2, "example 0 of the test split (from 0): its group",
             {"splits": GROUPED}),
    Tampered("an overlap not told", same_file_twice, Word.OTHER_DATA, 2, "2 test examples stand in train"),
    Tampered("the digests of another model, in the claim too", other_weights, Word.OTHER_MODEL, 2, "model.onnx"),
    Tampered("another model", nothing, Word.OTHER_MODEL, 2, "model: model.onnx", {"edit": "small/model.onnx"}),
    Tampered("another tokenizer", nothing, Word.OTHER_MODEL, 2, "tokenizer.json", {"edit": "small/tokenizer.json"}),
    Tampered("another teacher", nothing, Word.OTHER_MODEL, 2, "teacher: model.onnx", {"edit": "teacher/model.onnx"}),
    Tampered("a file added", nothing, Word.OTHER_MODEL, 2, "added_tokens.json", {"edit": "small/added_tokens.json"}),
    Tampered("the margin moved afterwards", claim(margin=0.03), Word.INVALID, 1, "moved afterwards"),
    Tampered("the confidence moved afterwards", claim(confidence=0.8), Word.INVALID, 1, "moved afterwards"),
    Tampered("the claim fixed for another model", lambda c: main(candidate=replace(c.main.candidate, name="onnx"))(c),
             Word.INVALID, 1, "not those that the claim was fixed for"),
    Tampered("an index that the claim does not name", main(index=IndexFields("int8")), Word.INVALID, 1,
             "index: int8 is not that of the candidate that the claim names"),
    Tampered("a look before the claim", looked_before, Word.INVALID, 1, "was fixed after the split was opened"),
    Tampered("other candidates left out", without_family, Word.INVALID, 1, "verdict: is not shown"),
    Tampered("no look", main(looks=()), Word.INVALID, 1, "looks: none is recorded"),
    Tampered("test used for selection", chosen_on_test, Word.INVALID, 1, "used for selection (best epoch)"),
    Tampered("test is select", selects_on_test, Word.INVALID, 1, "is also the select split"),
    Tampered("test is select in another order", data(overlap={"train": (5, 6), "select": tuple(range(len(TEST)))}),
             Word.INVALID, 1, "every test example stands in select too"),
    Tampered("test used for training", trained_on_test, Word.INVALID, 1, "used the test split for train"),
    Tampered("test used for selection, and not told", nothing, Word.INVALID, 2, "(best epoch, model)",
             {"chosen_on": lambda: {"best epoch, model": examples_digest(TEST)}}),
    Tampered("training on other examples, and not told", nothing, Word.INVALID, 2, "does not name",
             {"chosen_on": lambda: {"training, model": "0" * 64}}),
    Tampered("no lineage", lambda c: replace(c, lineage=lineage()), Word.INVALID, 1, "there is no record"),
    Tampered("a record of the lineage", record_edited, Word.INVALID, 1, "record 1 was changed"),
    Tampered("the bytes", smaller, Word.INVALID, 1, "has 1 bytes"),
    Tampered("the parameters", other_cost(parameters=1), Word.NOT_REPRODUCED, 4, "parameters: 10 here, 1"),
    Tampered("the tokens of the products", other_cost(macs_length=512), Word.NOT_REPRODUCED, 4, "128 here, 512"),
    Tampered("the speed ratio", faster, Word.INVALID, 1, "the ratio is 9"),
    Tampered("rounds and speed ratio", faster_rounds, Word.NOT_REPRODUCED, 4, "speedup at batch size 1"),
    Tampered("tolerances too wide", lambda c: main(tolerances=replace(c.main.tolerances, number=0.9))(c),
             Word.INVALID, 1, "tolerances: number"),
    Tampered("other predictions now", nothing, Word.NOT_REPRODUCED, 3, "the verdict from the new predictions is",
             {"replay": Again(candidate=predictions(range(60)))}),
]  # fmt: skip


@pytest.mark.parametrize("case", TAMPERED, ids=lambda case: case.name)
def test_each_is_told_apart(case, tmp_path):
    contents = case.change(certificate(tmp_path))
    file = tmp_path / "model.cert"
    file.write_bytes(contents.to_bytes())
    if "edit" in case.given:
        (tmp_path / case.given["edit"]).write_text("of another model")
    found = recheck(
        file,
        model=tmp_path / "small",
        teacher=tmp_path / "teacher",
        splits=case.given.get("splits", SPLITS),
        chosen_on=case.given.get("chosen_on"),
        replay=case.given.get("replay", Again()),
    )
    last = found.findings[-1]
    assert (found.word, last.level, last.word) == (case.word, case.level, case.word), str(found)
    assert case.says in "\n".join(last.sentences)


def test_there_are_twenty():
    assert len(TAMPERED) >= 20


def test_records_that_are_not_those_beside_the_model_are_told(tmp_path):
    (tmp_path / "small").mkdir()
    beside, file = tmp_path / "small" / "lineage.json", tmp_path / "model.cert"
    beside.write_text(json.dumps(lineage({"train": examples_digest(SPLITS["train"])}), indent=1))
    contents = certificate(tmp_path)
    file.write_bytes(contents.to_bytes())
    found = recheck(file, model=tmp_path / "small", teacher=tmp_path / "teacher", splits=SPLITS, replay=Again())
    assert (found.word, found.reason) == (
        Word.INVALID,
        "lineage.json: the records of the certificate are not those of the model",
    )
    file.write_bytes(replace(contents, lineage=json.loads(beside.read_text())).to_bytes())
    assert recheck(file, model=tmp_path / "small", level=2).word is Word.PARTIAL


def test_a_verdict_of_several_candidates_is_corrected(tmp_path):
    file = tmp_path / "model.cert"
    for family, begins in (((1.0, 1.0), "Not certified"), ((1e-4,), "Certified")):
        file.write_bytes(of_a_family(certificate(tmp_path), family).to_bytes())
        found = recheck(file, model=tmp_path / "small", teacher=tmp_path / "teacher", splits=SPLITS, replay=Again())
        assert found.word is Word.VALID
        assert found.sentence.startswith(begins)
        assert f"Holm's method for {len(family) + 1} candidates" in found.sentence


def test_a_claim_that_moves_everywhere_inside_is_for_the_signature_alone(tmp_path):
    file = tmp_path / "model.cert"
    file.write_bytes(moved_everywhere(certificate(tmp_path)).to_bytes())
    found = recheck(file, model=tmp_path / "small", teacher=tmp_path / "teacher", splits=SPLITS, replay=Again())
    assert found.word is Word.VALID


def test_bytes_that_are_changed_in_the_file_are_found(tmp_path):
    file = tmp_path / "model.cert"
    whole = certificate(tmp_path).to_bytes()
    for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 5):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert recheck(file, level=1).word is Word.INVALID
    assert examples_digest(TEST) == certificate(tmp_path).main.fixed.claim.digest


@pytest.mark.parametrize(
    ("output", "word"), [([0.5, 0.5 + 1e-4], Word.VALID), ([-1.0, 1.0], Word.NOT_REPRODUCED)], ids=("a tie", "no tie")
)
def test_a_label_that_is_hardly_preferred_is_a_tie(output, word, tmp_path):
    contents = certificate(tmp_path)
    file = tmp_path / "model.cert"
    file.write_bytes(contents.to_bytes())
    again = Again(candidate=[*CANDIDATE[:8], {"label": "good", "probability": 0.5}, *CANDIDATE[9:]])
    again.found.outputs[8] = output
    found = recheck(file, model=tmp_path / "small", teacher=tmp_path / "teacher", splits=SPLITS, replay=again)
    assert found.findings[3].word is word


def test_a_number_that_differs_is_no_tie():
    task = {"kind": "classification", "labels": ["bad", "good"]}
    before, now = {"label": "good", "probability": 0.99}, {"label": "good", "probability": 0.51}
    assert not is_tie(task, before, now, [0.5, 0.5], tolerance=0.1)


def test_speed_on_another_machine_is_not_comparable(tmp_path):
    file = tmp_path / "model.cert"
    file.write_bytes(certificate(tmp_path).to_bytes())
    given = {"model": tmp_path / "small", "teacher": tmp_path / "teacher", "splits": SPLITS}
    other = [replace(MACHINE, features=("avx2",)), replace(MACHINE, threads={"OMP_NUM_THREADS": "2"})]
    found = [recheck(file, **given, replay=Again(here=here)) for here in other]
    assert [(each.word, each.exit_code) for each in found] == [(Word.NOT_COMPARABLE, 4)] * 2
    assert recheck(file, **given, replay=Again(here=replace(MACHINE, cpu="another name"))).exit_code == 0


def test_what_is_absent_is_named(tmp_path):
    file = tmp_path / "model.cert"
    file.write_bytes(certificate(tmp_path).to_bytes())
    found = recheck(file, model=tmp_path / "small")
    assert (found.word, found.exit_code) == (Word.PARTIAL, 3)
    assert [finding.level for finding in found.findings if finding.word is Word.PARTIAL] == [2, 3, 4]
    assert found.findings[2].sentences == ("--teacher was not given", "--data was not given")
    assert recheck(file, level=1).word is Word.VALID
