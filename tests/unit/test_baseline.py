"""The baseline without a teacher: what it shares with the result, and what it does not."""

from compress.artifact.record import Record
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.engine.baseline import baseline_differences, without_teacher
from compress.engine.cost_plan import updates_of
from compress.recipe import Recipe
from teachers.training.config import Training


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
