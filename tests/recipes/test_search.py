"""A whole search at tiny size: what falls, what wins, and that neither kills nor a second process change it."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import searches
from compress.artifact.lineage import FILE as LINEAGE
from compress.search import Budget
from compress.search import search as search_within
from eval.certificate import recheck
from eval.cost.size import file_bytes
from eval.errors import UserError
from eval.task import Examples
from teachers.anatomy.encoder import base_encoder
from teachers.taskmodel import save_taskmodel
from tests.forking import Call
from tests.interrupting import Interruption
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

BUDGET = """\
name: tiny
task: {kind: classification, data: data, max_length: 16}
teacher: {model: base, finetune: {max_steps: 40, batch_size: 16, learning_rate: 2.0e-3}}
limits: [bytes <= MOST, loss <= 50 points @ 95%]
optimise: [bytes, score]
candidates: 2
shares: [0.25, 1]
stress: true
space: {template: space.yaml, start: [start.yaml, large.yaml]}
"""
SPACE = """\
student: {search: [null, {from: teacher, layers: [0, 2]}, {from: teacher, layers: [1]}]}
steps:
  - distill.logits: {max_steps: 8, batch_size: 16, learning_rate: {search: [1.0e-3, 3.0e-3]}, checkpoint_seconds: 0}
  - {search: [null, prune.vocabulary]}
  - {search: [null, prune.structured: {ffn: {search: {low: 0.25, high: 0.75}}, recover: false}]}
  - {search: [quantize.dynamic, null]}
export: [onnx: {agreement: 0.5}]
"""
START = """\
student: {from: teacher, layers: [1]}
steps:
  - distill.logits: {max_steps: 8, batch_size: 16, learning_rate: 3.0e-3, checkpoint_seconds: 0}
  - quantize.dynamic
