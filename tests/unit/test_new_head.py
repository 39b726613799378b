"""An artifact that is loaded for another kind of task: its encoder stays, its head is new, its lineage says so."""

import pytest
import torch

from compress.artifact.artifact import Artifact, load
from compress.artifact.record import HEAD
from compress.distill.labels import LabelTraining
from compress.engine.pipeline import run_recipe
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.student.student import Student
from compress.technique import Inputs
from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder, head_parameters
from tests.recipes.test_recipes import write_data
from tests.tiny import FAMILIES, tiny_spec, tiny_task, tiny_taskmodel

KINDS = ("classification", "regression", "tagging", "qa")
WORDS = [family for family in FAMILIES if family != "xlnet"]


@pytest.fixture
def folder(tmp_path):
    """Return the folder of an artifact that was trained on text."""
    task = tiny_task("masked-lm")
    steps = (LabelTraining(max_steps=2, batch_size=8),)
    source = tiny_taskmodel("bert", task.spec)
    return run(Recipe(steps=steps), source, Inputs(train=task.train), dry_run_first=False).save(tmp_path / "words")


def encoder_of(model):
    """Return the tensors of the encoder without those of a pooler, which some heads bring along."""
    state = base_encoder(model.model).state_dict()
    return {name: tensor for name, tensor in state.items() if not name.startswith("pooler.")}


def same_encoder(one, other):
    first, second = encoder_of(one), encoder_of(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_language_model_is_loaded_for_any_task(kind, folder, tmp_path):
    task, words = tiny_task(kind), load(folder)
    found = Artifact.from_pretrained(folder, task, seed=5)
    assert found.task == task.spec
    assert same_encoder(found, words)
    record = found.lineage[-1]
    assert [each.technique for each in found.lineage] == ["source", "distill.labels", HEAD]
    assert record.config == {"kind": kind, "labels": list(task.spec.labels), "from": "masked-lm"}
    assert (record.seed, record.weights_before, record.weights_after) == (5, words.digest, found.digest)
    assert record.size_before["parameters"] == words.size().parameters
    assert record.size_after["parameters"] == found.size().parameters

    again = load(found.save(tmp_path / "again"))
    assert (again.lineage, again.task, again.digest) == (found.lineage, task.spec, found.digest)
    inputs = Inputs(train=task.train, validation=task.validation)
    trained = run(Recipe(steps=(LabelTraining(max_steps=2, batch_size=8),)), found, inputs)
    assert load(trained.save(tmp_path / "trained")).digest == trained.digest


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", [*KINDS, "masked-lm"])
def test_every_kind_becomes_every_other(before, after):
    source = Artifact.from_model(tiny_taskmodel("bert", tiny_spec(before)))
    task = tiny_task(after)
    found = source.with_task(task.spec)
    assert same_encoder(found, source)
    logits = found.forward(found.encoder.collate(found.encoder.encode(task.validation[:2])))
    assert logits.shape[-1] == (found.model.config.vocab_size if after == "masked-lm" else task.spec.outputs)


@pytest.mark.parametrize("family", WORDS)
def test_every_family_takes_a_new_head(family):
    kind = "causal-lm" if family == "gpt2" else "masked-lm"
    source = Artifact.from_model(tiny_taskmodel(family, tiny_spec(kind)))
    before = source.digest
    one, other, third = (source.with_task(tiny_spec(), seed) for seed in (1, 1, 2))
    assert one.digest == other.digest != third.digest
    assert same_encoder(one, source)
    assert source.digest == before
    assert set(head_parameters(one.model)) != set(head_parameters(source.model))


def test_a_family_without_the_head_is_refused():
    source = Artifact.from_model(tiny_taskmodel("xlnet", tiny_spec()))
    with pytest.raises(UserError, match="xlnet has no masked-language head"):
        source.with_task(tiny_spec("masked-lm"))


@pytest.mark.parametrize("with_teacher", [False, True])
def test_a_recipe_fine_tunes_a_student_from_such_a_folder(with_teacher, folder, tmp_path):
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    blocks = {"task": {"kind": "classification", "data": str(tmp_path / "data")}}
    if with_teacher:
        blocks["teacher"] = {"model": str(Artifact.from_model(tiny_taskmodel("bert", task.spec)).save(tmp_path / "t"))}
    steps = (LabelTraining(max_steps=2, batch_size=8),)
    recipe = Recipe(name="fine", student=Student(from_=str(folder)), steps=steps, **blocks)
    artifact = run_recipe(recipe, tmp_path / "out").artifact
    names = ["source", "distill.labels", HEAD, "student", "distill.labels"]
    assert [record.technique for record in artifact.lineage] == names
    assert load(tmp_path / "out" / "model").digest == artifact.digest
    kept = load(folder).lineage
    assert artifact.lineage[: len(kept)] == kept


def test_a_teacher_is_fine_tuned_from_such_a_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    saved = Artifact.from_pretrained(folder, tiny_spec()).save(tmp_path / "labelled")
    for number, (base, kind) in enumerate([(folder, "classification"), (saved, "tagging")]):
        data = tmp_path / kind
        write_data(tiny_task(kind), data)
        recipe = Recipe(
            name="fine",
            task={"kind": kind, "data": str(data)},
            teacher={"model": str(base), "finetune": {"max_steps": 2, "batch_size": 8}},
            steps=(LabelTraining(max_steps=2, batch_size=8),),
        )
        artifact = run_recipe(recipe, tmp_path / f"out-{number}").artifact
        assert artifact.task.kind == kind
        assert load(tmp_path / f"out-{number}" / "model").digest == artifact.digest
