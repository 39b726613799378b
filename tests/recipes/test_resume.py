"""What a run keeps is found again only while what it was made from is the same; what trains nothing may change."""

import importlib
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from compress.artifact.artifact import load
from compress.cli import main
from compress.engine import steps
from compress.engine.kept_results import SO_FAR, _of_any_run, measured_from
from compress.engine.pipeline import run_recipe
from compress.engine.preflight import result_name
from compress.recipe import parse_recipe
from eval import measurement
from eval.comparison import measure_together
from eval.data.loading import load_task
from eval.result import Result
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """\
name: small
task: {kind: classification, data: data, max_length: 32}
teacher: {model: teacher}
student: {from: teacher, layers: [0, 2]}
training: {max_steps: 2, learning_rate: 1.0e-3, batch_size: 8}
steps: [distill.logits: {alpha: 0.9}]
export: [onnx: {int8: true, agreement: 0.0}]
evaluate: {latency: null, baseline: true}
"""


@pytest.fixture(scope="module")
def finished(made_once):
    """A folder with data, a teacher, a recipe, and its whole run in ``out``."""
    return made_once("finished", finish)


def finish(scene):
    task = tiny_task("classification")
    write_data(task, scene / "data")
    (scene / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), scene / "teacher")
    (scene / "recipe.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(scene)
        patch.setenv("COMPRESS_HOME", str(scene / "home"))
        assert main(["run", "recipe.yaml", "--out", "out"]) == 0


@pytest.fixture
def scene(finished, tmp_path, monkeypatch):
    """A copy of it to change, and the working folder."""
    shutil.copytree(finished, tmp_path / "scene")
    monkeypatch.chdir(tmp_path / "scene")
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "scene" / "home"))
    return tmp_path / "scene"


def resume(scene, recipe=RECIPE):
    (scene / "recipe.yaml").write_text(recipe)
    return main(["run", "recipe.yaml", "--out", "out", "--resume"])


def change_data(scene, split):
    """Give every third example of a split the other label."""
    file = scene / "data" / f"{split}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows[::3]:
        row["label"] = {"bad": "good", "good": "bad"}[row["label"]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_teacher(scene):
    save_taskmodel(tiny_taskmodel("bert", tiny_task("classification").spec, seed=9), scene / "teacher")


def manifests(scene):
    return {name: json.loads((scene / "out" / name / "export.json").read_text()) for name in ("onnx", "onnx-int8")}


def all_is_of(scene, digest):
    """Assert that whatever stands in the run is of one model and of the data as they are now."""
    out, task = scene / "out", load_task("classification", data=scene / "data", max_length=32)
    assert load(out / "model").digest == digest
    assert {one["source"]["weights"] for one in manifests(scene).values()} == {digest}
    (record,) = [one for one in load(out / "baseline").lineage if one.technique == "distill.labels"]
    assert record.data == {"train": task.train.digest, "validation": task.validation.digest}
    names = ["teacher", "small", "no teacher", "onnx", "onnx-int8"]
    figures = json.loads((out / "results.json").read_text())
    assert [one["name"] for one in figures] == names
    assert {one["digest"] for one in figures} == {task.test.digest}
    kept = [Result.load(folder) for folder in (out / "results").iterdir()]
    assert {one.name: one.scores for one in kept} == {one["name"]: one["scores"] for one in figures}


@pytest.mark.parametrize(
    ("change", "differs"), [(lambda scene: change_data(scene, "train"), "data"), (change_teacher, "teacher")]
)
def test_nothing_of_the_old_model_stands_beside_a_new_one(scene, capsys, change, differs):
    before = load(scene / "out" / "model").digest
    change(scene)
    assert resume(scene) == 2
    assert f"({differs}" in capsys.readouterr().err
    assert load(scene / "out" / "model").digest == before
    shutil.rmtree(scene / "out" / "steps" / "1-distill.logits")  # as the message says
    assert resume(scene) == 0, capsys.readouterr().err
    after = load(scene / "out" / "model").digest
    assert after != before
    all_is_of(scene, after)


def test_what_the_new_recipe_no_longer_asks_for_goes_with_the_old_model(scene):
    change_data(scene, "train")
    shutil.rmtree(scene / "out" / "steps")
    less = "".join(line for line in RECIPE.splitlines(keepends=True) if not line.startswith(("export", "evaluate")))
    assert resume(scene, less) == 0
    assert sorted(path.name for path in (scene / "out").iterdir()) == [
        *("baseline", "baseline-steps", "claim.json", "looks.json", "model", "recipe.yaml", "steps")
    ]


def test_new_examples_to_judge_by_give_new_exports_and_results(scene, monkeypatch):
    cut = RECIPE.replace("distill.logits: {alpha: 0.9}", "prune.layers: {keep: [0]}").replace(", baseline: true", "")
    cut = cut.replace("{latency: null", "{latency: null, split: validation, select: validation")
    shutil.rmtree(scene / "out")
    assert resume(scene, cut) == 0
    before, model = manifests(scene), load(scene / "out" / "model").digest
    change_data(scene, "validation")
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("the model does not depend on them"))
    assert resume(scene, cut) == 0
    assert load(scene / "out" / "model").digest == model
    for name, manifest in manifests(scene).items():
        assert manifest["source"]["made_from"] != before[name]["source"]["made_from"]
    digest = load_task("classification", data=scene / "data").validation.digest
    assert {one["digest"] for one in json.loads((scene / "out" / "results.json").read_text())} == {digest}


