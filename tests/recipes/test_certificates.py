"""One tiny run, certified, and rechecked on all levels by commands."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from compress import certify, recheck
from compress.certification.certifying import _candidate
from compress.certification.replaying import chosen_in
from compress.cli import main
from compress.engine.claim_file import CLAIM_FILE, read_claims
from compress.engine.looks import read_looks
from compress.engine.pipeline import run_recipe
from compress.recipe import parse_recipe
from compress.recipe.blocks import FinetuneBlock
from compress.recipe.from_yaml import read_recipe
from compress.recipe.to_yaml import recipe_to_yaml
from eval.certificate.findings import Word
from eval.certificate.rechecking import read_certificate
from eval.errors import UserError
from eval.report.summary import shipped
from eval.result import Result
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """\
name: small
seed: 13
task: {{kind: classification, data: {data}, max_length: 32}}
teacher: {{model: {model}}}
student: {{from: teacher, layers: [0, 2]}}
training: {{max_steps: 2, learning_rate: 1.0e-3, batch_size: 8}}
steps:
  - distill.logits: {{temperature: 2.0, alpha: 0.9}}
export:
  - onnx: {{int8: true, agreement: 0.0}}
evaluate: {{against: teacher, margin: 0.05, memory: false, stress: true, latency: {{batch: [1], seconds: 0.1}}}}
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A run with data and teacher beside it."""
    folder = tmp_path_factory.mktemp("certified")
    task = tiny_task("classification", examples=40)
    write_data(task, folder / "data")
    (folder / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), folder / "teacher")
    (folder / "recipe.yaml").write_text(RECIPE.format(data=folder / "data", model=folder / "teacher"), encoding="utf-8")
    run_recipe(read_recipe(folder / "recipe.yaml"), folder / "run")
    return folder


def leading(scene) -> str:
    """Return the name of the model that leads the page."""
    return _candidate(scene / "run", None, None)[2].name


def given(scene):
    return {"teacher": scene / "teacher", "data": scene / "data"}


def test_the_claim_is_fixed_before_the_look(scene):
    (fixed,) = read_claims(scene / "run")
    (look,) = read_looks(scene / "run")
    assert (fixed.claim.margin, fixed.claim.metric, fixed.reference) == (0.05, "accuracy", "teacher")
    assert set(fixed.models) == {"small", "onnx", "onnx-int8", "teacher", "teacher, onnx", "teacher, onnx-int8"}
    assert look.claim == fixed.digest
    assert fixed.time <= look.time


def test_a_teacher_that_is_gone_is_missed_and_not_trained_anew(scene, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(scene / "run", run)
    file = run / "recipe.yaml"
    recipe = read_recipe(file)
    tuned = recipe.teacher.model_copy(update={"finetune": FinetuneBlock()})
    file.write_text(recipe_to_yaml(recipe.model_copy(update={"teacher": tuned})), encoding="utf-8")
    with pytest.raises(UserError, match=r"the teacher is not there any more; set COMPRESS_HOME to the folder"):
        certify(run, tmp_path / "model.cert")


@pytest.mark.parametrize(
    ("model", "folder"), [("onnx-int8", "onnx-int8"), pytest.param("small", "model", marks=pytest.mark.slow)]
)
def test_a_run_is_certified_and_rechecked_on_all_levels(scene, tmp_path, model, folder):
    done = certify(scene / "run", tmp_path / "model.cert", model=model)
    result = Result.load(scene / "run" / "results" / (model or folder))
    assert f"test examples: accuracy {result.score:.3f} against" in done.sentence
    assert done.sentence.startswith("Not certified on")
    found = recheck(done.file, model=scene / "run" / folder, **given(scene))
    *before, cost = found.findings
    assert [(finding.level, finding.word) for finding in before] == [
        (0, Word.UNSIGNED),
        *((level, Word.VALID) for level in (1, 2, 3)),
    ], str(found)
    # Tiny models take microseconds, whose ratio depends on what ran before in the process: sizes have to be the same.
    assert all(sentence.startswith("speedup at batch size 1: ") for sentence in cost.sentences), str(found)
    assert cost.level == 4
    assert (found.word, found.sentence) == (cost.word, done.sentence)
    assert (found.exit_code == 0) == (found.word is Word.VALID)
    stress = read_certificate(done.file).main.stress
    assert (stress is not None) == (result.name in ("small", leading(scene)))
    assert any("clean texts" in told for told in found.findings[1].sentences) == (stress is not None)
    certify(scene / "run", tmp_path / "again.cert", model=model)
    card, page = (scene / "run" / name for name in (f"{folder}/README.md", "report.html"))
    assert card.read_text(encoding="utf-8").count("Not certified on") == 1
    assert page.read_text(encoding="utf-8").count("Not certified on") == 1


def test_the_same_run_gives_the_same_bytes_without_a_path_of_the_machine(scene, tmp_path):
    first, second = (
        certify(scene / "run", tmp_path / name, model="onnx-int8").file.read_bytes() for name in ("a.cert", "b.cert")
    )
    assert first == second
    assert str(scene).encode() not in first


def test_another_model_and_a_replay_that_differs(scene, tmp_path):
    done = certify(scene / "run", tmp_path / "model.cert", model="onnx-int8")
    assert recheck(done.file, model=scene / "run" / "onnx", **given(scene)).word is Word.OTHER_MODEL
    (tmp_path / "data").mkdir()
    for file in (scene / "data").iterdir():
        lines = file.read_text().splitlines()
        (tmp_path / "data" / file.name).write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    found = recheck(done.file, model=scene / "run" / "onnx-int8", teacher=scene / "teacher", data=tmp_path / "data")
    assert found.word is Word.OTHER_DATA


def test_what_the_models_say_of_their_making_is_read_from_their_folders(scene, tmp_path):
    """A certificate that hides what its models were chosen on contradicts their own records."""
    done = certify(scene / "run", tmp_path / "model.cert", model="onnx-int8")
    contents = read_certificate(done.file)
    said = set(contents.main.data.chosen_on)
    assert said == set(chosen_in(scene / "run" / "onnx-int8"))
    assert said > set(chosen_in(scene / "run" / "model"))
    data = replace(contents.main.data, chosen_on={})
    done.file.write_bytes(replace(contents, main=replace(contents.main, data=data)).to_bytes())
    found = recheck(done.file, model=scene / "run" / "onnx-int8", level=2)
    assert found.word is Word.INVALID
    assert "is by examples that the certificate does not name" in found.reason


@pytest.fixture
def copied(scene, tmp_path):
    shutil.copytree(scene / "run", tmp_path / "run")
    return tmp_path / "run"


def test_a_margin_that_is_moved_afterwards_is_refused(scene, copied):
    with pytest.raises(UserError, match=r"margin moved afterwards: --margin says 0\.2, .* 0\.05"):
        certify(copied, copied / "model.cert", margin=0.2, model="onnx-int8")
    text = (copied / "recipe.yaml").read_text(encoding="utf-8")
    (copied / "recipe.yaml").write_text(text.replace("0.05", "0.3"), encoding="utf-8")
    with pytest.raises(UserError, match=r"margin moved afterwards: the recipe says 0\.3"):
        certify(copied, copied / "model.cert", model="onnx-int8")


@pytest.mark.parametrize("claims", [True, False])
def test_looks_of_an_evaluation_and_of_a_run_whose_steps_are_taken_over_are_certified(scene, copied, tmp_path, claims):
    if not claims:  # as a run against nothing leaves them
        (copied / "claim.json").unlink()
        looks = [one | {"claim": ""} for one in json.loads((copied / "looks.json").read_text())]
        (copied / "looks.json").write_text(json.dumps(looks))
    assert main(["eval", str(copied / "model"), "--data", str(scene / "data"), "--no-latency"]) == 0
    text = (scene / "recipe.yaml").read_text().replace("stress: true, ", "")
    done = run_recipe(parse_recipe(text), tmp_path / "again", reuse=copied)
    assert "The split test was opened 3 times" in " ".join(done.notes)
    certify(done.folder, tmp_path / "model.cert", model="onnx-int8")
    report = recheck(tmp_path / "model.cert", level=1)
    assert report.word == Word.VALID, report
    wider = run_recipe(parse_recipe(text.replace("0.05", "0.1")), tmp_path / "wider", reuse=done.folder)
    with pytest.raises(UserError, match=r"margin moved afterwards: a later claim says 0\.1, .* 0\.05"):
        certify(wider.folder, tmp_path / "wider.cert", model="onnx-int8")


def test_data_of_one_file_is_found_again_and_nothing_beside_it_is_read(scene, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = tiny_task("classification", examples=90)
    write_data(replace(task, splits={"films": task.train, "test": task.test}), tmp_path / "d")
    text = (scene / "recipe.yaml").read_text().replace("stress: true, ", "")
    recipe = parse_recipe(text)
    files = {"train": "d/films.jsonl"}
    recipe = recipe.model_copy(update={"task": recipe.task.model_copy(update={"data": None, "files": files})})
    done = run_recipe(recipe, tmp_path / "run")
    certified = certify(done.folder, tmp_path / "model.cert", model="onnx-int8")
    assert certified.checked_with[-2:] == ("--data", "d/films.jsonl")
    for data in ("d/films.jsonl", "d"):
        report = recheck(certified.file, model=done.exports["onnx-int8"], teacher=scene / "teacher", data=data, level=2)
        assert report.word == Word.VALID, report


def test_a_selection_is_refused(copied):
    file = copied / "results" / "onnx-int8" / "result.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"role": "selection", "chosen_on": {"best epoch": values["digest"]}}))
    with pytest.raises(UserError, match=r"those of a selection \(best epoch by the same examples\)"):
        certify(copied, copied / "model.cert", model="onnx-int8")


def test_what_cannot_sign_leaves_the_certificate_that_is_there(copied, tmp_path):
    out = tmp_path / "model.cert"
    out.write_bytes(b"signed before")
    with pytest.raises(UserError, match=r"--sign|does not sign"):
        certify(copied, out, model="onnx-int8", sign=tmp_path / "no.pem")
    assert out.read_bytes() == b"signed before"
    old = out.with_name("model.cert.sig")
    old.write_bytes(b"of what was there before")
    certify(copied, out, model="onnx-int8")
    assert not old.exists()


def test_groups_that_were_changed_since_are_refused(scene, copied):
    """No digest has them, and they decide how wide the interval is."""
    before = {file: file.read_text() for file in (scene / "data").iterdir()}
    try:
        for file, text in before.items():
            rows = [json.loads(line) | {"group": str(number // 2)} for number, line in enumerate(text.splitlines())]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(UserError, match="in other groups than when the run was measured"):
            certify(copied, copied / "model.cert", model="onnx-int8")
    finally:
        for file, text in before.items():
            file.write_text(text)


def test_a_model_that_was_changed_since_is_refused(copied):
    (copied / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no claim was fixed for these files"):
        certify(copied, copied / "model.cert", model="small")


def test_a_run_without_a_claim_or_a_reference_is_refused(copied):
    (copied / CLAIM_FILE).unlink()
    with pytest.raises(UserError, match="no claim was fixed"):
        certify(copied, copied / "model.cert", model="onnx-int8")
    text = (copied / "recipe.yaml").read_text(encoding="utf-8")
    (copied / "recipe.yaml").write_text(
        text.replace("against: teacher", "against: none").replace("stress: true", "stress: false"), encoding="utf-8"
    )
    with pytest.raises(UserError, match="was not compared with its teacher"):
        certify(copied, copied / "model.cert", model="onnx-int8")


@pytest.mark.slow
def test_a_metric_that_only_its_owner_has_chooses_and_reports_but_is_not_certified(tmp_path, monkeypatch):
    """A recipe with a function: trained, resumed and measured by it; what a stranger cannot recompute is refused."""
    (tmp_path / "house_metrics.py").write_text(
        "def minus_misses(y_true, y_pred):\n    return -float(((y_true == 'bad') & (y_pred != 'bad')).mean())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task = tiny_task("classification", examples=24)
    write_data(task, tmp_path / "data")
    (tmp_path / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "teacher")
    text = RECIPE.format(data=tmp_path / "data", model=tmp_path / "teacher").split("export:")[0]
    text = text.replace("max_length: 32", "max_length: 32, metric: 'house_metrics:minus_misses'")
    text += "evaluate: {against: teacher, margin: 0.05, memory: false, latency: null}\n"
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    recipe, out = read_recipe(tmp_path / "recipe.yaml"), tmp_path / "run"
    for resume in (False, True):
        result = next(one for one in run_recipe(recipe, out, resume=resume).results if one.name == "small")
        assert result.metric == "house_metrics:minus_misses"
        assert -1 <= result.score <= 0
        assert result.comparison.metric == result.metric
    assert "house_metrics:minus_misses" in (out / "report.html").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="minus_misses is a function of yours, which a stranger cannot recompute"):
        certify(out, tmp_path / "model.cert", model="small")


def test_without_a_name_it_is_what_the_page_leads_with(scene):
    results = [Result.load(file.parent) for file in (scene / "run" / "results").glob("*/result.json")]
    *_, chosen = _candidate(scene / "run", None, None)
    assert chosen.name == shipped([one for one in results if one.name in ("small", "onnx", "onnx-int8")]).name
    assert chosen.name in ("onnx", "onnx-int8")
