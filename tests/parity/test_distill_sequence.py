"""Distillation of what is written: the teacher's texts as targets, kept and resumed; the formulas of the losses."""

import json

import pytest
import torch
from torch.nn import functional

from compress import Inputs, Recipe, run
from compress.distill.combined import CombinedDistillation
from compress.distill.logits import LogitDistillation
from compress.distill.sequence import FromItsTexts, SequenceDistillation, nearest
from compress.student.student import Student
from eval.errors import UserError
from eval.task import Examples
from teachers.signals import written_texts as module
from teachers.signals.hooks import observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.signals.written_texts import FILE, written_texts
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel


@pytest.fixture(scope="module")
def pair():
    task = tiny_task("seq2seq")
    return task, tiny_taskmodel("marian", task.spec), tiny_taskmodel("marian", task.spec, seed=1)


def logits_of(model, batch):
    with torch.no_grad():
        return model.model(**batch.inputs).logits


def test_the_targets_are_the_best_texts_of_the_beam(pair, tmp_path):
    task, _, teacher = pair
    some = task.train[:6]
    technique = SequenceDistillation(beams=3)
    objective = technique.make_objective(Inputs(train=some, teacher=ModelTeacher(teacher, cache=tmp_path)))
    found = objective.select(task.spec, some)
    config = {"num_beams": 3, "max_new_tokens": 16, "do_sample": False, "early_stopping": False}
    for example, own in zip(some, found, strict=True):
        read = teacher.tokenizer(example["source"], return_tensors="pt")
        ids = teacher.model.generate(**read, **config)[0]
        text = teacher.tokenizer.decode(ids, skip_special_tokens=True)
        assert own == {"source": example["source"], "target": text}
    both = FromItsTexts(technique.model_copy(update={"also_right": True}), objective.teacher).select(task.spec, some)
    assert list(both) == [*found, *some]


def test_interpolation_takes_the_text_nearest_to_the_right_one(pair, tmp_path):
    task, _, teacher = pair
    some = task.train[:4]
    every = written_texts(ModelTeacher(teacher, cache=tmp_path), some, 4, 1.0, several=True)
    assert any(len(own) > 1 for own in every)
    technique = SequenceDistillation(beams=4, text="nearest")
    found = technique.targets(ModelTeacher(teacher, cache=tmp_path), some)
    assert all(one["target"] in own for one, own in zip(found, every, strict=True))
    assert nearest(["a dog runs", "a dog runs on grass", "x"], {"target": "a dog runs on the grass"}) == (
        "a dog runs on grass"
    )


def test_texts_are_written_once_and_resumed(pair, tmp_path, monkeypatch):
    task, _, teacher = pair
    source = ModelTeacher(teacher, cache=tmp_path)
    monkeypatch.setattr(module, "BATCH", 8)
    whole = written_texts(source, task.train, 2, 1.0)
    file = next(tmp_path.glob("texts-*")) / FILE
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(task.train)
    file.write_bytes(b"".join(lines[:11]) + lines[11][:9])
    asked = []
    encode = type(teacher.encoder).collate
    monkeypatch.setattr(
        type(teacher.encoder), "collate", lambda self, f, *a: asked.append(len(f)) or encode(self, f, *a)
    )
    assert written_texts(source, task.train, 2, 1.0) == whole
    assert 0 < sum(asked) < len(task.train), "what was there is not written anew"
    asked.clear()
    assert written_texts(source, Examples([{"source": one["source"]} for one in task.train]), 2, 1.0) == whole
    assert asked == []
    file.write_text("{}\n")
    with pytest.raises(UserError, match="these texts of a teacher are damaged"):
        written_texts(source, task.train, 2, 1.0)


