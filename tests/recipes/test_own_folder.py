"""What ``optimize`` and ``distill`` leave in their folder, and what a later call may replace there."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import compress.shortcuts.own_folder as own_folder
from compress import optimize, shrink
from compress.recipe import read_recipe
from compress.shortcuts.labelled_data import given_data
from eval.data.judging import with_train
from eval.errors import UserError
from eval.proof.role import role_of
from eval.task import Examples
from teachers.finetuning.finetune import finetune
from teachers.training.config import Training
from tests.recipes.test_optimize import SeenError, model, not_run
from tests.tiny import tiny_task, tiny_taskmodel

__all__ = ["not_run"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working folder, and that of what is kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))


def begin(out):
    """Make as if a run had begun that ``distill`` wrote the recipe of."""
    (out / "run").mkdir()
    shutil.copy(out / "recipe.yaml", out / "run")


@pytest.mark.usefixtures("not_run")
def test_data_of_a_call_that_ran_nothing_is_replaced_and_else_is_kept(tmp_path):
    rows, out = model(tmp_path / "m"), tmp_path / "runs" / "m-1l"

    def call(rows):
        with pytest.raises((SeenError, UserError)) as raised:
            shrink("m", rows, layers=1)
        return raised.value

    assert isinstance(call(rows), SeenError)
    (out / "data" / ".DS_Store").write_bytes(b"\xff\xfe")
    (out / "data" / "notes.txt").write_bytes(b"\xff\xfe")
    assert isinstance(call(rows), SeenError), "files that were not written are not compared"
    said = "holds other data, which was not written by an earlier call; name another folder with --out (in Python: out)"
    assert str(call(rows[2:])) == f"runs/m-1l/data: {said}"
    (out / "data" / "notes.txt").unlink()
    assert isinstance(call(rows[2:]), SeenError)
    assert sum(len(file.read_text().splitlines()) for file in (out / "data").glob("*.jsonl")) == len(rows) - 2
    begin(out)
    assert str(call(rows)).startswith("runs/m-1l/data: holds other data, from an earlier call whose run is beside it;")
    shutil.rmtree(out / "run")
    (out / "data" / "train.jsonl").write_text("{}\n")
    assert str(call(rows)) == f"runs/m-1l/data: {said}", "what the user changed is not written over"


@pytest.mark.usefixtures("not_run")
def test_a_call_goes_on_from_another_folder(tmp_path, monkeypatch):
    rows, out = model(tmp_path / "m"), tmp_path / "runs" / "m-1l"
    with pytest.raises(SeenError):
        shrink("m", rows, layers=1)
    begin(out)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(SeenError):
        shrink("../m", rows, layers=1, out="../runs/m-1l")
    assert read_recipe(out / "recipe.yaml").teacher.model == str(tmp_path / "m")


@pytest.mark.usefixtures("not_run")
def test_a_recipe_that_was_changed_is_not_written_over(tmp_path):
    rows, file = model(tmp_path / "m"), tmp_path / "runs" / "m-1l" / "recipe.yaml"

    def call(**how):
        with pytest.raises((SeenError, UserError)) as raised:
            shrink("m", rows, layers=1, **how)
        return raised.value

    assert isinstance(call(margin=0.02), SeenError)
    first = file.read_text()
    assert "# compress run runs/m-1l/recipe.yaml --out runs/m-1l-2      writes" in first
    assert isinstance(call(), SeenError), "no run was made of it"
    assert file.read_text() == first.replace("margin: 0.02", "margin: 0.01")
    file.write_text(f"# mine\n{file.read_text()}")
    assert isinstance(call(), SeenError)
    assert file.read_text().startswith("# mine\n")
    changed = file.read_text().replace("seed: 13", "seed: 14")
    file.write_text(changed)
    (tmp_path / "runs" / "m-1l-2").mkdir()
    assert str(call()) == (
        "runs/m-1l/recipe.yaml: has other settings and was not left so by an earlier call, so it is not written over; "
        "run it by 'compress run runs/m-1l/recipe.yaml --out runs/m-1l-3', or name another folder with --out "
        "(in Python: out)"
    )
    assert file.read_text() == changed
    file.unlink()
    assert isinstance(call(), SeenError)
    begin(file.parent)
    kept = file.read_text()
    assert "runs/m-1l/run: holds a run of another recipe" in str(call(quick=True))
    assert file.read_text() == kept


@pytest.mark.usefixtures("not_run")
def test_the_recipe_of_an_export_is_not_called_like_another_result(tmp_path):
    rows = model(tmp_path / "teacher")
    with pytest.raises(SeenError) as raised:
        optimize("teacher", rows)
    assert raised.value.args[0].name == "teacher-optimized"


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize("name", ["modèle (1)", "模型", "m" * 120])
def test_the_folder_of_a_model_may_have_any_name(name, tmp_path):
    rows = model(tmp_path / name)
    for call, end in ((optimize, "-optimized"), (partial(shrink, layers=1), "-1l")):
        with pytest.raises(SeenError) as raised:
            call(name, rows)
        assert raised.value.args[0].name.endswith(end)
        assert (tmp_path / "runs" / f"{name}{end}" / "data" / "train.jsonl").is_file()


def test_where_a_folder_has_no_name_the_next_run_has_one(tmp_path):
    folder = own_folder.OwnFolder(Path())
    assert folder.beside() == tmp_path.with_name(f"{tmp_path.name}-2")


def test_an_export_is_reached_where_the_disk_has_no_links(tmp_path, monkeypatch):
    def refuse(source, place):
        raise OSError

    monkeypatch.setattr(own_folder.os, "link", refuse)
    (tmp_path / "file").write_text("kept")
    own_folder._linked(str(tmp_path / "file"), str(tmp_path / "other"))
    assert (tmp_path / "other").read_text() == "kept"


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize(("pair", "told"), [(False, True), (True, False)])
def test_an_embedder_with_labels_says_that_it_has_no_classifier(pair, told, tmp_path):
    task = tiny_task("embedding", pair=pair, examples=60)
    folder = own_folder.OwnFolder(tmp_path / "out")
    rows = [dict(example) for example in task.train]
    given = given_data(tiny_taskmodel("bert", task.spec), rows, None, "label", with_train, folder)
    assert given.notes[0].startswith("The model gives vectors and has no classifier, so it is judged by") == told
    assert ("metric: nearest" in given.notes[0]) == told


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize("call", [optimize, partial(shrink, layers=1)])
def test_what_trained_the_model_does_not_report(call, tmp_path):
    task = tiny_task("classification", examples=150)
    rows = [dict(example) for example in task.train]
    learned = replace(task, splits={"train": Examples(rows[:80], "train")})
    teacher, folder = finetune(tiny_taskmodel("bert", task.spec), learned, Training(max_steps=1, batch_size=4))
    with pytest.raises(SeenError) as raised:
        call(folder, rows, out=tmp_path / "out")
    read = raised.value.args[0].task.load(13)
    assert role_of(read.test, teacher, kind="classification") == ("final", {})
    assert len(read.test) >= 40
    with pytest.raises(UserError, match="40 of the 40 examples that would report trained the model or chose something"):
        call(folder, {"train": rows[80:], "test": rows[:40]}, out=tmp_path / "other")
