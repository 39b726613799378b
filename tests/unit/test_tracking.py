"""Trackers: what they are told, that they change no training, and that one which fails ends no run."""

import logging
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from accelerate import tracking as known
from accelerate.tracking import GeneralTracker

from compress.engine.pipeline import run_recipe
from compress.recipe import parse_recipe
from eval.errors import UserError
from teachers.taskmodel import weights_digest
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.tracking import TrainingLog, track, track_with, tracked_as, tracker_problems, untracked
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

PAGE = Path(__file__).parents[2] / "docs" / "tracking.md"
TRAINING = Training(epochs=2, batch_size=8, learning_rate=1e-3, precision="fp32")


class Notebook(GeneralTracker):
    """Keeps what it is told; it draws random numbers of torch, as no tracker should."""

    name = "notebook"
    requires_logging_directory = False
    tracker = None
    told: ClassVar[list] = []
    fails = ""

    def __init__(self, project):
        super().__init__()
        self._note("project", project)

    def start(self):
        self._note("start")

    def store_init_configuration(self, values):
        self._note("config", values)

    def log(self, values, step=None):
        self._note("log", values, step)

    def finish(self):
        self._note("finish")

    def _note(self, what, *values):
        torch.rand(1)
        if what == self.fails:
            raise ConnectionError("no route to host")
        self.told.append((what, *values))


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setitem(known.LOGGER_TYPE_TO_CLASS, "notebook", Notebook)
    monkeypatch.setattr(Notebook, "told", [])
    return Notebook


def curve(told, name):
    return [
        (step, values[name]) for what, values, step in (each for each in told if each[0] == "log") if name in values
    ]


@pytest.fixture(scope="module")
def task():
    return tiny_task("classification")


def trained(task, training=TRAINING, folder=None):
    student = tiny_taskmodel("bert", task.spec)
    history = train(student, task.train, training=training, validation=task.select, folder=folder)
    return weights_digest(student.model), history


def told_of(history):
    """A history without its times."""
    return [{key: value for key, value in entry.items() if "second" not in key} for entry in history]


def test_a_training_is_told_and_not_changed(task, notebook, tmp_path):
    alone, expected = trained(task)
    with track_with(["notebook"], "small", tmp_path, {"seed": 13, "steps": [{"prune": {"keep": [0, 2]}}]}):
        digest, history = trained(task)
    assert (digest, told_of(history)) == (alone, told_of(expected))
    assert notebook.told[:3] == [
        ("project", "small"),
        ("start",),
        ("config", {"seed": 13, "steps.0.prune.keep.0": 0, "steps.0.prune.keep.1": 2}),
    ]
    assert notebook.told[-1] == ("finish",)
    losses, rates = curve(notebook.told, "model/loss"), curve(notebook.told, "model/learning_rate")
    total = history[-1]["step"]
    assert [step for step, _ in losses] == list(range(1, total + 1))
    assert losses == curve(notebook.told, "model/loss.task")
    mean = sum(value for step, value in losses if step <= history[0]["step"]) / history[0]["step"]
    assert mean == pytest.approx(history[0]["loss"])
    assert max(rate for _, rate in rates) == TRAINING.learning_rate
    assert all(speed > 0 for _, speed in curve(notebook.told, "model/tokens_per_second"))
    assert curve(notebook.told, "model/score") == [(entry["step"], entry["score"]) for entry in history]


def test_a_second_training_goes_on_where_the_first_ended(task, notebook, tmp_path):
    with track_with(["notebook"], "small", tmp_path):
        with tracked_as("baseline"), tracked_as("1-distill.labels"):
            _, history = trained(task)
        with untracked():
            trained(task)
        with tracked_as("results"):
            track({"accuracy (all)": 0.5})
        trained(task)
    track({"accuracy": 0.25})
    last = history[-1]["step"]
    assert curve(notebook.told, "baseline/1-distill.labels/loss")[-1][0] == last
    assert curve(notebook.told, "results/accuracy _all_") == [(last, 0.5)]
    assert [step for step, _ in curve(notebook.told, "model/loss")] == list(range(last + 1, 2 * last + 1))
    assert not [values for what, *values in notebook.told if values and "accuracy" in values[0]]


