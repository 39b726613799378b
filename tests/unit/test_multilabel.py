"""Several labels a text: its data, and a model from training over thresholds to exports and their programs."""

import json
import math

import pandas
import pytest
import torch
import transformers

from compress import Artifact, Inputs, Recipe, load, run
from compress.distill.distilbert import DistilBertDistillation
from compress.distill.early_exit import EarlyExit
from compress.distill.ensemble import EnsembleDistillation
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.distill.tinybert import TinyBertDistillation
from compress.engine.preparation import teachers_of
from compress.export import export_onnx, export_web
from compress.export.runtime.answering import Runtime
from compress.recipe.from_yaml import recipe_from_plain
from eval.data.loading import Task, load_task
from eval.encoder_settings import EncoderSettings
from eval.errors import UserError
from eval.inference import predict
from eval.kinds.kind_registry import kind_of
from eval.kinds.multilabel import sigmoid
from eval.measurement import measure
from eval.task import TaskSpec
from teachers import finetune
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.model_teacher import ModelTeacher
from teachers.signals.same_tokens import cuts_alike, reads_alike
from teachers.taskmodel import load_taskmodel, save_taskmodel
from teachers.training.config import Training
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel
from tests.unit.test_runtime import program

TEXTS = ("ann is here", "a warm film", "nothing")
WANTED = [["joy", "love"], ["anger"], []]
SHORT = Training(epochs=1, learning_rate=1e-3, batch_size=16)
QUICK = Training(epochs=12, learning_rate=3e-3, batch_size=16)


def labels_of(task, split="validation"):
    return [list(example["labels"]) for example in task.splits[split]]


