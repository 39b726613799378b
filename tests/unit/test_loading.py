"""Whatever names a model (teacher, student, ``against``, ``start``, a base) opens whatever ``compress.load`` opens."""

import re
from pathlib import Path

import pytest

from compress.artifact.artifact import Artifact, load, load_model
from compress.engine.pipeline import run_recipe
from compress.engine.preview import preview
from compress.engine.several_tasks import starts
from compress.engine.steps import run
from compress.recipe import Recipe, recipe_from_plain
from compress.recipe.blocks import TeacherBlock
from compress.registry import get
from compress.replace.theseus import Theseus
from compress.student.student import Student
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

QUICK = {"max_steps": 1, "batch_size": 8}
MADE = {
    "a plain model": ("prune.layers", {"keep": [0, 2]}),
    "pruned heads": ("prune.heads", {"heads": {0: [0], 1: [1, 2]}}),
    "packed weights": ("quantize.weights", {}),
    "early exits": ("distill.early_exit", {"training": QUICK}),
    "a BiLSTM": ("distill.bilstm", {"hidden_size": 8, "training": QUICK}),
}
"""Name of an artifact -> the step that makes it, and its fields."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A folder with data, a standard model, and an artifact of every kind."""
    scene, task = tmp_path_factory.mktemp("loading"), tiny_task("classification")
    write_data(task, scene / "data")
    model = tiny_taskmodel("bert", task.spec)
    (scene / "stock").mkdir()
    save_taskmodel(model, scene / "stock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESS_HOME", str(scene / "home"))
        for name, (step, fields) in MADE.items():
            inputs = Inputs(train=task.train[:8], calibration=task.train[:8], teacher=ModelTeacher(model))
            run(Recipe(steps=(get(step)(**fields),)), model, inputs, dry_run_first=False).save(scene / name)
    return scene


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))


def answers(model):
    return predict(model, tiny_task("classification").test).answers


def plain(scene, teacher="stock", **more):
    """A recipe without steps."""
    task = {"kind": "classification", "data": str(scene / "data"), "max_length": 32}
    return recipe_from_plain({"task": task, "teacher": {"model": str(scene / teacher)}, **more})


@pytest.mark.parametrize("made", MADE)
def test_an_artifact_is_what_a_result_can_be_held_against(scene, made, tmp_path):
    wanted = {"against": str(scene / made), "latency": None}
    done = run_recipe(plain(scene, evaluate=wanted), tmp_path / "out")
    reference = done.results[0]
    assert reference.name == made
    assert [answer["label"] for answer in reference.kept.answers] == [
        answer["label"] for answer in answers(load(scene / made))
    ]


@pytest.mark.parametrize("made", MADE)
def test_an_artifact_can_teach_and_be_the_student(scene, made):
    digest = load(scene / made).digest
    prepared = preview(plain(scene, made))
    assert [teacher.digest for teacher in prepared.teachers] == [digest] == [prepared.student.digest]
    assert load_model(scene / made, tiny_spec()).digest == digest


@pytest.mark.parametrize("made", MADE)
def test_an_artifact_can_be_a_base(scene, made):
    block = TeacherBlock.model_validate({"model": str(scene / made), "finetune": {}})
    assert block.start(str(scene / made), tiny_spec(), 0).digest == load(scene / made).digest
    tasks = {name: tiny_task("classification") for name in ("one", "two")}
    values = {"kind": "classification", "data": str(scene / "data")}
    recipe = recipe_from_plain(
        {"tasks": dict.fromkeys(tasks, values), "teacher": {"model": str(scene / made), "finetune": {}}}
    )
    found = starts(recipe, tasks, str(scene / made), 0)
    assert {model.digest for model in found.values()} == {load(scene / made).digest}


def begun(scene, made):
    student = tiny_taskmodel("bert", tiny_spec(), seed=1)
    theseus = Theseus(groups=(2, 1), start=str(scene / made), training=QUICK)
    successor = theseus.network_for(student)
    theseus._begin(successor)
    return successor.model.bert.encoder.layer


def test_new_layers_start_from_an_artifact(scene):
    own, given = begun(scene, "a plain model"), load(scene / "a plain model").model.bert.encoder.layer
    assert own[1].output.dense.weight.equal(given[1].output.dense.weight)
    with pytest.raises(UserError, match=r"(?s)differ in shape: .*codes"):
        begun(scene, "packed weights")


def test_a_student_takes_its_shape_from_an_artifact(scene):
    own = tiny_taskmodel("bert", tiny_spec())
    student = Student.model_validate({"from": str(scene / "pruned heads")})
    for teacher in (own, Artifact.from_model(own)):
        assert student.source(teacher).digest == load(scene / "pruned heads").digest


def test_wrong_data_does_not_hide_that_a_model_is_right(scene, tmp_path):
    recipe = plain(scene, "pruned heads", task={"kind": "classification", "data": str(tmp_path / "nowhere")})
    with pytest.raises(UserError) as caught:
        preview(recipe)
    assert "pruned heads" not in str(caught.value)


@pytest.mark.parametrize("family", ["mpnet", "gpt2", "xlnet"])
def test_an_encoder_that_is_still_to_be_fine_tuned_is_not_blamed_for_what_is_wrong_elsewhere(scene, family, tmp_path):
    model = tiny_taskmodel(family, tiny_spec("embedding"))
    model.model.save_pretrained(tmp_path / "base")
    model.tokenizer.save_pretrained(tmp_path / "base")
    teacher = {"model": str(tmp_path / "base"), "finetune": QUICK}
    recipe = plain(scene, student={"from": str(tmp_path / "nowhere")}).model_copy(
        update={"teacher": TeacherBlock.model_validate(teacher)}
    )
    with pytest.raises(UserError) as caught:
        preview(recipe)
    (problem,) = caught.value.problems
    assert "nowhere" in problem


@pytest.mark.parametrize("made", ["stock", "a plain model"])
def test_the_task_of_the_recipe_is_asked_in_the_order_of_the_models_own_labels(scene, made):
    spec = tiny_spec().model_copy(update={"labels": ("good", "bad"), "max_length": 17, "class_weights": (3.0, 1.0)})
    found = load_model(scene / made, spec)
    assert found.task.labels == ("bad", "good")
    assert found.task.class_weights == (1.0, 3.0)
    assert found.encoder.settings.max_length == 17


@pytest.mark.parametrize("made", ["stock", "a plain model"])
def test_other_labels_are_refused(scene, made):
    spec = tiny_spec().model_copy(update={"labels": ("bad", "fine", "good")})
    with pytest.raises(UserError, match=r"the model answers \['bad', 'good'\], the task asks for .*'fine'"):
        load_model(scene / made, spec)


@pytest.mark.parametrize("made", ["stock", "a plain model"])
def test_a_reference_needs_a_head_of_its_own(scene, made):
    load_model(scene / made, tiny_spec("qa"))
    with pytest.raises(UserError, match="without a trained head for qa; fine-tune it first"):
        load_model(scene / made, tiny_spec("qa"), new_head=False)


def test_models_are_loaded_in_one_place():
    """Below ``artifact`` stand what reads the folders of artifacts, and a folder of our own that is packed."""
    below = {f"artifact/{name}.py" for name in ("artifact", "store", "modified_architecture")}
    below.add("quantize/bitsandbytes.py")
    compress = Path(__file__).parents[2] / "compress"
    found = {
        file.relative_to(compress).as_posix()
        for file in compress.rglob("*.py")
        if re.search(r"\bload_taskmodel\(", file.read_text(encoding="utf-8"))
    }
    assert found == below