def test_a_point_is_the_mean_of_its_steps(notebook, tmp_path):
    with track_with(["notebook"], "long", tmp_path):
        log = TrainingLog("model", 8, 3)
        for step in range(1, 9):
            log.step(step, {"one": float(step), "two": 1.0}, 0.1, 5)
    assert curve(notebook.told, "model/loss") == [(3, 3.0), (6, 6.0), (8, 8.5)]
    assert curve(notebook.told, "model/loss.two") == [(3, 1.0), (6, 1.0), (8, 1.0)]


@pytest.mark.parametrize("what", ["start", "config", "log", "finish"])
def test_a_tracker_that_fails_ends_no_training(what, task, notebook, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(notebook, "fails", what)
    expected, _ = trained(task)
    with caplog.at_level(logging.WARNING), track_with(["notebook"], "small", tmp_path):
        digest, _ = trained(task)
    assert digest == expected
    said = "tracker notebook failed, so the run goes on without it: no route to host"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_checkpoint_knows_no_tracker(task, notebook, tmp_path):
    often = TRAINING.model_copy(update={"checkpoint_seconds": 0.0})
    with track_with(["notebook"], "small", tmp_path):
        found = trained(task, often, tmp_path / "working")
    assert trained(task, often, tmp_path / "working") == found, "with its times: it was found, not trained anew"


def test_unknown_and_missing_trackers(monkeypatch):
    monkeypatch.setattr(known, "get_available_trackers", list)
    assert tracker_problems(["mlflow", "tensorbord"]) == [
        "track: mlflow is not installed; run: pip install mlflow",
        "track: unknown tracker 'tensorbord'; did you mean 'tensorboard'?",
    ]
    assert tracker_problems([]) == []


RECIPE = """\
name: small
task: {kind: classification, data: data, max_length: 16}
teacher: {model: teacher}
student: {from: teacher, layers: [0]}
training: {max_steps: 3, batch_size: 4}
steps:
  - distill.logits: {}
evaluate: {latency: null}
"""


@pytest.fixture
def scene(tmp_path, task, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    write_data(task, tmp_path / "data")
    from compress.artifact.artifact import Artifact

    Artifact.from_model(tiny_taskmodel("bert", task.spec)).save("teacher")
    return tmp_path


def test_a_recipe_is_tracked_from_its_values_to_its_results(scene, notebook):
    plain = run_recipe(parse_recipe(RECIPE), scene / "plain")
    done = run_recipe(parse_recipe(RECIPE, overrides=["track=notebook"]), scene / "tracked")
    assert done.artifact.digest == plain.artifact.digest
    config = next(values[0] for what, *values in notebook.told if what == "config")
    assert config["task.data"] == "data"
    assert config["student.layers.0"] == 0
    assert len(curve(notebook.told, "1-distill.logits/loss")) == 3, "a dry run is not told"
    score = next(result for result in done.results if result.name == "small").scores["accuracy"]
    assert [value for _, value in curve(notebook.told, "results/small/accuracy")] == [score]
    resumed = run_recipe(parse_recipe(RECIPE), scene / "tracked", resume=True)
    assert resumed.artifact.lineage == done.artifact.lineage


def test_what_the_page_says(task, notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    field, code = re.findall(r"```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert parse_recipe(RECIPE + field).trackers == ("tensorboard",)
    exec(code.replace("tensorboard", "notebook"), {"student": tiny_taskmodel("bert", task.spec), "task": task})
    assert notebook.told[0] == ("project", "my-project")
    assert curve(notebook.told, "model/score")


def test_tensorboard(scene):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_recipe(parse_recipe(RECIPE, overrides=["track=tensorboard"]), scene / "out")
    found = EventAccumulator(str(scene / "out" / "tracking" / "small"))
    found.Reload()
    assert [event.step for event in found.Scalars("1-distill.logits/loss")] == [1, 2, 3]
    assert "results/small/accuracy" in found.Tags()["scalars"]


def test_a_tracker_that_is_not_installed_is_an_error_of_the_recipe(scene, monkeypatch):
    monkeypatch.setattr(known, "get_available_trackers", list)
    (scene / "recipe.yaml").write_text(RECIPE + "track: [mlflow]\n")
    from compress.recipe import read_recipe

    with pytest.raises(UserError) as error:
        run_recipe(read_recipe("recipe.yaml"), scene / "out")
    assert error.value.problems == ("recipe.yaml:9: track: mlflow is not installed; run: pip install mlflow",)