def untouched(scene):
    """What was made, by its file and the time it was written; exports and steps that are kept are not written anew."""
    kept = [*(scene / "out" / "steps").rglob("*"), *(scene / "out").glob("onnx*/*")]
    return {str(path): path.stat().st_mtime_ns for path in kept}


def test_where_nothing_changed_nothing_is_made_anew(scene, monkeypatch):
    before = untouched(scene)
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("a step ran again"))
    assert resume(scene) == 0
    assert untouched(scene) == before


def test_a_finished_measurement_keeps_its_figures(scene, monkeypatch, caplog):
    timed = RECIPE.replace("latency: null, baseline: true", "memory: false, latency: {batch: [1], seconds: 0.005}")
    assert resume(scene, timed) == 0
    files = [scene / "out" / name for name in ("results.json", "report.html", "looks.json", "claim.json")]
    before = [file.read_bytes() for file in files]
    assert json.loads(before[0])[0]["latency"]
    with monkeypatch.context() as patch:
        patch.setattr("compress.engine.evaluation.measure_together", lambda *_: pytest.fail("measured again"))
        assert resume(scene, timed) == 0
    assert [file.read_bytes() for file in files] == before
    assert "and nothing has changed since; remove out/results to measure again" in caplog.text
    shutil.rmtree(scene / "out" / "results")
    assert resume(scene, timed) == 0
    assert len(json.loads(files[2].read_text())) == 1 + len(json.loads(before[2]))


def test_a_measurement_that_was_interrupted_asks_no_model_twice(scene, monkeypatch, caplog):
    timed = RECIPE.replace("latency: null, baseline: true", "memory: false, latency: {batch: [1], seconds: 0.005}")
    with monkeypatch.context() as patch:
        patch.setattr("eval.comparison.time_models", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert resume(scene, timed) == 130
    so_far = scene / "out" / SO_FAR
    answered = {folder.name: Result.load(folder) for folder in so_far.iterdir()}
    shutil.rmtree(so_far / "onnx-int8")
    asked, answered_now = [], measurement._answered
    monkeypatch.setattr(measurement, "_answered", lambda one, *how: asked.append(one.name) or answered_now(one, *how))
    caplog.clear()
    assert resume(scene, timed) == 0
    assert asked == ["onnx-int8"]
    assert caplog.text.count("answered before the measurement was interrupted") == len(answered) - 1
    assert not so_far.exists()
    for one in (Result.load(folder) for folder in (scene / "out" / "results").iterdir()):
        assert one.seconds == answered[result_name(one.name)].seconds or one.name in asked
        assert (one.comparison is None) == (one.name == "teacher")
        assert one.latency


def test_the_teacher_answers_once_for_all_runs_on_the_same_examples(scene, monkeypatch, caplog):
    asked, answered_now = [], measurement._answered
    monkeypatch.setattr(measurement, "_answered", lambda one, *how: asked.append(one.name) or answered_now(one, *how))
    recipe = RECIPE.replace("baseline: true", "baseline: false")
    other = recipe.replace("alpha: 0.9", "alpha: 0.8")
    assert other != recipe
    with caplog.at_level("INFO"):
        run_recipe(parse_recipe(other), "second")
    assert asked == ["small", "onnx", "onnx-int8"]
    assert "teacher: answered these examples in another run" in caplog.text
    first, second = (Result.load(scene / run / "results" / "teacher") for run in ("out", "second"))
    assert (first.scores, first.seconds, first.kept) == (second.scores, second.seconds, second.kept)
    asked.clear()
    monkeypatch.setattr("compress.engine.evaluation.library_versions", lambda: {"torch": "another"})
    run_recipe(parse_recipe(other.replace("alpha: 0.8", "alpha: 0.7")), "third")
    assert "teacher" in asked


def test_two_runs_at_once_ask_a_teacher_once(scene):
    answers, asked = Result.load(scene / "out" / "results" / "teacher"), []

    def slowly():
        asked.append("teacher")
        time.sleep(0.5)
        return answers

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(_of_any_run, "teacher", "0" * 64, slowly) for _ in range(2)]
    assert found[0].result().scores == found[1].result().scores == answers.scores
    assert asked == ["teacher"]


