"""The speed of early exits: chosen against a slow loop, on examples that nothing else uses, kept with the model."""

import functools
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from compress.artifact.artifact import Artifact
from compress.distill.components.exit_speed import SPEEDS, every_answer, fastest, first_exit, held_out
from compress.distill.early_exit import EarlyExit
from compress.engine.preparation import prepare
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.recipe import Recipe, recipe_from_plain
from compress.technique import Inputs, TrainedTechnique
from eval.inference import predict
from eval.task import Examples
from teachers.taskmodel import save_taskmodel
from tests.parity.test_distill_early_exit import with_exits
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

AUTO = {"speed": "auto", "branch_size": 16}
OTHER = {"bad": "good", "good": "bad"}


@functools.cache
def source():
    return tiny_taskmodel("bert", tiny_task().spec)


@functools.cache
def task():
    """Return a task whose labels are the model's own answers, but for every eighth."""
    given = tiny_task(examples=64)
    splits = {}
    for name, examples in given.splits.items():
        answers = [answer["label"] for answer in predict(source(), examples).answers]
        labels = [OTHER[label] if number % 8 == 0 else label for number, label in enumerate(answers)]
        splits[name] = Examples([{**e, "label": label} for e, label in zip(examples, labels, strict=True)], name)
    return replace(given, splits=splits)


def labels_at(model, examples, speed):
    model.model.config.speed = speed
    return [answer["label"] for answer in predict(model, examples).answers]


def accuracy(labels, truths):
    return sum(a == b for a, b in zip(labels, truths, strict=True)) / len(truths)


def slowly(model, examples, truths, tolerance, labels_at=labels_at):
    """Run the model at every speed, until one loses too much."""
    best, chosen = accuracy(labels_at(model, examples, 0.0), truths), 0.0
    for step in range(1, 101):
        if best - accuracy(labels_at(model, examples, step / 100), truths) > tolerance + 1e-9:
            break
        chosen = step / 100
    return chosen


def test_every_classifier_answers_as_when_the_others_do_not_run():
    model, examples = with_exits(), tiny_task().validation
    model.model.double()  # in float32, a product of fewer rows rounds elsewhere
    logits = every_answer(model, examples)
    assert logits.shape == (40, 3, 2)
    for speed in SPEEDS[::10]:
        model.model.config.speed = speed
        found, exits = predict(model, examples), first_exit(logits, speed)
        assert [exit_ + 1 for exit_ in exits.tolist()] == found.layers
        np.testing.assert_allclose(np.stack(found.logits), logits[torch.arange(40), exits], rtol=0, atol=1e-5)


@functools.cache
def labels_of_60(speed):
    """Return the labels of the model at a speed, which the tests of several tolerances share."""
    return labels_at(with_exits(), tiny_task(examples=60).validation, speed)


@pytest.mark.parametrize("tolerance", [0.0, 0.02, 0.05, 0.1, 0.3, 0.999])
@pytest.mark.parametrize("labelled", [True, False])
def test_the_choice_is_the_slow_loop(labelled, tolerance):
    model, task = with_exits(), tiny_task(examples=60)
    truths = [example["label"] for example in task.validation] if labelled else labels_of_60(0.0)
    examples = task.validation if labelled else Examples([{"text": example["text"]} for example in task.validation])
    expected = slowly(model, examples, truths, tolerance, lambda _model, _examples, speed: labels_of_60(speed))
    assert fastest(model, examples, tolerance) == expected


def test_the_choice_differs_with_what_may_be_lost():
    model, task = with_exits(), tiny_task(examples=60)
    texts = Examples([{"text": example["text"]} for example in task.validation])
    speeds = [fastest(model, texts, tolerance) for tolerance in (0.0, 0.05, 0.2, 0.999)]
    assert speeds == sorted(speeds)
    assert speeds[-1] == 1.0
    assert len(set(speeds)) > 2