def test_texts_that_hold_line_separators_are_read_again(pair, tmp_path):
    task, _, teacher = pair
    source, some = ModelTeacher(teacher, cache=tmp_path), task.train[:2]
    written_texts(source, some, 1, 1.0)
    texts = [["a\u2028b"], ["c\x85d\u2029e"]]
    lines = [json.dumps({"row": row, "texts": own}, ensure_ascii=False) + "\n" for row, own in enumerate(texts)]
    next(tmp_path.glob("texts-*")).joinpath(FILE).write_bytes("".join(lines).encode())
    assert written_texts(source, some, 1, 1.0) == texts


def test_the_loss_is_that_of_the_texts_and_of_words(pair, tmp_path):
    task, student, teacher = pair
    technique = SequenceDistillation(beams=2, word=0.25, label_smoothing=0.1)
    objective = technique.make_objective(Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path)))
    rows = rows_of(student, objective.select(task.spec, task.train[:8]), seed=1)
    loss, batch = objective.bind(student, rows), rows.batch([0, 3, 5])
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    own, other, labels = logits_of(student, batch), logits_of(teacher, batch), batch.targets["labels"]
    real = labels != -100
    logs = own[real].log_softmax(-1)
    picked = logs.gather(1, labels[real][:, None])[:, 0]
    assert found["sequence"].item() == pytest.approx(
        -0.75 * (0.9 * picked + 0.1 * logs.mean(-1)).mean().item(), abs=1e-5
    )
    divergence = functional.kl_div(logs, other[real].softmax(-1), reduction="sum") / real.sum()
    assert found["word"].item() == pytest.approx(0.25 * divergence.item(), abs=1e-5)
    assert {name: int(count) for name, count in loss.counts(batch).items()} == dict.fromkeys(found, int(real.sum()))


def test_word_level_distillation_compares_every_token_of_the_target(pair, tmp_path):
    task, student, teacher = pair
    rows = rows_of(student, task.train, seed=1)
    loss = LogitDistillation(temperature=2.0, alpha=0.4).bind(student, rows, ModelTeacher(teacher, cache=tmp_path))
    batch = rows.batch([1, 2])
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    real = batch.targets["labels"] != -100
    own, other = (logits_of(model, batch)[real] / 2 for model in (student, teacher))
    expected = 4 * functional.kl_div(own.log_softmax(-1), other.softmax(-1), reduction="batchmean")
    assert found["soft"].item() == pytest.approx(0.4 * expected.item(), abs=1e-5)
    assert found["task"].item() == pytest.approx(
        0.6 * functional.cross_entropy(own * 2, batch.targets["labels"][real]).item(), abs=1e-5
    )
    assert not any(tmp_path.iterdir()), "the whole vocabulary at every token is not kept"


def test_a_shallow_student_learns_what_its_teacher_writes(pair, tmp_path):
    task, _, teacher = pair
    student = Student(layers=2, decoder_layers=1).build(teacher)
    inputs = Inputs(train=task.train[:8], validation=task.validation[:4], teacher=ModelTeacher(teacher, cache=tmp_path))
    step = SequenceDistillation(beams=2, max_steps=4, batch_size=4)
    result = run(Recipe(steps=(step,)), student, inputs)
    assert result.lineage[-1].facts["history"][-1]["terms"]["sequence"] > 0
    assert json.loads(result.lineage[-1].model_dump_json())["config"]["beams"] == 2


def test_who_cannot_write_is_refused(pair, tmp_path):
    task, student, teacher = pair
    classes = tiny_task()
    other = tiny_taskmodel("bert")
    with pytest.raises(
        UserError,
        match=r"distill.sequence: is for models that write a text for a text, and this bert is for classification",
    ):
        run(
            Recipe(steps=(SequenceDistillation(),)),
            other,
            Inputs(train=classes.train, teacher=ModelTeacher(other, cache=tmp_path)),
        )
    combined = CombinedDistillation.model_validate({"objective": {"distill.logits": {}, "distill.distilbert": {}}})
    with pytest.raises(UserError, match=r"distill.distilbert: works on an encoder or a decoder by itself"):
        run(Recipe(steps=(combined,)), student, Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path)))