@pytest.mark.parametrize("change", ["margin: 0.02, ", "another processor", "an export", "predictions", "groups"])
def test_a_measurement_of_something_else_is_made_anew(scene, monkeypatch, change):
    measured = []
    together = "compress.engine.evaluation.measure_together"
    monkeypatch.setattr(together, lambda *how: measured.append(1) or measure_together(*how))
    recipe = RECIPE
    if change == "an export":
        recipe = RECIPE.replace("agreement: 0.0", "agreement: 0.1")
    elif change == "predictions":
        (scene / "out" / "results" / "onnx" / "predictions.jsonl").write_text("")
    elif change == "groups":
        file = scene / "data" / "test.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row | {"group": str(n // 3)}) + "\n" for n, row in enumerate(rows)))
    elif change == "another processor":
        monkeypatch.setattr("compress.engine.kept_results.cpu_name", lambda: "another processor")
    else:
        recipe = RECIPE.replace("evaluate: {", "evaluate: {" + change)
    assert resume(scene, recipe) == 0
    assert resume(scene, recipe) == 0
    assert measured == [1]


def test_another_text_of_an_own_metric_is_another_measurement(scene, monkeypatch):
    monkeypatch.syspath_prepend(str(scene))
    text = "def own_cost(y_true, y_pred):\n    return -{} * float((y_true != y_pred).mean())\n"
    (scene / "own_cost_of_a_test.py").write_text(text.format(1))
    recipe = RECIPE.replace("max_length: 32", 'max_length: 32, metric: "own_cost_of_a_test:own_cost"')
    recipe = recipe.replace("baseline: true", "baseline: false").replace("[distill.logits: {alpha: 0.9}]", "[]")
    first = run_recipe(parse_recipe(recipe), scene / "costs").results[0]
    (scene / "own_cost_of_a_test.py").write_text(text.format(50))
    importlib.reload(importlib.import_module("own_cost_of_a_test"))
    second = run_recipe(parse_recipe(recipe), scene / "costs", resume=True).results[0]
    assert first.score < 0
    assert second.score == pytest.approx(50 * first.score)


def test_thresholds_that_were_chosen_otherwise_make_another_model():
    task = tiny_task("multilabel")
    model = tiny_taskmodel("bert", task.spec)
    thresholds = [(0.5,) * len(task.spec.labels), (0.4,) * len(task.spec.labels)]
    low, high = (replace(model, task=task.spec.model_copy(update={"thresholds": each})) for each in thresholds)
    assert low.digest == high.digest
    assert measured_from([low]) != measured_from([high])
    assert measured_from([low]) == measured_from([replace(low)])


@pytest.mark.parametrize("old", ["export: [onnx: {int8: true, agreement: 0.0}]"])
def test_other_export_settings_make_that_export_anew_and_train_nothing(scene, monkeypatch, old):
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("a step ran again"))
    before, kept = manifests(scene), untouched(scene)
    assert resume(scene, RECIPE.replace(old, "export: [onnx: {int8: true, agreement: 0.1}, ort]")) == 0
    assert manifests(scene)["onnx-int8"]["gate"]["agreement_needed"] == 0.1
    assert before["onnx-int8"]["gate"]["agreement_needed"] == 0.0
    assert (scene / "out" / "ort" / "model.ort").is_file()
    steps = {name: time for name, time in untouched(scene).items() if "/steps/" in name}
    assert steps == {name: time for name, time in kept.items() if "/steps/" in name}