def test_what_is_held_out_is_a_tenth_and_not_learned_from():
    examples = tiny_task(examples=50).train
    rest, apart = held_out(examples, 7)
    assert (len(rest), len(apart), apart.name) == (45, 5, "held-out train")
    assert sorted(map(str, [*rest, *apart])) == sorted(map(str, examples))
    assert held_out(examples, 7)[1].digest == apart.digest != held_out(examples, 8)[1].digest
    assert [len(part) for part in held_out(Examples(examples[0:1].items), 7)] == [1, 1]
    many = Examples([{"text": str(number), "label": "bad"} for number in range(30_000)])
    assert [len(part) for part in held_out(many, 7)] == [30_000 - 2048, 2048]


@pytest.fixture
def learned(monkeypatch):
    """Give the branches weights that are certain of some texts; return the examples that each training was given."""
    seen = []

    def train(self, student, inputs, *_):
        seen.append(inputs.train)
        student.model.branches.load_state_dict(with_exits().model.branches.state_dict())
        return []

    monkeypatch.setattr(TrainedTechnique, "train", train)
    return seen


@pytest.mark.parametrize("tolerance", [0.3, 0.45])
def test_a_speed_is_chosen_on_the_validation_examples_that_report_nothing(tolerance, learned):
    inputs = Inputs(train=task().train, validation=task().validation)
    result = run(Recipe(steps=(EarlyExit(**AUTO, tolerance=tolerance),)), source(), inputs)
    facts = result.lineage[-1].facts
    assert learned[-1].digest == task().train.digest
    assert facts["measured_on"] == "64 validation examples"
    truths = [example["label"] for example in task().validation]
    assert facts["speed"] == slowly(replace(result), task().validation, truths, tolerance)
    speed = result.model.config.speed = facts["speed"]
    assert facts["mean_layers"] == np.mean(predict(result, task().validation).layers)
    own = accuracy(labels_at(result, task().validation, speed), truths)
    assert facts["score_loss"] == pytest.approx(accuracy(labels_at(result, task().validation, 0.0), truths) - own)
    assert facts["score_loss"] <= tolerance + 1e-9
    assert result.lineage[-1].data["selection"] == task().validation.digest


def test_without_examples_to_choose_on_a_part_of_train_is_held_out(learned):
    result = run(Recipe(seed=5, steps=(EarlyExit(**AUTO, tolerance=0.45),)), source(), Inputs(train=task().train))
    rest, apart = held_out(task().train, 5)
    assert learned[-1].digest == rest.digest
    facts = result.lineage[-1].facts
    truths = [example["label"] for example in apart]
    assert facts["measured_on"] == f"{len(apart)} held-out train examples"
    assert facts["speed"] == slowly(replace(result), apart, truths, 0.45)


@pytest.mark.parametrize("split", ["validation", "auto"])
def test_the_steps_of_a_recipe_never_see_the_examples_that_report(split, tmp_path):
    write_data(task(), tmp_path / "data")
    (tmp_path / "teacher").mkdir()
    save_taskmodel(source(), tmp_path / "teacher")
    plain = {
        "name": "r",
        "seed": 1,
        "task": {"kind": "classification", "data": str(tmp_path / "data")},
        "teacher": {"model": str(tmp_path / "teacher")},
        "steps": [{"distill.early_exit": {"speed": "auto", "tolerance": 0.01}}],
        "evaluate": {"against": "teacher", "split": split},
    }
    prepared = prepare(recipe_from_plain(yaml.safe_load(yaml.safe_dump(plain)), "r"))
    assert prepared.roles.report == {"validation": "validation", "auto": "test"}[split]
    seen = (prepared.inputs.train, prepared.inputs.validation, prepared.inputs.calibration)
    reported = prepared.task.splits[prepared.roles.report].digest
    assert reported not in {part.digest for part in seen if part is not None}
    assert (prepared.inputs.validation is None) is (split == "validation" and len(task().train) < 200)


