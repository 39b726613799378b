"""Kinds of tasks: each in its file; one of another package, found by its entry point, works everywhere."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compress.export.runtime import bundle
from compress.export.targets.target_registry import library_of
from eval.errors import UserError
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import OWN, kind_of
from tests.unit.test_runtime import program

ROOT = Path(__file__).parents[2]
FOREIGN = Path(__file__).parent / "foreign_kind" / "grading.py"
ENTRIES = """[compress.kinds]
grading = grading:Grading
missing = grading:Missing
other_name = grading:Grading
gone = no_such_package_at_all:Gone
twice = grading:Grading
no_kind = grading:BEST
qa = grading:Grading
"""
USE = """
import json, sys
from pathlib import Path

from compress import Inputs, Recipe, run
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.export import export_onnx
from compress.export.runtime import Runtime
from compress.export.targets.web import WebTarget
from compress.recipe import read_recipe
from compress import load
from eval import UserError, load_task, measure
from eval.kinds.kind_registry import all_kinds, kind_names, kind_of
from teachers import ModelTeacher
from teachers.training.config import Training
from tests.tiny import tiny_taskmodel

folder = Path(sys.argv[1])
found = {"names": kind_names(), "all": [kind.name for kind in all_kinds()], "refused": {}}
for name in ("missing", "other_name", "no_kind", "gone", "twice"):
    try:
        kind_of(name)
    except UserError as error:
        found["refused"][name] = str(error)
task = load_task("grading", data=folder / "data")
found["spec"] = [task.spec.metric, task.spec.outputs, task.train[0]]
try:
    load_task("grading", files={"train": folder / "bad.jsonl"})
except UserError as error:
    found["bad"] = error.problems
