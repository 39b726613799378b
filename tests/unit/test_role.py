"""The role of a score, by what a model says that it was chosen on."""

from __future__ import annotations

import json

import pytest

from compress.artifact.artifact import Artifact
from compress.artifact.record import Record, choices
from compress.export import Runtime, export_onnx
from compress.testing.tiny import tiny_task, tiny_taskmodel
from eval.comparison import measure_together
from eval.data.loading import Task
from eval.errors import UserError
from eval.measurement import measure, pair, wrong_margin
from eval.proof.known_examples import met, remember
from eval.proof.role import role_of
from eval.report.card import model_card
from eval.report.console import to_text
from eval.task import Examples, TaskSpec
from teachers.finetuning.finetune import finetune
from teachers.training.config import Training
from tests.unit.bagofwords import sentiment


class Said:
    def __init__(self, name, **chosen_on):
        self.name, self.chosen_on = name, chosen_on


def examples_of(*numbers):
    return Examples([{"text": f"film {number}", "label": "good"} for number in numbers])


A, B, C = examples_of(1, 2, 3), examples_of(4, 5), examples_of(6)


def test_a_model_that_says_nothing_is_believed():
    assert role_of(A, object()) == ("final", {})


def test_what_was_chosen_on_these_examples_is_named_of_both_sides():
    model = Said("small", gate=A.digest, epoch="77")
    teacher = Said("teacher", epoch=A.digest, training=B.digest)
    assert role_of(A, model, teacher) == ("selection", {"gate": A.digest, "epoch, teacher": A.digest})
    assert role_of(B, model, teacher) == ("selection", {"training, teacher": B.digest})
    assert role_of(C, model, teacher) == ("final", {})


@pytest.mark.parametrize("split", ["train", "select"])
def test_what_trains_or_chooses_reports_nothing_final(split):
    """Calibration on a part of ``train`` leaves the digest of that part alone."""
    assert role_of(A, Said("small", calibration="a part"), split=split) == (
        "selection",
        {f"the split {split}": A.digest},
    )