FORMS = {
    "lists": [{"labels": ["love", "joy"]}, {"labels": ["anger"]}, {"labels": []}],
    "commas": [{"labels": "love, joy"}, {"labels": "anger"}, {"labels": ""}],
    "bars": [{"emotions": "joy|love"}, {"emotions": "anger"}, {"emotions": " "}],
    "python": [{"labels": "['love', 'joy']"}, {"labels": '["anger"]'}, {"labels": "[]"}],
    "numpy": [{"labels": "['love' 'joy']"}, {"labels": "['anger']"}, {"labels": "[]"}],
    "columns": [
        {"anger": 0, "joy": 1, "love": 1, "likes": 7},
        {"anger": 1, "joy": 0, "love": 0, "likes": 0},
        {"anger": 0, "joy": 0, "love": 0, "likes": 1},
    ],
    "by label": [
        {"labels": {"anger": 0, "joy": 1.0, "love": True}},
        {"labels": {"anger": 1}},
        {"labels": {"joy": 0}},
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_labels_is_read(form, tmp_path):
    rows = [{"text": text, **row} for text, row in zip(TEXTS, FORMS[form], strict=True)]
    assert labels_of(load_task("multilabel", rows)) == WANTED
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task("multilabel", tmp_path / "some.jsonl")
    assert (labels_of(task), task.spec.labels) == (WANTED, ("anger", "joy", "love"))
    frame = pandas.DataFrame(rows)
    assert labels_of(Task.from_pandas(frame, "multilabel")) == WANTED
    if form != "by label":
        frame.to_csv(tmp_path / "some.csv", index=False)
        assert labels_of(load_task("multilabel", tmp_path / "some.csv")) == WANTED
        frame.to_parquet(tmp_path / "some.parquet")
        assert labels_of(load_task("multilabel", tmp_path / "some.parquet")) == WANTED


def test_columns_and_rows_of_0_and_1_by_named_labels():
    rows = [{"said": "a", "love": 1, "new": 0, "joy": "1"}, {"said": "b", "love": 0, "new": 1, "joy": "0"}]
    task = load_task("multilabel", rows, labels=("joy", "love"), columns={"text": "said"})
    assert labels_of(task) == [["joy", "love"], []]
    assert task.spec.labels == ("joy", "love")
    several = [{"text": "a", "labels": [1.0, 0.0]}, {"text": "b", "labels": [1, 1]}]
    assert labels_of(load_task("multilabel", several, labels=("joy", "love"))) == [["joy"], ["joy", "love"]]
    whole = load_task("multilabel", [{"text": "a", "labels": "arts, crafts"}], labels=("arts, crafts", "joy"))
    assert labels_of(whole) == [["arts, crafts"]]
    numbers = load_task("multilabel", [{"text": "a", "labels": "3,17"}], label_map={"3": "joy", "17": "anger"})
    assert labels_of(numbers) == [["anger", "joy"]]


def test_a_test_split_without_labels_is_unlabelled():
    splits = {"train": [{"text": "a", "x": 1, "y": 0}], "test": [{"text": "b"}]}
    task = load_task("multilabel", splits)
    assert dict(task.test[0]) == {"text": "b"}
    assert task.spec.labels == ("x", "y")


def test_a_label_whose_column_has_no_1_in_train_is_one_of_the_others(tmp_path):
    """It would be dropped from their truths, without a word."""
    (tmp_path / "train.csv").write_text("text,joy,anger\na,1,0\nb,0,0\n")
    (tmp_path / "test.csv").write_text("text,joy,anger\nc,1,1\nd,0,1\n")
    task = load_task("multilabel", tmp_path)
    assert task.spec.labels == ("anger", "joy")
    assert [item["labels"] for item in task.test] == [["anger", "joy"], ["anger"]]
    renamed = load_task("multilabel", tmp_path, label_map={"anger": "rage"})
    assert renamed.spec.labels == ("joy", "rage")
    assert [item["labels"] for item in renamed.test] == [["joy", "rage"], ["rage"]]


@pytest.mark.parametrize(
    ("rows", "how", "said"),
    [
        ([{"labels": [0, 1, 0]}], {}, "'labels' names '0' twice; a row of 0 and 1 needs their names"),
        ([{"labels": ["joi"]}], {"labels": ("joy", "love")}, "unknown label 'joi'; did you mean 'joy'?"),
        ([{"labels": 7}], {}, "'labels' must be a list, a text with commas, or 0 and 1 by label, not 7"),
        ([{"labels": None}], {}, "the field 'labels' is empty"),
        ([{"a": 1, "b": 0}, {"a": 1, "b": 3}], {}, "'b' was taken for a label, and must be 0 or 1, not 3"),
        ([{"labels": []}], {}, "labels: no split has any"),
    ],
)
def test_what_is_no_set_of_labels_is_told(rows, how, said):
    with pytest.raises(UserError) as caught:
        load_task("multilabel", [{"text": "a", **row} for row in rows], **how)
    assert said in str(caught.value)


def test_only_this_kind_has_thresholds_to_choose():
    with pytest.raises(UserError, match="choose_thresholds: classification has no thresholds; leave it out"):
        load_task("classification", [{"text": "a", "label": "x"}], choose_thresholds=True)
    with pytest.raises(ValueError, match="thresholds: got 1, multilabel of these labels has 2"):
        TaskSpec(kind="multilabel", labels=("a", "b"), metric="micro_f1", thresholds=(0.5,))
    assert "thresholds" not in TaskSpec(kind="classification").model_dump()
    with pytest.raises(ValueError, match="thresholds must be a list of numbers"):
        EncoderSettings.from_dict({"kind": "multilabel", "thresholds": ["a"]})


def test_thresholds_decide_what_is_answered():
    kind = kind_of("multilabel")
    settings = EncoderSettings(kind="multilabel", labels=("a", "b", "c"), thresholds=(0.2, 0.5, 0.9))
    logits = [math.log(p / (1 - p)) for p in (0.25, 0.45, 0.85)]
    answer = kind.one_answer(settings, torch.tensor(logits).numpy())
    assert answer == {"labels": ["a"], "probabilities": pytest.approx({"a": 0.25, "b": 0.45, "c": 0.85}, abs=1e-5)}
    usual = EncoderSettings(kind="multilabel", labels=("a", "b", "c"))
    assert kind.one_answer(usual, torch.tensor(logits).numpy())["labels"] == ["c"]
    # Of the labels that the other answers otherwise, the one that lies farthest from its threshold.
    one, other = torch.tensor([1.0, -2.0, 0.5]).numpy(), torch.tensor([1.0, 1.0, -3.0]).numpy()
    assert kind.regret(usual, None, one, other).tolist() == [2.0]
    assert kind.regret(usual, None, one, one).tolist() == [0.0]
    before, now = kind.one_answer(usual, one), kind.one_answer(usual, other)
    assert kind.turned(("a", "b", "c"), before, now, other) == pytest.approx([3.0, 3.5], abs=1e-4)
    assert kind.turned(("a", "b", "c"), before, before, one) is None


@pytest.fixture(scope="module")
def task():
    found = tiny_task("multilabel", examples=80)
    return Task(found.spec.model_copy(update={"choose_thresholds": True}), found.splits, "tiny")


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    """A tiny model that learned the task, with thresholds of its own, from its folder."""
    model = tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, validation=task.validation)
    folder = tmp_path_factory.mktemp("multilabel") / "model"
    run(Recipe(steps=(LabelTraining(training=QUICK),)), model, inputs).save(folder)
    return load(folder)


def test_it_is_learned_with_thresholds_of_its_own(trained, task):
    scores = measure(trained, task, split="test").scores
    assert list(scores) == ["micro_f1", "macro_f1", "average_precision", "subset_accuracy"]
    before = measure(tiny_taskmodel("bert", task.spec), task, split="test").scores
    assert scores["average_precision"] > before["average_precision"] + 0.1
    thresholds = trained.task.thresholds
    assert len(thresholds) == 3
    assert any(one != 0.5 for one in thresholds)
    record = trained.lineage[-1]
    assert record.facts["thresholds"] == list(thresholds)
    assert trained.chosen_on["threshold, 1. distill.labels"] == task.validation.digest
    chosen = measure(trained, task)
    usual = Artifact(trained.model, trained.tokenizer, tiny_spec("multilabel"))
    assert chosen.role == "selection"
    assert chosen.scores["macro_f1"] >= measure(usual, task).scores["macro_f1"]
    assert 0 <= chosen.calibration_error < 0.5
    assert chosen.confusion is None


def test_a_standard_model_loads_without_us_and_is_found_to_be_one(trained, task, tmp_path):
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(trained.folder)
    assert stock.config.problem_type == "multi_label_classification"
    stock.save_pretrained(tmp_path)
    trained.tokenizer.save_pretrained(tmp_path)
    found = load_taskmodel(tmp_path)
    assert (found.task.kind, found.task.labels, found.task.thresholds) == ("multilabel", task.spec.labels, ())
    asked = load_taskmodel(trained.folder, task.spec)
    assert asked.task.thresholds == trained.task.thresholds
    save_taskmodel(asked, tmp_path)
    assert load_taskmodel(tmp_path, tiny_spec("multilabel")).task.thresholds == trained.task.thresholds
    chosen = Artifact.from_model(found).with_thresholds(task.validation)
    assert chosen.task.thresholds == ()  # its task does not ask for it
    wanted = Artifact(found.model, found.tokenizer, task.spec, lineage=Artifact.from_model(found).lineage)
    chosen = wanted.with_thresholds(task.validation)
    assert chosen.lineage[-1].technique == "thresholds"
    assert load(chosen.save(tmp_path / "chosen")).task.thresholds == chosen.task.thresholds != ()
    assert "threshold, 1. thresholds" in chosen.chosen_on


def test_a_teacher_is_fine_tuned_with_thresholds(task, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
    base = tmp_path / "base"
    base.mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm")), base)
    teacher, folder = finetune(base, task, SHORT)
    facts = json.loads((folder / "teacher.json").read_text())
    assert facts["thresholds"] == list(teacher.task.thresholds) != []
    assert teacher.chosen_on["thresholds"] == task.select.digest


def test_a_teacher_that_has_none_gets_thresholds_where_the_task_asks(task, tmp_path):
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("multilabel")), tmp_path)
    recipe = recipe_from_plain({"name": "r", "teacher": {"model": str(tmp_path)}, "steps": []}, "r")
    (teacher,) = teachers_of(recipe, task)
    assert len(teacher.task.thresholds) == 3
    assert teacher.lineage[-1].data == {"selection": task.select.digest}
    (other,) = teachers_of(recipe, tiny_task("multilabel"))
    assert other.task.thresholds == ()
    # Thresholds change no input, so the outputs of such a teacher are read as they are.
    assert reads_alike(teacher.encoder, other.encoder)
    assert cuts_alike(teacher.encoder, other.encoder)


