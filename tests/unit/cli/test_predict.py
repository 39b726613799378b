"""Predictions for tables and by model folders; lines through exports are tested with the exports."""

import csv
import datetime
import decimal
import gzip
import json

import pandas
import pytest

from compress.cli import main
from compress.prediction import of_table
from eval.errors import UserError

ROWS = [("a good film", 3, "good"), ("a bad, sad film", 1, "bad"), ("a film", 2, "good")]


@pytest.fixture(scope="module")
def export(place, tmp_path_factory):
    out = tmp_path_factory.mktemp("predict") / "onnx"
    assert main(["export", str(place / "teacher"), "--out", str(out)]) == 0
    return out


@pytest.fixture
def table(tmp_path):
    pandas.DataFrame(ROWS, columns=["review", "stars", "label"]).to_csv(tmp_path / "reviews.csv", index=False)
    return tmp_path / "reviews.csv"


def test_every_row_comes_back_with_its_prediction(call, export, table):
    code, out, err = call("predict", export, "--file", table)
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(row["review"], row["label"]) for row in found] == [(text, label) for text, _, label in ROWS]
    assert all(row["predicted_label"] in ("bad", "good") and 0 < row["predicted_probability"] <= 1 for row in found)
    alone = [json.loads(call("predict", export, text)[1]) for text, *_ in ROWS]
    assert [row["predicted_label"] for row in found] == [answer["label"] for answer in alone]


def test_csv_in_csv_out_and_from_several_processes(call, export, table, tmp_path):
    flags = ("--text", "review", "--processes", "2", "--out", tmp_path / "out.csv")
    assert call("predict", export, "--file", table, *flags)[0] == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["review", "stars", "label", "predicted_label", "predicted_probability"]
    assert [row["review"] for row in found] == [text for text, *_ in ROWS]


@pytest.mark.parametrize("ending", [".parquet", ".tsv"])
def test_other_tables(call, export, table, ending, tmp_path):
    frame = pandas.read_csv(table)
    other = tmp_path / f"reviews{ending}"
    frame.to_parquet(other) if ending == ".parquet" else frame.to_csv(other, sep="\t", index=False)
    assert call("predict", export, "--file", other)[1].count("predicted_label") == len(ROWS)


def test_a_model_folder_predicts_as_its_export_does(call, place, export, table):
    of_model, of_export = (
        call("predict", model, "--file", table)[1].splitlines() for model in (place / "teacher", export)
    )
    for one, other in zip(map(json.loads, of_model), map(json.loads, of_export), strict=True):
        assert one["predicted_label"] == other["predicted_label"]
        assert one["predicted_probability"] == pytest.approx(other["predicted_probability"], abs=1e-4)
    assert json.loads(call("predict", place / "teacher", "a good film")[1])["label"] in ("bad", "good")


def test_only_an_embedder_has_prompts(call, place, export):
    for model in (place / "teacher", export):
        code, _, err = call("predict", model, "a", "--prompt-name", "query")
        assert (code, err) == (
            2,
            "prompt_name: is for embedders, and this is a classification model; leave it out\n",
        )


def test_mistakes(call, place, export, table, tmp_path):
    code, _, err = call("predict", export, "--file", table, "--text", "said")
    assert code == 2
    assert "there is no column 'said'; there are 'review', 'stars', 'label'; name it with --text COLUMN" in err
    code, _, err = call("predict", export, "a", "--text", "review")
    assert (code, err) == (2, "--text: names a column of a table; give it with --file, or leave it out\n")
    code, _, err = call("predict", export, "--file", table, "--text", "a", "--text", "b")
    assert (code, err) == (2, "--text: the model reads text; name 1 column\n")
    code, _, err = call("predict", place / "teacher", "a", "--speed", "0.5", "--processes", "2")
    assert code == 2
    assert err.startswith("--processes and --speed: is for exports")
    (tmp_path / "bad.csv").write_text("review,stars\na\n", encoding="utf-8")
    code, _, err = call("predict", export, "--file", tmp_path / "bad.csv")
    assert code == 2
    assert "bad.csv:2: has 1 cell," in err
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    for name, cure in (("empty.csv", "put rows below"), ("empty.txt", "put what"), ("empty.jsonl", "put what")):
        (tmp_path / name).write_text("", encoding="utf-8")
        code, out, err = call("predict", export, "--file", tmp_path / name)
        assert (code, out) == (2, "")
        assert f"{name}: is empty; {cure}" in err


def test_dates_and_numbers_of_a_table_come_back(tmp_path):
    day, price = datetime.date(2020, 1, 31), decimal.Decimal("1.50")
    rows = pandas.DataFrame({"text": ["a film"], "day": [day], "days": [[day]], "price": [price]})
    rows.to_parquet(tmp_path / "films.parquet")

    def answer(examples):
        return (b"{}" for _ in examples)

    given = (tmp_path / "films.parquet", "classification", False, (), answer)
    (line,) = of_table(*given, as_csv=False)
    assert json.loads(line) == {"text": "a film", "day": "2020-01-31", "days": ["2020-01-31"], "price": "1.50"}
    _, line = of_table(*given, as_csv=True)
    assert line.decode() == 'a film,2020-01-31,"[""2020-01-31""]",1.50\n'