model = tiny_taskmodel("bert", task.spec)
training = Training(epochs=12, learning_rate=3e-3, batch_size=16)
trained = run(Recipe(steps=(LabelTraining(training=training),)), model, Inputs(train=task.train))
trained.save(folder / "trained")
again = load(folder / "trained")
before, after = (measure(one, task).scores for one in (model, again))
found["scores"] = [before, after]
short = Training(epochs=1, learning_rate=1e-3, batch_size=16)
soft = LogitDistillation(training=short, alpha=1.0)
student = run(Recipe(steps=(soft,)), trained, Inputs(train=task.train, teacher=ModelTeacher(trained)))
found["agreement"] = measure(student, task, against=trained).comparison.agreement
report = export_onnx(trained, folder / "onnx", examples=task.validation)
found["gate"] = [report.gate.passed, report.gate.agreement]
texts = [example["text"] for example in task.validation]
found["web"] = WebTarget().refused(trained, None)
found["exported"] = [a["grade"] for a in Runtime(folder / "onnx").predict(texts).answers]
found["torch"] = [a["grade"] for a in measure(trained, task).kept.answers]
found["recipe"] = read_recipe(folder / "recipe.yaml").task.kind
print(json.dumps(found))
"""


@pytest.mark.parametrize("name", OWN)
def test_a_kind_is_an_object_in_its_own_file(name):
    kind = kind_of(name)
    assert (kind.name, kind_of(name)) == (name, kind)
    folder, _, file = type(kind).__module__.rpartition(".")
    assert (folder in ("eval.kinds", "eval.kinds.language"), file) == (True, name.replace("-", "_"))
    assert kind.metric in {metric.name for metric in kind.metrics() if metric.decides}
    for sentence in (kind.meaning, kind.answer, kind.line, kind.longer, kind.pipeline):
        assert sentence


def test_a_name_that_is_none_is_told_with_the_nearest():
    with pytest.raises(UserError) as caught:
        kind_of("clasification")
    assert str(caught.value) == "kind: unknown kind of task 'clasification'; did you mean 'classification'?"


@pytest.mark.parametrize("asked", ["read_truth", "metrics", "values", "agreement", "target"])
def test_what_a_kind_must_say_itself_is_named(asked):
    arguments = {"metrics": 0, "agreement": 1, "read_truth": 3, "values": 3, "target": 4}[asked]
    with pytest.raises(NotImplementedError, match=f"Kind does not implement {asked}"):
        getattr(Kind(), asked)(*[None] * arguments)


def test_a_kind_that_hides_a_part_of_the_program_is_refused(tmp_path, monkeypatch):
    text = "from eval.kinds.kind import Kind\n\n\nclass Hiding(Kind):\n    pass\n\n\ndef main():\n    pass\n"
    (tmp_path / "hiding.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    hiding = importlib.import_module("hiding")
    monkeypatch.setattr(bundle, "kind_of", lambda name: hiding.Hiding())
    with pytest.raises(UserError, match="kind hiding: its file defines main, as another part"):
        bundle.predict_program("onnx", library_of("onnx"), "hiding")


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """What a fresh process does with a kind of an installed package of one file."""
    folder = tmp_path_factory.mktemp("foreign")
    site = folder / "site"
    installed = site / "grading-1.0.dist-info"
    installed.mkdir(parents=True)
    shutil.copy(FOREIGN, site)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: grading\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRIES)
    rival = site / "rival-2.0.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 2.0\n")
    (rival / "entry_points.txt").write_text("[compress.kinds]\ntwice = rival:Twice\n")
    (folder / "data").mkdir()
    words = ("awful", "poor", "fine", "great", "superb")
    for split, count in (("train", 100), ("validation", 25)):
        rows = [{"text": f"the film is {words[n % 5]}", "label": n % 5} for n in range(count)]
        (folder / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "bad.jsonl").write_text('{"text": "a film", "label": 9}\n{"text": "a film", "label": 1.5}\n')
    (folder / "recipe.yaml").write_text(
        f"name: graded\ntask: {{kind: grading, data: {folder}/data}}\nteacher: {{model: {folder}/trained}}\n"
        "student: {from: teacher, layers: 1}\nsteps: [distill.logits: {}]\n"
    )
    paths = os.pathsep.join([str(site), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", USE, str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "COMPRESS_HOME": str(folder / "home")},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return folder, json.loads(run.stdout.splitlines()[-1]), run.stderr


def test_a_kind_of_another_package_is_found(used):
    _, found, log = used
    assert found["names"] == [*OWN, "gone", "grading", "missing", "no_kind", "other_name", "twice"]
    assert found["all"] == [*OWN, "grading"]
    kind = "kind of task {!r} of grading 1.0".format
    assert found["refused"] == {
        "missing": f"{kind('missing')} (grading:Missing): cannot be loaded (AttributeError: module 'grading' has no "
        "attribute 'Missing'); update grading or uninstall it",
        "other_name": f"{kind('other_name')} (grading:Grading): its class says name = 'grading'; the entry point must "
        "have the same name",
        "no_kind": f"{kind('no_kind')} (grading:BEST): is no subclass of eval.kinds.kind.Kind",
        "gone": f"{kind('gone')} (no_such_package_at_all:Gone): cannot be loaded (ModuleNotFoundError: No module named "
        "'no_such_package_at_all'); update grading or uninstall it",
        "twice": "kind of task 'twice' is claimed by grading 1.0 and rival 2.0; uninstall all but one of them",
    }
    taken = f"{kind('qa')} is not used: the name is built in; the package must choose another"
    assert all(sentence in log for sentence in (taken, *found["refused"].values()))


def test_its_data_is_read_and_checked(used):
    _, found, _ = used
    metric, labels, example = found["spec"]
    example.pop("group", None)  # of copies
    assert [metric, labels, example] == ["exact", 4, {"text": "the film is awful", "label": 0}]
    assert [problem.split(": ", 1)[1] for problem in found["bad"]] == [
        "'label' must be a grade from 0 to 4, not 9",
        "'label' must be a grade from 0 to 4, not 1.5",
    ]
    assert found["recipe"] == "grading"


def test_it_is_learned_saved_loaded_and_distilled(used):
    _, found, _ = used
    before, after = found["scores"]
    assert list(after) == ["exact", "near"]
    assert before["exact"] < 0.5 < 0.9 < after["exact"]
    assert found["agreement"]["grades"] > 0.9


def test_pages_speak_of_it(used):
    folder, found, _ = used
    assert "Grading: it answers with a grade from 0 to 4 for a text" in (folder / "trained" / "README.md").read_text()
    page = (folder / "onnx" / "README.md").read_text()
    assert "A grading model for ONNX Runtime" in page
    assert "A line is a text, or a JSON object with `text`." in page
    assert [why.partition(": ")[2] for why in found["web"]] == [
        "grading is not for the browser: its page does not know this kind; export it to onnx"
    ]


def test_it_is_exported_and_its_program_needs_neither_package(used):
    folder, found, _ = used
    assert found["gate"] == [True, 1.0]
    assert found["exported"] == found["torch"]
    lines = "\n".join(f"the film is {word}" for word in ("awful", "poor", "fine", "great", "superb"))
    run = program(folder / "onnx", stdin=lines.encode())
    assert run.returncode == 0, run.stderr.decode()
    assert [json.loads(line)["grade"] for line in run.stdout.splitlines()] == found["torch"][:5]