@pytest.mark.parametrize(
    "step",
    [
        LogitDistillation(training=SHORT, alpha=0.7),
        LogitDistillation(training=SHORT, alpha=1.0, loss="mse"),
        DistilBertDistillation(training=SHORT),
        TinyBertDistillation(stages=("prediction",), training=SHORT),
        EnsembleDistillation(training=SHORT),
    ],
    ids=lambda step: step.name,
)
def test_a_student_learns_from_its_teacher(step, trained, task):
    members = [trained, tiny_taskmodel("bert", task.spec, seed=3)]
    several = isinstance(step, EnsembleDistillation)
    teacher = EnsembleTeacher.of(members) if several else ModelTeacher(trained)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=teacher)
    student = run(Recipe(steps=(step,)), trained, inputs)
    assert measure(student, task, against=trained).comparison.agreement["labels"] > 0.7
    assert len(student.task.thresholds) == 3


def test_an_ensemble_answers_with_the_mean_of_its_thresholds(trained, task):
    other = tiny_taskmodel("bert", task.spec.model_copy(update={"thresholds": (0.2, 0.4, 0.6)}), seed=3)
    both = EnsembleTeacher.of([trained, other])
    expected = [(a + b) / 2 for a, b in zip(trained.task.thresholds, (0.2, 0.4, 0.6), strict=True)]
    assert both.encoder.settings.thresholds == pytest.approx(expected)
    answers = predict(both, task.validation).answers
    single = [sigmoid(predict(one, task.validation).logits[0]) for one in (trained, other)]
    assert list(answers[0]["probabilities"].values()) == pytest.approx(((single[0] + single[1]) / 2).tolist(), rel=1e-4)


