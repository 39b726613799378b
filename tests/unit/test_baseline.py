"""The baseline without a teacher: what it shares with the result, and what it does not."""

from types import SimpleNamespace

import pytest

from compress.artifact.record import Record
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.engine.baseline import (
    baseline_differences,
    baseline_notes,
    first_stage_notes,
    weak_teacher_notes,
    without_teacher,
)
from compress.engine.cost_plan import updates_of
from compress.recipe import Recipe, parse_recipe
from compress.registry import get
from eval.proof.paired_statistics import Interval
from teachers.training.config import Training
from tests.tiny import tiny_spec


def record(technique, **more):
    return Record(technique=technique, weights_after="w", **more)


def test_a_baseline_like_the_result_differs_in_nothing():
    history = [{"step": 5, "loss": 1.0}, {"step": 10, "loss": 0.5}]
    training = {"learning_rate": 3e-5, "epochs": 2, "keep": "best"}
    how = {"weights_before": "w", "data": {"train": "t", "validation": "v"}, "facts": {"history": history}}
    one = [record("source"), record("distill.logits", config={"training": training}, **how)]
    two = [record("source"), record("distill.labels", config={"training": training}, **how)]
    assert baseline_differences(one, two) == []
    how |= {"data": {"train": "u", "validation": "v"}, "facts": {"history": history[:1]}}
    other = [record("source"), record("distill.labels", config={"training": training | {"learning_rate": 1e-4}}, **how)]
    assert baseline_differences(one, other) == [
        "step 1, the training examples",
        "step 1, 10 optimizer steps, without teacher 5",
        "step 1, learning_rate 3e-05, without teacher 0.0001",
    ]


def test_the_baseline_makes_as_many_optimizer_steps_where_the_steps_learn_from_more():
    step = LogitDistillation(training=Training(epochs=2, batch_size=64))
    (alone,) = without_teacher(Recipe(steps=(step,)), labelled=6000, learned=30_000).steps
    assert isinstance(alone, LabelTraining)
    assert updates_of(alone.training, 6000) == updates_of(step.training, 30_000) == 938
    (alike,) = without_teacher(Recipe(steps=(step,)), labelled=6000, learned=6000).steps
    assert alike.training == step.training


@pytest.mark.parametrize("name", ["distilbert", "pkd", "tinybert", "minilm", "mobilebert", "cross_view", "combined"])
def test_the_defaults_of_a_distillation_are_those_of_its_baseline_whatever_was_said(name):
    fields = {"combined": {"objective": "distill.labels"}}.get(name, {})
    step = get(f"distill.{name}")(weight_decay=0.5, **fields)
    alone = step.without_teacher().training
    assert (alone.weight_decay, alone) == (0.5, step.training.model_copy(update={"epochs": alone.epochs}))
    again = type(step.without_teacher()).model_validate(step.without_teacher().model_dump(exclude_unset=True))
    assert again.training == alone


def test_a_baseline_that_learns_from_more_than_the_steps_is_as_short():
    step = LogitDistillation(training=Training(epochs=3, batch_size=10, score_epochs=2))
    (alone,) = without_teacher(Recipe(steps=(step,)), labelled=100, learned=30).steps
    assert updates_of(alone.training, 100) == updates_of(step.training, 30) == 9
    assert alone.training.score_epochs == 1


def test_the_student_is_scored_as_often_where_epochs_are_shorter():
    training = Training(epochs=2, batch_size=10)
    longer = training.as_long(40, as_on=1200)
    assert (longer.steps_on(40), longer.score_epochs) == (training.steps_on(1200), 30)
    assert longer.steps_on(40) // (4 * longer.score_epochs) == training.epochs
    capped = training.model_copy(update={"max_steps": 7}).as_long(40, as_on=1200)
    assert capped.steps_on(40) == 7


def test_equal_optimizer_steps_are_told():
    history = {"facts": {"history": [{"step": 5}, {"step": 1200}]}, "weights_before": "w"}
    one, two = ([record(name, **history)] for name in ("distill.logits", "distill.labels"))
    assert baseline_notes(one, two) == ["no teacher made 1,200 optimizer steps, as many as the result."]
    other = [record("distill.labels", weights_before="w", facts={"history": [{"step": 7}]})]
    (note,) = baseline_notes(one, other)
    assert note.startswith("no teacher differs in more than the teacher: step 1, 1,200 optimizer steps, without")
    assert baseline_notes([record("prune.layers")], [record("prune.layers")]) == []


FINETUNED = """
task: {kind: classification, data: data}
teacher: {model: base, finetune: {epochs: 1}}
student: {layers: 2}
steps: [distill.logits]
evaluate: {against: teacher}
"""


@pytest.mark.parametrize(
    ("recipe", "low", "verdict", "said"),
    [
        (FINETUNED, 0.03, "non-inferior", 1),
        (FINETUNED, -0.01, "non-inferior", 0),
        (FINETUNED, 0.03, "selection", 0),
        (FINETUNED.replace("against: teacher", "against: other"), 0.03, "non-inferior", 0),
        (FINETUNED.replace(", finetune: {epochs: 1}", ""), 0.03, "non-inferior", 0),
        (f"{FINETUNED}augment: {{unlabelled: more.txt}}", 0.03, "non-inferior", 0),
    ],
)
def test_a_teacher_that_is_outdone_beyond_chance_is_told(recipe, low, verdict, said):
    compared = SimpleNamespace(metric="accuracy", verdict=verdict, difference=Interval(0.08, low, 0.13))
    notes = weak_teacher_notes(parse_recipe(recipe), SimpleNamespace(name="small", comparison=compared))
    assert len(notes) == said
    for note in notes:
        assert note.startswith("small is better than its teacher, by 0.080 accuracy [0.030, 0.130]")
        assert "teacher.finetune: epochs, learning_rate" in note
    assert not weak_teacher_notes(parse_recipe(recipe), None)
    assert not weak_teacher_notes(parse_recipe(recipe), SimpleNamespace(name="small", comparison=None))


@pytest.mark.parametrize(("reached", "more"), [(0.9, ""), (0.8, " small is not above it, so on this data it brings")])
def test_what_a_first_stage_has_without_a_model(reached, more):
    """One relevant document stands first, another second: nDCG is the mean of 1 and 1 / log2(3)."""
    found = [{"candidates": ["a", "b"], "relevant": {name: 1}} for name in ("a", "b")]
    own = SimpleNamespace(name="small", scores={"ndcg@10": reached})
    (note,) = first_stage_notes(tiny_spec("reranking"), found, own)
    assert note.startswith(f"The order of the first stage alone (bm25) has ndcg@10 0.8155.{more}")
    assert (" small" in note) == bool(more)
    assert first_stage_notes(tiny_spec("reranking"), found, None) == [note.partition(" small")[0]]
    nearest = tiny_spec("reranking").model_copy(update={"first_stage": "/home/ann/embedder"})
    assert first_stage_notes(nearest, found, None) == [
        "The order of the first stage alone (embedder) has ndcg@10 0.8155."
    ]
    assert not first_stage_notes(tiny_spec("retrieval"), found, own)
