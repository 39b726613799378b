"""Data files in every format and for every kind of task: broken, mislabelled, of wrong types, or something else.

The command is ``check``, which reads all of the data before any model.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forking import Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import DEEP, HUGE, WRONG, Damage, Raw, device, link, remove, write

GOOD: dict[str, dict[str, Any]] = {
    "classification": {"text": "a good film", "label": "good"},
    "classification of pairs": {"text_a": "a good film", "text_b": "a fine song", "label": "good"},
    "regression": {"text": "a good film", "label": 0.5},
    "regression of pairs": {"text_a": "a good film", "text_b": "a fine song", "label": 0.5},
    "tagging": {"tokens": ["ann", "lives", "in", "rome"], "tags": ["B-PER", "O", "O", "B-LOC"]},
    "qa": {
        "id": "1",
        "question": "where is ann ?",
        "context": "ann lives in rome .",
        "answers": [{"text": "rome", "answer_start": 13}],
    },
    "masked-lm": {"text": "ann lives in rome"},
    "embedding": {"text_a": "a good film", "text_b": "a fine song", "label": 0.5},
    "multiple-choice": {"text": "ann likes it .", "choices": ["a good film", "a bad film"], "label": 0},
}
"""Kind of task, and more words -> an example."""
OTHER = {"good": "bad", 0.5: 0.25, 0: 1}
"""Another truth, so that there are two."""
FITS: dict[str, tuple[str, ...]] = {
    "text": ("text", "long"),
    "text_a": ("text", "long"),
    "text_b": ("text", "long"),
    "question": ("text", "long"),
    "context": ("text", "long"),
    "id": ("text", "number", "long"),
    "label": ("fraction", "number", "text", "long"),
}
"""Values of ``WRONG`` that a field may have, or that make a sentence of their own."""
SAID = {"tags": "tag|a label"}
"""What a message calls a field, where that is not its name."""
FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "txt")


def command(kind: str, *more: str) -> str:
    """Return the command that reads ``data`` as a task of a kind."""
    sets = [f"task.kind={kind.split()[0]}", "teacher.finetune={epochs: 1}", *more]
    if kind == "masked-lm":
        sets += ["evaluate=null", "export=null", "steps=[distill.labels]"]
    return "check recipe.yaml " + " ".join(f"--set '{one}'" for one in sets)


def rows_of(kind: str, count: int = 6) -> list[dict[str, Any]]:
    """Return rows of a kind with two truths alternately."""
    good = GOOD[kind]
    other = good | ({"label": OTHER[good["label"]]} if "label" in good else {})
    return [dict(good if number % 2 else other) for number in range(count)]


def lines(rows: list[Any]) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)


def data(train: str | bytes, name: str = "train.jsonl") -> Damage:
    """Make ``data`` a folder with this file alone."""

    def act(scene: Path) -> None:
        remove("data")(scene)
        write(f"data/{name}", train)(scene)

    return act


def folder(name: str) -> Damage:
    return lambda scene: (scene / name).mkdir()


def third(kind: str, row: Any) -> Damage:
    """Make ``data/train.jsonl`` rows of a kind of which the third is ``row``: a value, or JSON as it shall stand."""
    rows: list[Any] = rows_of(kind)
    rows[2] = row
    return data(lines(rows))


def with_field(kind: str, field: str, value: Any) -> Damage:
    row = rows_of(kind)[2]
    if isinstance(value, Raw):
        return third(kind, json.dumps(row | {field: "\x00"}).replace('"\\u0000"', value))
    return third(kind, row | {field: value})


def without_field(kind: str, field: str) -> Damage:
    row = rows_of(kind)[2]
    del row[field]
    return third(kind, row)


def of_fields() -> list[Case]:
    """Every field of every kind, missing and with every wrong value: the line and the field are named."""
    cases = []
    for kind, good in GOOD.items():
        for field in good:
            wrong = {name: value for name, value in WRONG.items() if name not in FITS.get(field, ())}
            for name, value in wrong.items():
                said = (
                    "nested too deeply|thousands of digits"
                    if name in ("deep", "huge")
                    else SAID.get(field, field.removesuffix("s"))
                )
                slow = kind not in ("classification", "qa", "multiple-choice") or name in ("true", "fraction")
                cases.append(
                    Case(
                        f"{kind}: {field} is {name}",
                        command(kind),
                        with_field(kind, field, value),
                        says=rf"data/train\.jsonl:3: .*({said})",
                        slow=slow,
                    )
                )
            cases.append(
                Case(
                    f"{kind}: no {field}",
                    command(kind),
                    without_field(kind, field),
                    says=rf"data/train\.jsonl:3: the field '(text|{field})' is missing",
                )
            )
    return cases


ANYTHING: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank lines": (b"\n\n\n", "is empty"),
    "one byte": (b"\x00", ":1: |not JSON|cannot be read|is empty"),
    "zeros": (b"\x00" * 5000, ":1: |not JSON|cannot be read|is empty"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "UTF-8|not JSON|cannot be read"),
    "UTF-16": ("text,label\na film,good\n".encode("utf-16"), "UTF-8|cannot be read"),
    "latin-1": ("text,label\nschön,good\n".encode("latin-1"), "UTF-8|not JSON|cannot be read"),
    "an unfinished character": ("text,label\nschö".encode()[:-1], "UTF-8|not JSON|cannot be read"),
    "brackets": ("[" * 100_000, "nested too deeply|not JSON|cannot be read|missing|columns|is empty"),
    "a web page": ("<!doctype html><p>404</p>\n", "not JSON|cannot be read|missing|is empty"),
    "a pickle": (b"\x80\x04\x95\x0f\x00\x00\x00\x00\x00\x00\x00\x8c\x02os.", "UTF-8|not JSON|cannot be read"),
    "a line of 10 MB": (b"x" * 10_000_000, "not JSON|cannot be read|missing|is empty"),
}
"""What is no data in any format."""
TABLES: dict[str, tuple[str, str]] = {
    "a header alone": ("text,label\n", "is empty"),
    "a doubled header": ("text,label,text\na,good,b\nc,bad,d\n", r":1: the header names 'text' twice"),
    "a doubled header with spaces": ("text,label, label\na,good,b\nc,bad,d\n", r":1: the header names 'label' twice"),
    "no header": ("a film,good\nb film,bad\n", "'text' and 'label' are missing"),
    "an empty label": ("text,label\na,good\nb,\nc,bad\n", r":3: the field 'label' is empty"),
    "a label of spaces": ("text,label\na,good\nb,  \nc,bad\n", r":3: the field 'label' is empty"),
    "too few cells": ("text,label\na,good\nb\nc,bad\n", r":3: has 1 cell,"),
    "too many cells": ("text,label\na,good\nb,bad,x\nc,bad\n", r":3: has 3 cells"),
    "one class": ("text,label\na,good\nb,good\n", "all labels are 'good'"),
    "a header of a megabyte": (f"text,label,{'x' * 1_000_000}\na,good\nb,bad\n", r":2: has 2 cells"),
    "a header of 100,000 columns": (f"text,label,{','.join(map(str, range(100_000)))}\na,good\n", r":2: has 2 cells"),
    "other columns": ("alpha,beta\na,good\nb,bad\n", "'text' and 'label' are missing; there are 'alpha', 'beta'"),
}
"""Tables of text; commas become tabs for TSV."""


def parquet(change: Callable[[Any], Any] = lambda rows: rows, metadata: dict[bytes, bytes] | None = None) -> Damage:
    def act(scene: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = change(rows_of("classification"))
        found = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        if metadata is not None:
            found = found.replace_schema_metadata(metadata)
        remove("data")(scene)
        (scene / "data").mkdir()
        pq.write_table(found, scene / "data" / "train.parquet")

    return act


def damaged_parquet(change: Callable[[bytes], bytes]) -> Damage:
    def act(scene: Path) -> None:
        parquet()(scene)
        path = scene / "data" / "train.parquet"
        path.write_bytes(change(path.read_bytes()))

    return act


def with_column(name: str, values: list[Any], kind: str) -> Callable[[Any], Any]:
    def change(rows: Any) -> Any:
        import pyarrow as pa

        column = pa.array((values * len(rows))[: len(rows)], getattr(pa, kind)() if "(" not in kind else eval(kind))
        return pa.Table.from_pylist([{k: v for k, v in row.items() if k != name} for row in rows]).append_column(
            name, column
        )

    return change


def big_date(unit: str) -> Callable[[Any], Any]:
    def change(rows: Any) -> Any:
        import pyarrow as pa

        column = pa.array([2**62 - 1] * len(rows), pa.int64()).cast(pa.timestamp(unit), safe=False)
        return pa.Table.from_pylist(rows).append_column("when", column)

    return change


def not_utf8(rows: Any) -> Any:
    import pyarrow as pa

    starts = b"".join(n.to_bytes(4, "little") for n in range(7))
    texts = pa.Array.from_buffers(pa.string(), 6, [None, pa.py_buffer(starts), pa.py_buffer(b"\xff" * 6)])
    return pa.Table.from_pylist([{"label": row["label"]} for row in rows]).append_column("text", texts)


HUGGINGFACE: dict[str, bytes] = {
    "no JSON": b"{",
    "a number": b"7",
    "features of another type": b'{"info": {"features": 7}}',
    "an unknown feature": b'{"info": {"features": {"text": {"_type": "Nope"}}}}',
    "a class label without names": b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}',
    "names of another type": b'{"info": {"features": {"label": {"names": 7, "_type": "ClassLabel"}}}}',
    "nested deeply": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe",
    "an attribute of Python": b'{"info": {"features": {"label": {"_type": "__class__"}}}}',
}
PARQUETS: dict[str, tuple[Damage, str]] = {
    "cut at the start": (damaged_parquet(lambda raw: raw[:3]), r"train\.parquet: cannot be read"),
    "cut in the middle": (damaged_parquet(lambda raw: raw[: len(raw) // 2]), r"train\.parquet: cannot be read"),
    "cut at the end": (damaged_parquet(lambda raw: raw[:-1]), r"train\.parquet: cannot be read"),
    "without its start": (damaged_parquet(lambda raw: raw[100:]), r"train\.parquet: |bad"),
    "a footer of another length": (
        damaged_parquet(lambda raw: raw[:-8] + b"\xff\xff\xff\x7f" + raw[-4:]),
        r"train\.parquet: cannot be read",
    ),
    "a footer of zeros": (
        damaged_parquet(lambda raw: raw[: -8 - 64] + bytes(64) + raw[-8:]),
        r"train\.parquet: cannot be read",
    ),
    "data of zeros": (damaged_parquet(lambda raw: raw[:4] + bytes(60) + raw[64:]), r"train\.parquet: "),
    "encrypted by its name": (damaged_parquet(lambda raw: raw[:-4] + b"PARE"), r"train\.parquet: cannot be read"),
    "no rows": (parquet(lambda rows: with_column("label", ["a"], "string")(rows).slice(0, 0)), "is empty"),
    **{
        f"dates beyond the calendar in {unit}": (parquet(big_date(unit)), r"train\.parquet: cannot be read")
        for unit in ("ms", "us")
    },
    "text that is not UTF-8": (parquet(not_utf8), r"train\.parquet: cannot be read"),
    "labels of fractions": (parquet(with_column("label", [0.5, 1.5], "float64")), "a label must be"),
    "labels of nothing": (parquet(with_column("label", [None], "null")), "'label' is empty"),
    "labels of lists": (parquet(with_column("label", [["a"]], "pa.list_(pa.string())")), "a label must be"),
    "texts of bytes": (parquet(with_column("text", [b"\xff"], "binary")), "'text' must hold text"),
    "texts of numbers": (parquet(with_column("text", [7], "int64")), "'text' must hold text"),
    **{
        f"metadata of datasets: {name}": (parquet(metadata={b"huggingface": value}), r"train\.parquet: .*huggingface")
        for name, value in HUGGINGFACE.items()
    },
}


def of_files() -> list[Case]:
    """Every format with what is no data in any."""
    cases = []
    kinds = {"txt": "masked-lm"}
    for ending in FORMATS:
        kind = kinds.get(ending, "classification")
        for name, (content, says) in ANYTHING.items():
            if ending == "txt" and name not in ("empty", "blank lines", "UTF-16", "latin-1", "an unfinished character"):
                continue
            says = "cannot be read|is empty" if ending == "parquet" else says
            cases.append(
                Case(
                    f"{ending}: {name}",
                    command(kind),
                    data(content, f"train.{ending}"),
                    says=rf"data/train\.{ending}.*({says})",
                    slow=name == "a line of 10 MB",
                )
            )
        cases += [
            Case(
                f"{ending}: a folder of that name",
                command(kind),
                data(b"", f"train.{ending}/inside"),
                says=rf"data/train\.{ending}.*(folder|directory|cannot be read)",
            ),
            Case(
                f"{ending}: a link to nothing",
                command(kind),
                (data(b"", "other"), link(f"data/train.{ending}", "gone")),
                says=r"data(/train)?.*(no such|cannot be read|No such|no file)",
            ),
            Case(
                f"{ending}: a link to itself",
                command(kind),
                (data(b"", "other"), link(f"data/train.{ending}", f"train.{ending}")),
                says=r"data(/train)?.*(cannot be read|no file)",
            ),
            Case(
                f"{ending}: a device that is empty",
                command(kind),
                (data(b"", "other"), device(f"data/train.{ending}", 3)),
                says=rf"data/train\.{ending}",
            ),
        ]
        if ending != "parquet":
            cases += [
                Case(
                    f"{ending}.gz: not compressed",
                    command(kind),
                    data(b"text\nx\n", f"train.{ending}.gz"),
                    says=rf"data/train\.{ending}\.gz: cannot be read",
                ),
                Case(
                    f"{ending}.gz: cut off",
                    command(kind),
                    data(gzip.compress(b"text\nx\n" * 500)[:-12], f"train.{ending}.gz"),
                    says=rf"data/train\.{ending}\.gz",
                ),
                Case(
                    f"{ending}.gz: damaged",
                    command(kind),
                    data(gzip.compress(b"text\nx\n" * 500)[:20] + b"\xff" * 30, f"train.{ending}.gz"),
                    says=rf"data/train\.{ending}\.gz",
                ),
                Case(
                    f"{ending}.gz: empty",
                    command(kind),
                    data(b"", f"train.{ending}.gz"),
                    says=rf"data/train\.{ending}\.gz",
                ),
            ]
    return cases


SQUAD = {
    "data": [
        {
            "title": "a",
            "paragraphs": [
                {
                    "context": GOOD["qa"]["context"],
                    "qas": [{key: GOOD["qa"][key] for key in ("id", "question", "answers")}],
                }
            ],
        }
    ]
}
SQUADS: dict[str, tuple[Any, str]] = {
    "no articles": ({"data": []}, "is empty"),
    "articles of another type": ({"data": {}}, "'data'|is missing"),
    "an article that is a list": ({"data": [[]]}, r"data\[0\].*'paragraphs'"),
    "an article that is null": ({"data": [None]}, r"data\[0\].*'paragraphs'"),
    "no paragraphs": ({"data": [{}]}, r"data\[0\].*'paragraphs'"),
    "a paragraph that is text": ({"data": [{"paragraphs": ["x"]}]}, r"data\[0\]\.paragraphs\[0\].*'qas'"),
    "no questions": ({"data": [{"paragraphs": [{"context": "x"}]}]}, r"paragraphs\[0\].*'qas'"),
    "a question that is text": ({"data": [{"paragraphs": [{"context": "x", "qas": ["y"]}]}]}, r"qas\[0\]: must be"),
    "a question without answers": (
        {"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "1", "question": "y"}]}]}]},
        r"qas\[0\]: the field 'answers'",
    ),
    "no context": ({"data": [{"paragraphs": [{"qas": [{"id": "1", "question": "y"}]}]}]}, r"qas\[0\]: .*'context'"),
}
"""Files in the form of SQuAD."""
ANSWERS: dict[str, tuple[Any, str]] = {
    "none": ([], "has no answer"),
    "at another place": ([{"text": "rome", "answer_start": 3}], "does not stand at answer_start 3"),
    "before the start": ([{"text": "rome", "answer_start": -4}], "does not stand at answer_start -4"),
    "beyond the end": ([{"text": "rome", "answer_start": 10**400}], "does not stand at answer_start"),
    "empty": ([{"text": "", "answer_start": 0}], "an answer must have a text"),
    "without a place": ([{"text": "rome"}], "an answer must have a text"),
    "with a place of text": ([{"text": "rome", "answer_start": "13"}], "an answer must have a text"),
    "with a place of truth": ([{"text": "ann", "answer_start": False}], "an answer must have a text"),
    "lists of different lengths": ({"text": ["rome"], "answer_start": []}, "of different number"),
    "lists of numbers": ({"text": [7], "answer_start": [0]}, "an answer must have a text"),
}
TAGS: dict[str, tuple[dict[str, Any], str]] = {
    "one too few": ({"tags": ["O"]}, "4 tokens but 1 tag;"),
    "none": ({"tags": []}, "4 tokens but 0 tags"),
    "an empty one": ({"tags": ["O", "", "O", "O"]}, "a label must not be empty"),
    "a null one": ({"tags": ["O", None, "O", "O"]}, "a label must be"),
    "no words": ({"tokens": [], "tags": []}, "'tokens' must be a list of one string or more"),
    "a word that is a number": ({"tokens": ["a", 7, "b", "c"]}, "'tokens' must hold text"),
}
CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "one": ({"choices": ["a"]}, "'choices' must be a list of two strings or more"),
    "none": ({"choices": []}, "'choices' must be a list of two strings or more"),
    "a number": ({"choices": ["a", 7]}, "'choices' must hold text"),
    "a place beyond": ({"label": 2}, "'label' must be the place"),
    "a letter beyond": ({"label": "C"}, "'label' must be the place"),
    "a small letter": ({"label": "a"}, "'label' must be the place"),
    "another digit": ({"label": "²"}, "'label' must be the place"),
    "a place of 5,000 digits": ({"label": "9" * 5000}, "'label' must be the place"),
    "a place below": ({"label": -2}, "'label' must be the place"),
    "a place between": ({"label": 0.5}, "'label' must be the place"),
}
PUBLISHED: dict[str, tuple[dict[str, Any], str]] = {
    "SWAG: an ending that is a number": (
        {"sent1": "a", "sent2": "b", "ending0": 7, "ending1": "x", "label": 0},
        "'choices' must hold text",
    ),
    "SWAG: a start that is a list": (
        {"sent1": "a", "sent2": ["b"], "ending0": "y", "ending1": "x", "label": 0},
        "'choices' must hold text",
    ),
    "SWAG: one ending": ({"sent1": "a", "ending0": "y", "label": 0}, "'choices' must be a list of two"),
    "SWAG: no sentence": ({"ending0": "y", "ending1": "x", "label": 0}, "'text'"),
    "RACE: options of another number": (
        {"article": "a", "questions": ["b", "c"], "options": [["x", "y"]], "answers": ["A", "B"]},
        "one item a question",
    ),
    "RACE: questions of another type": ({"article": "a", "questions": "b", "options": [], "answers": []}, "one item"),
    "RACE: an option that is a number": (
        {"article": "a", "questions": ["b"], "options": [["x", 7]], "answers": ["A"]},
        "'choices' must hold text",
    ),
    "RACE: an answer that is a list": (
        {"article": "a", "questions": ["b"], "options": [["x", "y"]], "answers": [["A"]]},
        "'label' must be",
    ),
    "RACE: an article that is null": (
        {"article": None, "questions": ["b"], "options": [["x", "y"]], "answers": ["A"]},
        "'text' is missing|'text' is empty",
    ),
}
NUMBERS: dict[str, tuple[str, str]] = {
    "of 400 digits": ("9" * 400, "'label' must be a finite number"),
    "with an underscore": ("1_0", "'label' must be a finite number"),
    "not a number": ("nan", "'label' must be a finite number"),
    "infinite": ("inf", "'label' must be a finite number"),
    "too large": ("1e999", "'label' must be a finite number"),
    "a word": ("many", "'label' must be a finite number"),
    "a comma": ('"0,5"', "'label' must be a finite number"),
    "nothing": ("", "'label' is empty"),
}


def found(text: str) -> Callable[[Path, Ending], None]:
    def look(_: Path, ending: Ending) -> None:
        assert text in ending.out, ending.out

    return look


def jsonl(**changes: Any) -> str:
    return lines([row | changes for row in rows_of("classification")])


WELL: dict[str, tuple[str | bytes, str, str]] = {
    "a byte order mark": (b"\xef\xbb\xbf" + jsonl().encode(), "train.jsonl", "train 6"),
    "a byte order mark in CSV": (b"\xef\xbb\xbftext,label\na,good\nb,bad\n", "train.csv", "train 2"),
    "ends of lines as in Windows": (jsonl().replace("\n", "\r\n"), "train.jsonl", "train 6"),
    "no end of the last line": (jsonl().rstrip("\n"), "train.jsonl", "train 6"),
    "blank lines between": (jsonl().replace("\n", "\n\n"), "train.jsonl", "train 6"),
    "an array": (json.dumps(rows_of("classification")), "train.json", "train 6"),
    "a cell of 200,000 characters": (f"text,label\n{'x' * 200_000},good\nb,bad\n", "train.csv", "train 2"),
    "a quoted cell of 200,000 characters": (f'text,label\n"{"x, " * 70_000}",good\nb,bad\n', "train.csv", "train 2"),
    "an unnamed column": (",text,label\n0,a,good\n1,b,bad\n", "train.csv", "train 2"),
    "two unnamed columns": (",,text,label\n0,0,a,good\n1,1,b,bad\n", "train.csv", "train 2"),
    "compressed": (gzip.compress(jsonl().encode()), "train.jsonl.gz", "train 6"),
    "more fields": (jsonl(more={"a": [1]}), "train.jsonl", "train 6"),
    "a text of a million characters": (jsonl(text="good " * 200_000), "train.jsonl", "train 6"),
    "zero characters in a text": (jsonl(text="a\x00b"), "train.jsonl", "train 6"),
    "an empty text": (jsonl(text=""), "train.jsonl", "train 6"),
}
"""What is odd, but data."""
KINDS_OF_FORMAT = {"csv": ",", "tsv": "\t"}

CASES = [
    *of_fields(),
    *of_files(),
    *(
        Case(
            f"{ending}: {name}",
            command("classification"),
            data(text.replace(",", comma) if comma != "," else text, f"train.{ending}"),
            says=rf"data/train\.{ending}.*({says})",
            slow=name == "a header of 100,000 columns",
        )
        for ending, comma in KINDS_OF_FORMAT.items()
        for name, (text, says) in TABLES.items()
    ),
    *(
        Case(
            f"csv: a quote {name}",
            command("classification"),
            data(f"text,label\n{text}\nb,bad\n", "train.csv"),
            says=rf"data/train\.csv:\d: {says}",
        )
        for name, text, says in (
            ("that stays open", '"a,good', "is not CSV"),
            ("in the middle", 'a "b" c,"good"x', "is not CSV"),
        )
    ),
    *(Case(f"parquet: {name}", command("classification"), act, says=says) for name, (act, says) in PARQUETS.items()),
    *(
        Case(f"SQuAD: {name}", command("qa"), data(json.dumps(value), "train.json"), says=rf"data/train\.json.*{says}")
        for name, (value, says) in SQUADS.items()
    ),
    Case(
        "SQuAD: all is well",
        command("qa", "evaluate=null"),
        data(json.dumps(SQUAD), "train.json"),
        code=0,
        after=found("train 1"),
    ),
    *(
        Case(
            f"answers: {name}",
            command("qa"),
            with_field("qa", "answers", value),
            says=rf"data/train\.jsonl:3: .*{says}",
        )
        for name, (value, says) in ANSWERS.items()
    ),
    *(
        Case(f"{of}: {name}", command(kind), third(kind, GOOD[kind] | row), says=rf"data/train\.jsonl:3: .*{says}")
        for kind, of, rows in (("tagging", "tags", TAGS), ("multiple-choice", "choices", CHOICES))
        for name, (row, says) in rows.items()
    ),
    *(
        Case(name, command("multiple-choice"), third("multiple-choice", row), says=rf"data/train\.jsonl:3: .*{says}")
        for name, (row, says) in PUBLISHED.items()
    ),
    *(
        Case(
            f"a number {name}: {ending}",
            command("regression"),
            data(f"text{comma}label\na{comma}0.5\nb{comma}{value}\n", f"train.{ending}"),
            says=rf"data/train\.{ending}:3: .*{says}",
        )
        for ending, comma in KINDS_OF_FORMAT.items()
        for name, (value, says) in NUMBERS.items()
        if not (ending == "tsv" and name == "a comma")
    ),
    *(
        Case(
            f"odd, but data: {name}",
            command("classification", "evaluate=null"),
            data(content, file),
            code=0,
            after=found(said),
        )
        for name, (content, file, said) in WELL.items()
    ),
    *(
        Case(
            f"a row: {name}",
            command("classification"),
            third("classification", text),
            says=rf"data/train\.jsonl:3: .*{says}",
        )
        for name, text, says in (
            ("twice the same key", '{"text": "a", "label": "good", "label": "bad"}', "gives 'label' twice"),
            ("a list", "[1, 2]", "must be a JSON object"),
            ("text", '"text"', "must be a JSON object"),
            ("a number", "7", "must be a JSON object"),
            ("null", "null", "must be a JSON object"),
            ("nothing in it", "{}", "'text' and 'label' are missing; there are no fields"),
            ("cut off", '{"text": "a", "lab', "is not JSON"),
            ("two objects", '{"text": "a", "label": "good"} {"text": "b", "label": "bad"}', "is not JSON"),
            ("single quotes", "{'text': 'a', 'label': 'good'}", "is not JSON"),
            ("a comment", '{"text": "a", "label": "good"} // no', "is not JSON"),
            ("nested deeply", DEEP, "nested too deeply"),
            ("nested deeply inside", '{"text": "a", "label": "good", "more": ' + DEEP + "}", "nested too deeply"),
            ("a number of 5,000 digits", '{"text": "a", "label": ' + HUGE + "}", "thousands of digits"),
            ("half a character", '{"text": "\\ud83d", "label": "good"}', "surrogate"),
            ("half a character in the label", '{"text": "a", "label": "\\ud83d"}', "surrogate"),
            ("a label of a megabyte", json.dumps({"text": "a", "label": ["x" * 1_000_000]}), "a label must be"),
            ("900 levels of lists", '{"text": ' + "[" * 900 + "]" * 900 + "}", "text"),
        )
    ),
    *(
        Case(
            f"validation: {name}",
            command("classification"),
            (data(jsonl()), write("data/validation.jsonl", text)),
            says=rf"data/validation\.jsonl.*{says}",
        )
        for name, text, says in (
            ("empty", "", "is empty"),
            ("an unknown label", lines([{"text": "a", "label": "godo"}]), "unknown label 'godo'; did you mean 'good'"),
            ("an unknown label of a megabyte", lines([{"text": "a", "label": "x" * 1_000_000}]), "unknown label"),
            ("10,000 bad lines", '{"text": "a", "label": "other"}\n' * 10_000, "all 10,000 items are bad"),
            ("pairs", lines([{"text_a": "a", "text_b": "b", "label": "good"}]), "use one form"),
            ("no label", lines([{"text": "a"}]), "'label' is missing"),
        )
    ),
    *(
        Case(f"the folder: {name}", command("classification", *more), act, says=says, code=(1, 2))
        for name, act, more, says in (
            ("empty", (remove("data"), folder("data")), (), "no file of a split"),
            ("a file", (remove("data"), write("data", "x")), (), "data: unknown format"),
            ("a file that is not there", (), ("task.data=data/other.jsonl",), "data/other.jsonl: there is no such"),
            ("no such user", (), ("task.data=~nosuch/data",), "~nosuch/data: no home folder is known"),
            ("no such user in files", (), ("task.files={train: ~nosuch/x.csv}",), "~nosuch/x.csv: no home folder"),
            ("a name of 5,000 characters", (), (f"task.data={'x' * 5000}",), "xxx"),
            ("a name with a zero character", (), ('task.data="a\\0b"',), "a"),
            ("several files of a split", (data(jsonl()), write("data/train.csv", "text,label\n")), (), "several files"),
            ("no training examples", (data(jsonl(), "test.jsonl"),), (), "train"),
            ("dataset_info.json that is no JSON", write("data/dataset_info.json", "{"), (), "load_from_disk"),
            ("dataset_dict.json of another type", write("data/dataset_dict.json", "[]"), (), "load_from_disk"),
            ("dataset_dict.json nested deeply", write("data/dataset_dict.json", DEEP), (), "load_from_disk"),
            (
                "dataset_dict.json of splits that are not there",
                write("data/dataset_dict.json", '{"splits": ["train"]}'),
                (),
                "load_from_disk",
            ),
        )
    ),
    *(
        Case(f"an argument of the task: {more}", command("classification", more), says=says)
        for more, says in (
            ("task.labels=[good]", "labels: .*two labels or more"),
            ("task.labels=[good, good]", "labels: named twice: good"),
            ("task.labels=[other, names]", "unknown label"),
            ('task.labels=["", good]', "label"),
            ("task.columns={nope: text}", "columns: classification has no field 'nope'"),
            ("task.columns={text: nope}", "the field 'nope' is missing"),
            ("task.limit={nope: 5}", "limit: there is no split 'nope'"),
            ("task.limit={train: 0}", "limit"),
            ("task.metric=nope", "metric"),
            ("task.metric=pearson", "metric"),
            ("task.class_weights={nope: 2}", "class_weights: there is no label 'nope'"),
            ("task.class_weights={good: 0}", "class_weights: good: got 0"),
            ("task.class_weights={good: .inf}", "class_weights: good: got inf"),
            ("task.files={train: nowhere.csv}", "files: train: there is no file nowhere.csv"),
            ("task.files={train: recipe.yaml}", "recipe.yaml: unknown format"),
            ("task.pooling=mean", "pooling: classification has no vectors"),
            ("task.max_length=3", "max_length"),
            ("task.max_length=" + "9" * 5000, "--set task.max_length=9.*is not an int"),
            ("task.stride=-1", "stride"),
            ("task.label_map={good: bad}", "all labels are 'bad'"),
            ('task.label_map={good: ""}', "a label must not be empty"),
        )
    ),
]
test_case = table(CASES, quick=14)