def test_what_needs_one_class_refuses_it(trained, task):
    found = EarlyExit().check(trained, Inputs(train=task.train))
    assert found == ["distill.early_exit: needs a classification task of two classes or more, this one is multilabel"]


def test_unlabelled_texts_are_learned_from_the_teacher_alone(trained, task):
    rows = EncodedDataset(task.train[:2], trained.encoder, trained.task)
    batch = rows.batch([0, 1])
    assert batch.targets["labels"].shape == (2, 3)
    bare = type(task.train)([{"text": "a film"}, dict(task.train[0])])
    batch = EncodedDataset(bare, trained.encoder, trained.task).batch([0, 1])
    assert batch.targets["labels"][0].isnan().all()
    assert not batch.targets["labels"][1].isnan().any()


def test_exports_answer_sets_by_the_same_thresholds(trained, task, tmp_path):
    report = export_onnx(trained, tmp_path / "onnx", examples=task.validation)
    assert (report.gate.passed, report.gate.agreement) == (True, 1.0)
    runtime = Runtime(tmp_path / "onnx")
    assert runtime.encoder.settings.thresholds == trained.task.thresholds
    texts = [example["text"] for example in task.test]
    own = predict(trained, task.test).answers
    assert [answer["labels"] for answer in runtime.predict(texts).answers] == [answer["labels"] for answer in own]
    done = program(tmp_path / "onnx", stdin="\n".join(texts[:5]).encode())
    assert done.returncode == 0, done.stderr.decode()
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["labels"] for answer in said] == [answer["labels"] for answer in own[:5]]
    assert said[0]["probabilities"] == pytest.approx(own[0]["probabilities"], abs=1e-4)
    export_web(trained, tmp_path / "web", examples=task.validation)
    manifest = json.loads((tmp_path / "web" / "export.json").read_text())
    assert manifest["encoder"]["thresholds"] == list(trained.task.thresholds)


def test_the_gate_counts_exact_sets(trained, task, tmp_path):
    """A threshold that only the export has turns some sets, and each counts once, however many labels turned."""
    from compress.export.check.gate import compare

    class Shifted:
        name, encoder = "shifted", trained.encoder

        def forward(self, inputs):
            return trained.forward(inputs) + 4.0

    report = compare(Shifted(), trained, task.validation, tolerance=None, agreement=0.99)
    own = [answer["labels"] for answer in predict(trained, task.validation).answers]
    shifted = [answer["labels"] for answer in predict(Shifted(), task.validation).answers]
    equal = sum(a == b for a, b in zip(own, shifted, strict=True)) / len(own)
    assert report.agreement == pytest.approx(equal)
    assert equal < 0.9
    assert not report.passed