def test_another_way_to_judge_trains_nothing_and_forgets_results_that_are_not_asked_for(scene, monkeypatch):
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("a step ran again"))
    before = untouched(scene)
    other = RECIPE.replace("{latency: null, baseline: true}", "{latency: null, split: test, against: out/baseline}")
    assert resume(scene, other) == 0
    assert untouched(scene) == before
    figures = json.loads((scene / "out" / "results.json").read_text())
    assert [(one["name"], one["split"]) for one in figures] == [
        *(("baseline", "test"), ("small", "test"), ("onnx", "test"), ("onnx-int8", "test"))
    ]
    assert {path.name for path in (scene / "out" / "results").iterdir()} == {one["name"] for one in figures}


def test_a_damaged_or_strange_export_is_made_anew(scene):
    manifest = scene / "out" / "onnx" / "export.json"
    good = json.loads(manifest.read_text())
    for damaged in (
        "",
        "[]",
        "{",
        json.dumps(good | {"source": None}),
        json.dumps(good | {"source": {"made_from": 5}}),
    ):
        manifest.write_text(damaged)
        run_recipe(parse_recipe(RECIPE.replace("evaluate: {latency: null, baseline: true}\n", "")), "out", resume=True)
        assert manifests(scene)["onnx"]["source"] == good["source"]


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("seed", "name: small\n", "name: small\nseed: 14\n"),
        ("steps", "alpha: 0.9", "alpha: 0.8"),
        ("training", "max_steps: 2", "max_steps: 3"),
        ("task", "max_length: 32", "max_length: 31"),
    ],
)
def test_what_trains_another_model_is_another_run(scene, capsys, part, old, new):
    before = (scene / "out" / "recipe.yaml").read_text()
    assert resume(scene, RECIPE.replace(old, new)) == 2, part
    assert "holds a run of another recipe" in capsys.readouterr().err
    assert (scene / "out" / "recipe.yaml").read_text() == before


def test_a_recipe_that_was_refused_can_be_mended_and_run(scene, capsys):
    shutil.rmtree(scene / "out")
    (scene / "recipe.yaml").write_text(RECIPE.replace("latency: null", "latency: {lengths: 99}"))
    assert main(["run", "recipe.yaml", "--out", "out"]) == 2
    assert "recipe.yaml:8: evaluate.latency.lengths: " in capsys.readouterr().err
    (scene / "recipe.yaml").write_text(RECIPE.replace("export: [onnx: {int8: true, agreement: 0.0}]\n", ""))
    assert main(["run", "recipe.yaml", "--out", "out"]) == 0


LONGER = RECIPE.replace("{alpha: 0.9}]", "{alpha: 0.9}, prune.magnitude: {sparsity: 0.5}]").replace(
    ", baseline: true", ""
)
"""The recipe with a step more."""


def reuse(scene, recipe, out="longer", of="out"):
    (scene / "recipe.yaml").write_text(recipe)
    return main(["run", "recipe.yaml", "--out", out, "--reuse", of])


def test_steps_of_another_run_are_taken_over_up_to_the_first_that_differs(scene, capsys, monkeypatch):
    kept = load(scene / "out" / "steps" / "1-distill.logits")
    ran = []
    apply_step = steps.apply_step
    monkeypatch.setattr(steps, "apply_step", lambda step, *how: ran.append(step.name) or apply_step(step, *how))
    assert reuse(scene, LONGER) == 0, capsys.readouterr().err
    assert ran[-1] == "prune.magnitude"
    assert ran.count("distill.logits") == 1, "in the dry run alone"
    taken = load(scene / "longer" / "steps" / "1-distill.logits")
    assert (taken.digest, taken.lineage) == (kept.digest, kept.lineage)
    assert load(scene / "longer" / "model").lineage[: len(kept.lineage)] == kept.lineage
    assert load(scene / "out" / "model").digest == kept.digest
    assert resume(scene, RECIPE) == 0, "what steps were taken from stays as it was"


def test_a_step_that_differs_is_trained(scene, caplog):
    assert reuse(scene, LONGER.replace("alpha: 0.9", "alpha: 0.8")) == 0
    assert "1-distill.logits: is not taken over (config differ)" in caplog.text
    assert "is taken over" not in caplog.text
    assert load(scene / "longer" / "steps" / "1-distill.logits").lineage[-1].config["alpha"] == 0.8


def test_looks_of_a_run_whose_steps_are_taken_over_count(scene, capsys):
    earlier = json.loads((scene / "out" / "looks.json").read_text())
    assert reuse(scene, LONGER) == 0
    looks = json.loads((scene / "longer" / "looks.json").read_text())
    assert looks[: len(earlier)] == earlier
    assert len(looks) == len(earlier) + 1
    assert f"was opened {len(looks)} times" in capsys.readouterr().out
    assert json.loads((scene / "out" / "looks.json").read_text()) == earlier