def test_rows_of_json_lines_may_have_other_fields_each(tmp_path):
    file = tmp_path / "films.jsonl"

    def lines(*rows, as_csv=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        answered = of_table(
            file, "classification", False, ("said",), lambda examples: (b'{"p": 1}' for _ in examples), as_csv
        )
        return b"".join(answered).decode()

    first, turned = {"said": "a film", "id": 1}, {"id": 2, "said": "a show"}
    assert lines(first, turned, {"said": "x"}) == "said,id,predicted_p\na film,1,1\na show,2,1\nx,,1\n"
    with pytest.raises(UserError, match=r"the first row has no 'id', as another has; name an --out without \.csv"):
        lines({"said": "x"}, first)
    assert lines({"said": "x"}, first, as_csv=False).count("predicted_p") == 2
    with pytest.raises(
        UserError, match=r"films\.jsonl:2: there is no column 'said'; there are 'id'; name it with --text"
    ):
        lines(first, {"id": 2})


def test_the_name_of_a_file_is_no_text_to_answer(call, place, export, table, monkeypatch):
    said = f"{table}: is a file; give it with --file, or, if the name itself is the text, on standard input\n"
    for model in (export, place / "teacher"):
        assert call("predict", model, table) == (2, "", said)
    assert call("predict", export, table, "a film")[0] == 0
    assert call("predict", export, table.parent)[0] == 0, "a folder holds no texts"
    assert call("predict", export, "a\0b " * 5000)[0] == 0, "no file can have such a name"


def test_a_file_of_json_lines_holds_objects_alone(call, export, tmp_path):
    lines = ["{not json", "[1, 2]", '{"_id": "q"}', '{"text": null}', "", '{"text": "a film"}']
    (tmp_path / "films.jsonl").write_text("\n".join(lines), encoding="utf-8")
    code, out, err = call("predict", export, "--file", tmp_path / "films.jsonl")
    assert (code, out) == (2, "")
    for said in (
        "films.jsonl:1: is not JSON",
        "films.jsonl:2: must be a JSON object {...}, not [1, 2]",
        "films.jsonl:3: lacks text; its fields are _id",
        "films.jsonl:4: text must be a text, got NoneType",
        "each line of a .jsonl file must be a JSON object with 'text'; plain lines belong into a .txt",
    ):
        assert said in err
    assert "films.jsonl:5" not in err, "a line without a word is left out"
    (tmp_path / "FILMS.JSONL").write_text("\n".join(lines), encoding="utf-8")
    assert call("predict", export, "--file", tmp_path / "FILMS.JSONL")[2] == err.replace("films.jsonl", "FILMS.JSONL")
    (tmp_path / "films.jsonl").write_text("{not json\n" * 30, encoding="utf-8")
    err = call("predict", export, "--file", tmp_path / "films.jsonl")[2]
    assert (err.count("is not JSON"), "and 10 more" in err) == (20, True)
    (tmp_path / "films.jsonl").write_text("\n".join(lines[-2:]), encoding="utf-8")
    assert call("predict", export, "--file", tmp_path / "films.jsonl") == call("predict", export, "a film")
    packed = gzip.compress("\n".join(lines[-2:]).encode())
    (tmp_path / "films.jsonl.gz").write_bytes(packed)
    assert call("predict", export, "--file", tmp_path / "films.jsonl.gz") == call("predict", export, "a film")
    (tmp_path / "films.jsonl.gz").write_bytes(packed[:-9])
    assert "the packed file is damaged" in call("predict", export, "--file", tmp_path / "films.jsonl.gz")[2]
    (tmp_path / "films.txt").write_text("\n".join(lines[:3]), encoding="utf-8")
    assert call("predict", export, "--file", tmp_path / "films.txt")[1].count("label") == 3, "lines may look like JSON"


def test_columns_that_say_what_a_text_of_an_embedder_is_are_read_with_it(tmp_path):
    (tmp_path / "texts.csv").write_text("text,title,prompt_name,other\na,T,query,1\nb,,,2\n", encoding="utf-8")
    seen = []

    def answer(examples):
        for example in examples:
            seen.append(example)
            yield b'{"vectors": []}\n'

    list(of_table(tmp_path / "texts.csv", "embedding", False, (), answer, False))
    list(of_table(tmp_path / "texts.csv", "embedding", False, ("title",), answer, False))
    list(of_table(tmp_path / "texts.csv", "classification", False, (), answer, False))
    assert seen == [
        {"text": "a", "title": "T", "prompt_name": "query"},
        {"text": "b"},
        {"text": "T", "prompt_name": "query"},
        {"text": ""},
        {"text": "a"},
        {"text": "b"},
    ]
