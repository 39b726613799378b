"""``distill.best_of``: each objective is trained as it is alone, and the best on the examples that choose is kept."""

import logging

import pytest
import torch

from compress import Inputs, UserError, run
from compress.distill.best_of import BestOf
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.engine.steps import step_notes
from compress.recipe import Recipe, parse_recipe, recipe_to_yaml
from eval.measurement import measure
from eval.task import Examples
from teachers.signals.model_teacher import ModelTeacher
from teachers.signals.predictions_teacher import PredictionsTeacher
from tests.tiny import tiny_task, tiny_taskmodel

HOW = {"epochs": 12, "learning_rate": 1e-3, "batch_size": 8}
SOFT = {"distill.logits": {"alpha": 1.0, "temperature": 1.0}}


def made(step, right, validation=True):
    """Return the result of a step whose teacher is always right or always wrong."""
    task = tiny_task("classification")
    other = {"good": "bad", "bad": "good"}
    said = [{**one, "label": one["label"] if right else other[one["label"]]} for one in task.train]
    teacher = PredictionsTeacher.read_from(said, task)
    chosen = task.train if validation else None
    inputs = Inputs(train=task.train, validation=chosen, teacher=teacher)
    return task, run(Recipe(steps=(step,)), tiny_taskmodel("bert", task.spec), inputs, dry_run_first=False)


@pytest.mark.parametrize("right", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_best_is_kept_and_is_what_its_objective_gives_alone(right):
    task, found = made(BestOf(of=[SOFT, "distill.labels"], **HOW), right)
    facts = found.lineage[-1].facts
    singles = [LogitDistillation(alpha=1.0, temperature=1.0, **HOW), LabelTraining(**HOW)]
    alone = [made(step, right)[1] for step in singles]
    scores = [measure(one, task, split="train").scores["accuracy"] for one in alone]
    assert list(facts["scores"].values()) == pytest.approx(scores)
    best = scores.index(max(scores))
    assert right or best == 1, "a teacher that is always wrong loses to the labels"
    assert found.digest == alone[best].digest
    assert facts["chosen"].startswith(str(best + 1))
    assert "examples that choose" in step_notes(found.lineage)[0]


def test_without_examples_that_choose_the_first_is_trained_alone():
    _, found = made(BestOf(of=[SOFT, "distill.labels"], **HOW), right=True, validation=False)
    _, alone = made(LogitDistillation(alpha=1.0, temperature=1.0, **HOW), right=True, validation=False)
    assert found.digest == alone.digest
    assert list(found.lineage[-1].facts["scores"].values()) == [None]
    assert "no other was trained" in step_notes(found.lineage)[0]


def test_the_dry_run_says_nothing_of_what_was_kept(caplog):
    task = tiny_task("classification")
    step = BestOf(of=["distill.labels", "distill.labels"], max_steps=1, batch_size=8)
    inputs = Inputs(train=task.train, validation=task.validation)
    with caplog.at_level(logging.INFO):
        run(Recipe(steps=(step,)), tiny_taskmodel("bert", task.spec), inputs)
    told = [record.getMessage() for record in caplog.records]
    assert "dry run of 1 steps" in told
    assert [line.partition(":")[0] for line in told if line.startswith("kept ")] == ["kept distill.labels"]
    assert not any("no other was trained" in line for line in told)


def test_it_stands_in_a_recipe_and_becomes_labels_without_a_teacher():
    text = "teacher: {model: t}\ntask: {kind: classification, data: d}\nsteps: [distill.best_of: {of: [%s]}]"
    recipe = parse_recipe(text % "{distill.logits: {loss: mse}}, distill.labels")
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe
    assert recipe.steps[0].without_teacher() == LabelTraining(training=recipe.steps[0].training)
    with pytest.raises(UserError, match="of"):
        parse_recipe(text % "distill.labels")


def test_an_empty_choice_counts_as_none():
    task = tiny_task("classification")
    step = BestOf(of=["distill.labels", "distill.labels"], max_steps=1, batch_size=8)
    inputs = Inputs(train=task.train, validation=Examples(()))
    found = run(Recipe(steps=(step,)), tiny_taskmodel("bert", task.spec), inputs, dry_run_first=False)
    assert len(found.lineage[-1].facts["scores"]) == 1


def test_labels_are_passed_over_as_often_as_gives_equal_optimizer_steps():
    """Of 40 texts 8 have labels: labels only makes the steps of 8 texts, the teacher those of all."""
    task = tiny_task("classification")
    teacher = PredictionsTeacher.read_from([dict(one) for one in task.train], task)
    some = [dict(one) if place < 8 else {"text": one["text"]} for place, one in enumerate(task.train)]
    step = BestOf(of=[SOFT, "distill.labels"], **HOW | {"epochs": 2})
    inputs = Inputs(train=Examples(some, "train"), validation=task.validation, teacher=teacher)
    found = run(Recipe(steps=(step,)), tiny_taskmodel("bert", task.spec), inputs, dry_run_first=False)
    facts = found.lineage[-1].facts
    assert (facts["steps"], list(facts["learned_from"].values())) == (10, [40, 8])
    assert "each in 10 optimizer steps: distill.logits temperature 1.0 alpha 1.0 on 40" in step_notes(found.lineage)[0]
    assert step_notes(found.lineage)[0].endswith("on 40 examples, distill.labels on 8.")
    labels = LabelTraining(**HOW | {"epochs": 10, "score_epochs": 5, "max_steps": 10})
    alone = run(
        Recipe(steps=(labels,)),
        tiny_taskmodel("bert", task.spec),
        Inputs(train=Examples(some[:8], "train"), validation=task.validation),
        dry_run_first=False,
    )
    score = measure(alone, task, split="validation").scores["accuracy"]
    assert list(facts["scores"].values())[1] == pytest.approx(score)


LONG, PAIR = ["emma", "lives", "in", "lima"] * 15, {"text_a": "the book is sad", "text_b": "the song is happy"}
TAGGED = [{"tokens": LONG, "tags": ["O"] * len(LONG)} if place < 4 else {"tokens": LONG} for place in range(12)]
PAIRS = [{**PAIR, "label": float(place < 4)} for place in range(12)]


@pytest.mark.parametrize(
    ("kind", "train", "of"),
    [
        ("tagging", TAGGED, [{"distill.logits": {"alpha": 1.0}}, "distill.labels"]),
        ("embedding", PAIRS, ["distill.embedding", "distill.contrastive"]),
    ],
)
def test_steps_are_equal_where_an_example_is_several_inputs(kind, train, of, monkeypatch, tmp_path):
    """A long sentence is windows, a pair of an embedding two texts; 4 of 12 have a label, or belong together."""
    task, steps, trained = tiny_task(kind), [], BestOf.train

    def counting(*args, **kwargs):
        history = trained(*args, **kwargs)
        steps.append(history[-1]["step"])
        return history

    monkeypatch.setattr(BestOf, "train", counting)
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=5), cache=tmp_path)
    inputs = Inputs(train=Examples(train, "train"), validation=task.validation[:8], teacher=teacher)
    step = BestOf(of=of, epochs=2, batch_size=4)
    facts = step.apply(tiny_taskmodel("bert", task.spec), inputs, torch.Generator().manual_seed(0)).facts
    assert steps[0] == steps[1] == facts["steps"] > 6
    assert list(facts["learned_from"].values()) == [12, 4]