@pytest.mark.parametrize(("split", "counts"), [("test", True), ("validation", False)])
@pytest.mark.parametrize("model", ["model", "onnx-int8"])
def test_an_evaluation_of_a_model_of_a_run_is_a_look(scene, capsys, model, split, counts):
    before = json.loads((scene / "out" / "looks.json").read_text())
    assert main(["eval", f"out/{model}", "--data", "data", "--split", split, "--no-latency"]) == 0
    looks = json.loads((scene / "out" / "looks.json").read_text())
    assert looks[: len(before)] == before
    assert len(looks) == len(before) + counts
    assert ("The split test was opened 2 times, for 4 candidates." in capsys.readouterr().out) == counts


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        ("nowhere", "nowhere: there is no such folder"),
        (".", ".: holds no steps, so there are no steps of a run"),
        ("out/../longer", "is --out as well as --reuse"),
    ],
)
def test_what_is_no_other_run_gives_no_steps(scene, capsys, of, problem):
    if "longer" in of:
        shutil.copytree(scene / "out", scene / "longer")
    (scene / "recipe.yaml").write_text(RECIPE)
    assert main(["run", "recipe.yaml", "--out", "longer", "--resume", "--reuse", of]) == 2
    assert problem in capsys.readouterr().err


def test_a_run_of_another_recipe_says_how_its_steps_are_taken_over(scene, capsys):
    assert resume(scene, LONGER) == 2
    assert "--reuse out` takes over the steps that are the same" in " ".join(capsys.readouterr().err.split())


KILLED = """
import os, signal, sys
from eval.files import writing
from compress.cli import main
from compress.engine import steps
settle = writing._settle
def killed(folder, mode=None):
    if (folder / sys.argv[1]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    settle(folder, mode)
writing._settle = killed
main(["run", "recipe.yaml", "--out", "out", *sys.argv[2:]])
"""
"""Kills itself once a file of a name is written, before it or its folder gets its place."""


@pytest.fixture
def killed(scene, forker):
    """Return what runs the recipe until a file of a name is written, and not yet in its place; there it is killed."""

    def run(while_writing, *more):
        program = scene.parent / "killed.py"
        program.write_text(KILLED)
        ending = forker.run([str(program), while_writing, *more], cwd=scene, env={"COMPRESS_HOME": str(scene / "home")})
        assert ending.code == -9, ending.err

    return run


def test_killed_while_the_recipe_is_written_first(scene, killed):
    shutil.rmtree(scene / "out")
    killed("recipe.yaml")
    assert [path.name for path in (scene / "out").iterdir() if not path.name.startswith(".")] == []
    for recipe in (RECIPE.replace("export: [onnx: {int8: true, agreement: 0.0}]\n", ""),):
        assert resume(scene, recipe) == 0
    assert not list((scene / "out").glob(".*"))


def test_killed_while_the_recipe_is_written_on_resume(scene, killed, monkeypatch):
    before = (scene / "out" / "recipe.yaml").read_text()
    changed = RECIPE.replace("agreement: 0.0", "agreement: 0.1")
    (scene / "recipe.yaml").write_text(changed)
    killed("recipe.yaml", "--resume")
    assert (scene / "out" / "recipe.yaml").read_text() == before
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("a step ran again"))
    assert resume(scene, changed) == 0
    assert not list((scene / "out").glob(".*"))


def test_killed_while_an_export_is_written_anew(scene, killed):
    before = manifests(scene)
    changed = RECIPE.replace("agreement: 0.0", "agreement: 0.1")
    (scene / "recipe.yaml").write_text(changed)
    killed("predict.py", "--resume")
    assert manifests(scene) == before
    assert resume(scene, changed) == 0
    assert manifests(scene)["onnx"]["source"]["made_from"] != before["onnx"]["source"]["made_from"]
    assert not list((scene / "out").glob(".*"))


def test_an_empty_recipe_of_an_earlier_version_is_no_obstacle(scene, monkeypatch):
    (scene / "out" / "recipe.yaml").write_text("")
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("a step ran again"))
    assert resume(scene) == 0
    assert "distill.logits" in (scene / "out" / "recipe.yaml").read_text()


def test_a_folder_without_a_recipe_is_none_of_ours(scene, capsys):
    (scene / "out" / "recipe.yaml").unlink()
    assert resume(scene) == 2
    assert "recipe.yaml: cannot be read" in capsys.readouterr().err