export: [onnx: {agreement: 0.5}]
"""


def scene(folder, most="60 KB"):
    task = tiny_task("classification", examples=32)
    other = tiny_task("classification", examples=32, seed=14).validation
    write_data(replace(task, splits={**task.splits, "test": Examples(other, "test")}), folder / "data")
    (folder / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), folder / "base")
    (folder / "budget.yaml").write_text(BUDGET.replace("MOST", most))
    (folder / "space.yaml").write_text(SPACE)
    (folder / "start.yaml").write_text(START)
    (folder / "large.yaml").write_text(START.replace("[1]", "[0, 2]"))


def told(found):
    """Return what must be alike whatever happened on the way: no seconds."""
    apart = {"seconds", "number"}
    found = {**found, "candidates": [{k: v for k, v in one.items() if k not in apart} for one in found["candidates"]]}
    return {key: value for key, value in found.items() if key not in ("seconds", "spent")}


def search(place, *more, at=0):
    arguments = ["search", "budget.yaml", "--out", "out", *more]
    home = {"COMPRESS_HOME": str(place / "home")}
    return Call(arguments, place, home, seconds=300, interruption=Interruption(at=at))


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("classification", {"limits": ["loss <= 60 points"]}, "margin=0.6 is 60 points of accuracy"),
        ("tagging", {"attributions": True}, "attributions: a tagging model does not give one score"),
        ("classification", {"teacher": {"model": "base"}}, "base is .*without a trained head for classification"),
        ("classification", {"space": {"template": "space.yaml", "start": "start.yaml"}}, "is no point of the space"),
    ],
)
def test_what_no_search_can_end_with_is_refused_before_anything_is_kept(kind, given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPRESS_HOME", "home")
    write_data(tiny_task(kind, examples=32), Path("data"))
    model = tiny_taskmodel("bert", tiny_spec(kind))
    Path("teacher").mkdir()
    save_taskmodel(model, Path("teacher"))
    base_encoder(model.model).save_pretrained("base")
    model.tokenizer.save_pretrained("base")
    Path("space.yaml").write_text("steps: [{search: [prune.vocabulary, null]}]\n")
    Path("start.yaml").write_text("steps: [quantize.dynamic]\n")
    told = {"task": {"kind": kind, "data": "data"}, "teacher": {"model": "teacher"}, "optimise": "score"}
    wanted = Budget.model_validate({**told, "candidates": 1, **given})
    with pytest.raises(UserError, match=words):
        search_within(wanted, "out")
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["out", "a?b", "{a}", "100%25 é"])
def test_a_folder_of_any_name_holds_its_own_trials(name, tmp_path, monkeypatch):
    trials = pytest.importorskip("compress.search.trials").Trials
    monkeypatch.chdir(tmp_path)
    told = {"task": {"kind": "classification", "data": "data"}, "teacher": {"model": "teacher"}, "optimise": "score"}
    trials(Budget.model_validate({**told, "candidates": 1}), Path(name)).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "search.db").is_file()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, forker):
    """Return a search that nothing disturbed: its folder, and what it printed."""
    place = tmp_path_factory.mktemp("whole")
    scene(place)
    ending = forker.run_together([search(place, "--json")])[0]
    assert ending.code == 0, ending.err
    return place, json.loads(ending.out)


def test_a_search_ends_with_a_winner_within_the_budget(whole):
    place, found = whole
    by_key = {one["key"]: one for one in found["candidates"]}
    [winner] = found["winners"]
    chosen = by_key[winner["key"]]
    assert chosen["share"] == 1
    assert chosen["costs"]["bytes"] <= 60_000
    assert chosen["difference"][0] >= -0.5
    assert winner["key"] in found["front"]
    trained = [one for one in by_key.values() if one["difference"]]
    assert len(trained) == 2
    assert trained[0]["label"] == "layers 1, distill.logits, quantize.dynamic"  # the start comes first
    fallen = [one for one in by_key.values() if one["dropped"]]
    assert "layers 0 2, distill.logits, quantize.dynamic" in [one["label"] for one in fallen]
    assert all("allowed is bytes <= 60 KB" in one["dropped"] for one in fallen)
    # What candidates share is trained once: the winner's own run found all of its steps.
    lineages = {(place / "out" / "steps" / name / LINEAGE).read_bytes() for name in chosen["places"]}
    assert lineages == {path.read_bytes() for path in (place / "out" / winner["folder"] / "steps").glob(f"*/{LINEAGE}")}
    assert file_bytes(place / "out" / winner["folder"] / "onnx-int8") == chosen["costs"]["bytes"]
    assert winner["split"] == "test"
    assert winner["role"] == "final"
    assert recheck(place / "out" / winner["certificate"]).word == "PARTIAL"  # the models were not given
    page = (place / "out" / "search.html").read_text()
    assert chosen["label"] in page
    assert "allowed is bytes" in page


@pytest.mark.slow
def test_a_search_that_is_killed_three_times_ends_with_the_same_front(whole, tmp_path, forker):
    scene(tmp_path)
    for at in (40, 90, 60):
        ending = forker.run_together([search(tmp_path, "--resume", at=at)])[0]
        assert ending.code == -signal.SIGKILL, ending.err
    ending = forker.run_together([search(tmp_path, "--resume", "--json")])[0]
    assert ending.code == 0, ending.err
    assert told(json.loads(ending.out)) == told(whole[1])


def test_what_fell_for_a_limit_comes_again_where_the_limit_is_looser(whole, tmp_path, forker):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    large = "layers 0 2, distill.logits, quantize.dynamic"
    [fallen] = [one for one in whole[1]["candidates"] if one["label"] == large]
    looser = BUDGET.replace("MOST", f"{fallen['costs']['bytes'] + 20_000} B")
    (tmp_path / "budget.yaml").write_text(looser)
    ending = forker.run_together([search(tmp_path, "--resume", "--json")])[0]
    assert ending.code == 0, ending.err
    [again] = [one for one in json.loads(ending.out)["candidates"] if one["key"] == fallen["key"]]
    assert again["difference"]
    assert not again["dropped"]
    count = len(trials(tmp_path / "out"))
    assert forker.run_together([search(tmp_path, "--resume", "--json")])[0].code == 0
    assert len(trials(tmp_path / "out")) == count


def test_what_a_search_found_is_kept_with_its_certificate(whole, tmp_path, monkeypatch):
    place, found = whole
    monkeypatch.setattr(searches, "CERTIFICATES", tmp_path)
    kept = searches.facts_of(place / "out")
    page = searches.report({"searches": {"tiny": kept}})
    assert found["outcome"][0] in page
    assert f"| {found['winners'][0]['key']} | " in page
    assert "front, winner" in page
    assert "further than clean" in page
    assert "| typos" in page or "| neighbouring keys" in page
    assert recheck(tmp_path / f"tiny-{found['winners'][0]['key']}.cert", level=1).word == "VALID"
    (tmp_path / searches.FILE).write_text(json.dumps({**found, "ended": False}))
    with pytest.raises(UserError, match="not over"):
        searches.facts_of(tmp_path)


@pytest.mark.slow
def test_two_processes_share_a_search(whole, tmp_path, forker):
    scene(tmp_path)
    endings = forker.run_together([search(tmp_path, "--resume", "--json") for _ in range(2)])
    assert [ending.code for ending in endings] == [0, 0], endings
    one, other = (json.loads(ending.out) for ending in endings)
    assert told(one) == told(other)
    trained = [one for one in one["candidates"] if one["difference"]]
    assert len(trained) == 2
    assert len({one["key"] for one in trained}) == 2
    assert one["winners"][0]["key"] in one["front"]
    workers = {trial.user_attrs["worker"] for trial in trials(tmp_path / "out")}
    assert len(workers) == 2


def trials(out):
    optuna = pytest.importorskip("optuna")
    storage = optuna.storages.RDBStorage(f"sqlite:///{out / 'search.db'}")
    found = optuna.load_study(study_name="tiny", storage=storage).get_trials()
    storage.remove_session()
    return found
