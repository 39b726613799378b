"""Names that are published stand in the place of paths."""

import pytest

from eval.naming import distinct_names, public_name, without_paths


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("/home/someone/data/sst2", "sst2"),
        ("/home/someone/data/sst2/", "sst2"),
        ("~/data/sst2", "sst2"),
        ("../data/sst2", "sst2"),
        ("./sst2", "sst2"),
        ("C:\\Users\\someone\\sst2", "sst2"),
        ("C:/Users/someone/sst2", "sst2"),
        ("\\\\server\\share\\sst2", "sst2"),
        ("/a/train.csv, /b/test.csv", "train.csv, test.csv"),
        ("google-bert/bert-base-uncased", "google-bert/bert-base-uncased"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("", ""),
        ("/", "data"),
        ("\x00", "\x00"),
    ],
)
def test_a_source_is_named_by_its_last_part(given, told):
    assert public_name(given) == told


def test_a_folder_that_is_there_is_named_whatever_its_path_looks_like(tmp_path, monkeypatch):
    (tmp_path / "runs" / "a, b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs")
    assert public_name(".") == "runs"
    assert public_name("a, b") == "a, b"
    monkeypatch.chdir(tmp_path)
    assert public_name("runs/a, b") == "a, b"


def test_paths_go_out_of_plain_values_and_all_else_stays():
    given = {"files": ("/x/a.txt", "b/c.txt"), "keep": "~/k", "n": [1, None, {"/x/y": "half/half"}], "text": "a / b"}
    assert without_paths(given) == {
        "files": ["a.txt", "b/c.txt"],
        "keep": "k",
        "n": [1, None, {"y": "half/half"}],
        "text": "a / b",
    }


def test_models_of_one_name_are_told_apart_by_what_differs(tmp_path):
    assert distinct_names(["/home/me/runs/model"]) == ["model"]
    assert distinct_names(["/home/me/a/model", "/home/me/b/model"]) == ["a/model", "b/model"]
    assert distinct_names(["/home/me/model", "/home/me/model"]) == ["model", "model"]