def test_examples_that_trained_are_recognised_among_others(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
    trained, few = examples_of(*range(60)), examples_of(*range(58, 158))
    many = Examples([{**example, "label": "bad"} for example in examples_of(*range(50, 150))])
    model = Said("teacher", training=trained.digest)
    assert role_of(many, model, kind="classification") == ("final", {}), "another machine knows nothing of them"
    remember("classification", trained, None, Examples(()))
    found = {"training on 10 of the 100": trained.digest}
    assert role_of(many, model, kind="classification") == ("selection", found), "whatever their labels are"
    assert role_of(few, model, kind="classification") == ("final", {}), "official splits repeat a few, too"
    assert met("classification", few, trained.digest) == (0, 1)


def test_a_few_examples_of_each_side_count_together_where_models_are_measured_together(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
    learned, taught = examples_of(*range(4), 200), examples_of(*range(10, 14), 300)
    remember("classification", learned, taught)
    small, teacher = sentiment("small"), sentiment("teacher")
    small.chosen_on, teacher.chosen_on = {"training": learned.digest}, {"training": taught.digest}
    task = Task(TaskSpec(kind="classification", labels=("bad", "good")), {"test": examples_of(*range(100))})
    reference, result = measure_together([small], task, teacher, "test")
    assert (reference.role, result.role, result.comparison.verdict) == ("final", "selection", "selection")
    assert list(result.chosen_on) == ["training on 4 of the 100", "training, teacher on 4 of the 100"]


def test_examples_that_let_an_export_pass_are_recognised_among_others(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task(examples=8)
    export_onnx(tiny_taskmodel("bert", task.spec), tmp_path / "onnx", examples=task.train)
    some = Examples(list(task.train)[:4])
    role, found = role_of(some, Runtime(tmp_path / "onnx"), kind="classification")
    assert (role, list(found)) == ("selection", ["export gate on 4 of the 4"])


def test_a_disk_that_refuses_is_no_error(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "file"))
    remember("classification", A)
    assert "examples are not remembered" in caplog.text
    assert met("classification", A, A.digest) == ()


def record(technique, **values):
    return Record(technique=technique, weights_after="w", **values)


def test_a_lineage_tells_every_choice():
    lineage = (
        record("source", chosen_on={"best epoch": "v0"}),
        record("distill.logits", data={"train": "t", "validation": "v1"}, chosen_on={"best epoch, teacher": "v2"}),
        record("distill.early_exit", data={"train": "t", "validation": "v1", "selection": "v1", "words.txt": "f"}),
        record("quantize.static", data={"calibration": "c"}),
    )
    assert choices(lineage) == {
        "best epoch, source": "v0",
        "best epoch, teacher": "v2",
        "training, 1. distill.logits": "t",
        "best epoch, 1. distill.logits": "v1",
        "training, 2. distill.early_exit": "t",
        "best epoch, 2. distill.early_exit": "v1",
        "threshold, 2. distill.early_exit": "v1",
        "calibration, 3. quantize.static": "c",
    }


@pytest.mark.parametrize(
    ("values", "picks"),
    [
        ({"config": {"training": {"keep": "best"}}}, True),
        ({"config": {"training": {"keep": "last", "patience": None}}}, False),
        ({"config": {"training": {"keep": "last", "patience": 2}}}, True),
        ({"config": {"training": {"keep": "best"}}, "facts": {"history": [{"step": 1, "loss": 0.5}]}}, False),
    ],
)
def test_an_epoch_is_chosen_only_by_scores(values, picks):
    assert record("distill.logits", data={"validation": "v"}, **values).picks_epoch is picks


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    task = tiny_task()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESS_HOME", str(tmp_path_factory.mktemp("home")))
        return finetune(tiny_taskmodel("bert", task.spec), task, Training(epochs=1, batch_size=8))[0]


def test_a_fine_tuned_model_says_what_chose_it(teacher, tmp_path):
    task = tiny_task()
    said = {"training": task.train.digest, "best epoch": task.validation.digest}
    assert teacher.chosen_on == said
    artifact = Artifact.from_model(teacher)
    assert artifact.chosen_on == said
    saved = Artifact.from_pretrained(artifact.save(tmp_path / "saved"))
    assert saved.chosen_on == said


@pytest.mark.parametrize(("split", "role"), [("validation", "selection"), ("train", "selection"), ("test", "final")])
def test_a_measurement_has_its_role(teacher, split, role):
    task = tiny_task()
    other = tiny_taskmodel("bert", task.spec, seed=4)
    result = measure(other, task, teacher, split=split)
    assert result.role == role
    assert (result.comparison.verdict == "selection") is (role == "selection")
    alone, reference = measure(other, task, split=split), measure(teacher, task, split=split)
    assert (alone.role, reference.role) == ("selection" if split == "train" else "final", role)
    assert (pair(alone, reference).verdict == "selection") is (role == "selection")
    text = " ".join(to_text([result]).split())
    assert ("no verdict against" in text) is (role == "selection")
    assert ("The scores are final" in text) is (role == "final")
    card = model_card("small", task.spec, [result])
    assert ("the score is one of a selection" in card) is (role == "selection")
    assert type(result).from_json(json.dumps(json.loads(result.to_json()))).role == role


def test_a_result_of_an_earlier_version_says_no_role(teacher):
    task = tiny_task()
    values = json.loads(measure(teacher, task, split="test").to_json())
    del values["role"], values["chosen_on"]
    assert type(measure(teacher, task, split="test")).from_json(json.dumps(values)).role is None


def test_a_margin_of_points_is_no_margin_of_a_share(teacher):
    """Five points are 0.05: a loss of five times the whole score would exclude nothing."""
    task = tiny_task()
    with pytest.raises(UserError, match=r"margin=5 is 500 points of accuracy, .* so 5 points are 0\.05"):
        measure(teacher, task, tiny_taskmodel("bert", task.spec), split="test", margin=5)
    assert wrong_margin(task.spec, 0.5) == []
    assert wrong_margin(tiny_task("causal-lm").spec, 5.0) == []