def test_the_chosen_speed_is_saved_and_exported(learned, tmp_path):
    technique = EarlyExit(**AUTO, tolerance=0.45)
    result = run(
        Recipe(steps=(technique,)),
        source(),
        Inputs(train=task().train, validation=task().validation),
    )
    speed = result.lineage[-1].facts["speed"]
    assert speed not in (0.0, 0.5)
    loaded = Artifact.from_pretrained(result.save(tmp_path / "saved"))
    assert loaded.model.config.speed == speed
    assert loaded.lineage[-1].config["speed"] == "auto"
    export_onnx(loaded, tmp_path / "onnx", examples=task().validation)
    runtime = Runtime(tmp_path / "onnx")
    assert runtime.manifest["speed"] == speed
    assert predict(runtime, task().validation).layers == predict(result, task().validation).layers


def test_a_fixed_speed_tells_what_it_saves_and_costs(learned, caplog):
    fields = {**AUTO, "speed": 0.4}
    inputs = Inputs(train=task().train, validation=task().validation)
    with caplog.at_level(logging.INFO, "compress.distill.early_exit"):
        result = run(Recipe(steps=(EarlyExit(**fields),)), source(), inputs, dry_run_first=False)
    facts = result.lineage[-1].facts
    truths = [example["label"] for example in task().validation]
    whole, early = (accuracy(labels_at(result, task().validation, speed), truths) for speed in (0.0, 0.4))
    assert facts["score_loss"] == pytest.approx(whole - early)
    assert facts["mean_layers"] == np.mean(predict(result, task().validation).layers) < 3
    (line,) = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert line == (
        f"distill.early_exit: at speed 0.4 {facts['mean_layers']:.2f} of 3 layers run on average, accuracy "
        f"{early - whole:+.4f} against all of them, on 64 validation examples"
    )


@pytest.mark.parametrize(("lost", "told"), [(0.073, True), (0.005, False)])
def test_a_fixed_speed_that_loses_more_than_the_tolerance_is_warned_of(lost, told, learned, monkeypatch, caplog):
    monkeypatch.setattr("compress.distill.components.exit_speed.score_loss", lambda *_: lambda _: lost)
    inputs = Inputs(train=task().train, validation=task().validation)
    run(Recipe(steps=(EarlyExit(speed=0.9, branch_size=16),)), source(), inputs, dry_run_first=False)
    warned = "a speed of 0.9 loses 0.0730 of accuracy on this task; speed: auto chooses one that loses at most its tole"
    assert (warned in caplog.text) == told


@pytest.mark.parametrize("tolerance", [0.0, 0.02, 0.1])
def test_a_branch_that_is_certain_and_wrong_is_never_left_by_beyond_the_floor(tolerance, monkeypatch):
    """Every branch is certain and wrong for a tenth of the inputs: no speed above 0 keeps a lower floor."""
    logits = torch.zeros(50, 3, 2)
    logits[:, :, 0] = 20.0
    logits[:5, :2] = torch.tensor([0.0, 20.0])
    model = with_exits()
    monkeypatch.setattr("compress.distill.components.exit_speed.every_answer", lambda *_: logits)
    chosen = fastest(model, Examples([{"text": str(number)} for number in range(50)]), tolerance)
    assert chosen == (1.0 if tolerance >= 0.1 else 0.0)


def test_where_no_speed_is_good_enough_all_layers_run(learned, monkeypatch, caplog):
    monkeypatch.setattr("compress.distill.components.exit_speed.score_loss", lambda *_: lambda _: 0.5)
    result = run(Recipe(steps=(EarlyExit(**AUTO),)), source(), Inputs(train=task().train))
    assert result.model.config.speed == result.lineage[-1].facts["speed"] == 0.0
    assert set(predict(result, task().validation).layers) == {3}
    assert "every speed loses more than the tolerance of 0.005, so all layers run" in caplog.text


def test_a_tolerance_without_a_choice_is_refused():
    with pytest.raises(ValueError, match=r"tolerance is for speed: auto, and speed is 0\.3; leave one of them out"):
        EarlyExit(speed=0.3, tolerance=0.01)
    with pytest.raises(ValueError, match="speed"):
        EarlyExit(speed="fast")
    for config in (EarlyExit(speed=0.3), EarlyExit(speed="auto", tolerance=0.02)):
        assert EarlyExit.model_validate(config.model_dump()) == config
