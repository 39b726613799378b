"""Every family through the whole line: fine-tune, cut, distil, export, predict."""

import numpy as np
import pytest

from compress.distill.logits import LogitDistillation
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.prune.layers import LayerPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.inference import predict
from teachers.finetuning.finetune import finetune
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import Training
from tests.tiny import DECODERS, FAMILIES, at_first, in_turn, tiny_task, tiny_taskmodel

TRAINING = Training(max_steps=3, batch_size=8, learning_rate=1e-3)


@pytest.mark.parametrize("family", at_first((*FAMILIES, *DECODERS), "bert", "albert", "xlnet", "modernbert"))
def test_the_whole_line(family, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task("classification")
    teacher, folder = finetune(tiny_taskmodel(family, task.spec), task, TRAINING, seed=1)
    assert (folder / "teacher.json").is_file()
    again, _ = finetune(tiny_taskmodel(family, task.spec), task, TRAINING, seed=1)
    assert again.digest == teacher.digest

    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(teacher))
    steps = (LayerPruning(keep=(0, 2)), LogitDistillation(alpha=0.9, training=TRAINING))
    student = run(Recipe(steps=steps), teacher, inputs)

    export_onnx(student, tmp_path / "onnx", int8=False, examples=task.validation, name="line")
    runtime = Runtime(tmp_path / "onnx")
    own, exported = predict(student, task.validation), predict(runtime, task.validation)
    assert np.allclose(np.stack(own.logits), np.stack(exported.logits), atol=1e-4)
    assert [a["label"] for a in own.answers] == [a["label"] for a in exported.answers]
    alone = predict(runtime, task.validation, batch_size=1)
    assert np.allclose(np.stack(alone.logits), np.stack(exported.logits), atol=1e-4)


@pytest.mark.parametrize(("family", "kind"), in_turn(("bert", "roberta"), ("regression", "tagging", "qa"), 2))
def test_the_line_of_every_kind(kind, family, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task(kind, pair=kind == "regression")
    teacher, _ = finetune(tiny_taskmodel(family, task.spec), task, TRAINING, seed=1)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(teacher))
    steps = (LayerPruning(keep=(0, 2)), LogitDistillation(alpha=0.9, training=TRAINING))
    student = run(Recipe(steps=steps), teacher, inputs)
    export_onnx(student, tmp_path / "onnx", int8=False, examples=task.validation, name="line")
    own = predict(student, task.validation)
    exported = predict(Runtime(tmp_path / "onnx"), task.validation)
    for one, other in zip(own.logits, exported.logits, strict=True):
        assert np.allclose(one, other, atol=1e-4)
