"""A user's own module as a student: trained, measured, exported, and what its folder can and cannot do."""

import numpy as np
import pytest
import torch
from torch import nn

from compress import Inputs, Recipe, UserError, load, run
from compress.architectures.adaptor import adapt
from compress.distill.distilbert import DistilBertDistillation
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.distill.minilm import MiniLMDistillation
from compress.distill.mobilebert import MobileBertDistillation
from compress.distill.pkd import PatientDistillation
from compress.distill.tinybert import TinyBertDistillation
from compress.export import Runtime, export_onnx
from eval.inference import predict
from eval.measurement import measure
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import tiny_task, tiny_taskmodel


class TextCnn(nn.Module):
    def __init__(self, words, classes=2, by_token=False):
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.windows = nn.Conv1d(16, 24, 3, padding=1)
        self.classes = nn.Linear(24, classes)
        self.by_token = by_token

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[:, None].to(self.words.weight.dtype)
        states = torch.relu(self.windows(self.words(input_ids).transpose(1, 2) * mask)) * mask
        return self.classes(states.transpose(1, 2) if self.by_token else states.amax(dim=2))


class Typed(TextCnn):
    def forward(self, input_ids, attention_mask, token_type_ids):
        return super().forward(input_ids + 0 * token_type_ids, attention_mask)


@pytest.fixture
def teacher():
    return tiny_taskmodel("bert", tiny_task("classification").spec)


def cnn(teacher, module=TextCnn, **fields):
    torch.manual_seed(3)
    return module(len(teacher.tokenizer), **fields)


def test_a_module_is_trained_measured_and_exported(teacher, tmp_path):
    task = tiny_task("classification")
    student = adapt(cnn(teacher), teacher.tokenizer, task.spec, name="cnn")
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(teacher, cache=tmp_path / "s"))
    steps = (LogitDistillation(alpha=1.0, max_steps=2), LabelTraining(epochs=12, learning_rate=0.01, batch_size=8))
    small = run(Recipe(steps=steps), student, inputs)
    assert [record.technique for record in small.lineage] == ["source", "distill.logits", "distill.labels"]
    assert not torch.equal(small.model.module.words.weight, student.model.module.words.weight)
    result = measure(small, task, split="validation")
    assert result.score >= 0.9
    assert result.size.macs == 128 * 16 * 24 * 3 + 24 * 2
    report = export_onnx(small, tmp_path / "onnx", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-4
    own, exported = (predict(model, task.validation).logits for model in (small, Runtime(tmp_path / "onnx")))
    assert np.allclose(own, exported, atol=1e-4)


def test_its_folder_holds_weights_and_says_so(teacher, forker, tmp_path):
    task = tiny_task("classification")
    module = cnn(teacher)
    small = run(
        Recipe(steps=(LabelTraining(max_steps=2),)), adapt(module, teacher.tokenizer, task.spec), Inputs(task.train)
    )
    folder = small.save(tmp_path / "cnn")
    card = (folder / "README.md").read_text()
    assert "neither standard Hugging Face classes nor `compress.load` loads this folder" in card
    with pytest.raises(UserError, match=r"holds only the weights of tests\.unit\.test_adaptor\.TextCnn.*weights='"):
        load(folder)
    again = adapt(cnn(teacher), teacher.tokenizer, task.spec, weights=folder)
    assert again.digest == small.digest
    code = f"from compress import load\nload({str(folder)!r})"
    (tmp_path / "program.py").write_text(code)
    failed = forker.run([str(tmp_path / "program.py")], cwd=tmp_path)
    assert "your own program builds" in failed.err.splitlines()[-1]
    with pytest.raises(UserError, match="do not fit TextCnn as it was built"):
        adapt(cnn(teacher, classes=3), teacher.tokenizer, task.spec, weights=folder)
    with pytest.raises(UserError, match=r"no model\.safetensors here"):
        adapt(module, teacher.tokenizer, task.spec, weights=tmp_path)


@pytest.mark.parametrize("kind", ["regression", "tagging", "qa"])
def test_other_kinds_of_tasks(kind, tmp_path):
    task = tiny_task(kind)
    teacher = tiny_taskmodel("bert", task.spec)
    module = cnn(teacher, Typed, classes=task.spec.outputs, by_token=kind != "regression")
    student = adapt(module, teacher.tokenizer, task.spec)
    assert student.encoder.settings == teacher.encoder.settings
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path))
    small = run(
        Recipe(steps=(LogitDistillation(alpha=1.0, epochs=4, learning_rate=0.01, batch_size=8),)), student, inputs
    )
    history = small.lineage[-1].facts["history"]
    assert history[-1]["loss"] < history[0]["loss"]


def test_what_a_module_lacks_is_named(teacher, tmp_path):
    spec, tokenizer = tiny_task("classification").spec, teacher.tokenizer
    with pytest.raises(UserError, match=r"TextCnn: gives logits of shape \[2, 5\] .* classification needs \[2, 2\]"):
        adapt(cnn(teacher, classes=5), tokenizer, spec)
    with pytest.raises(UserError, match="Linear: its forward has no argument input_ids and attention_mask"):
        adapt(nn.Linear(2, 2), tokenizer, spec)
    with pytest.raises(UserError, match=r"TextCnn: fails on 2 rows of 5 tokens, ids up to \d+ \(index out of range"):
        adapt(TextCnn(7), tokenizer, spec)
    with pytest.raises(UserError, match="not masked-lm"):
        adapt(cnn(teacher), tokenizer, tiny_task("masked-lm").spec)
    inputs = Inputs(train=tiny_task().train, teacher=ModelTeacher(teacher, cache=tmp_path))
    with pytest.raises(UserError, match=r"step 1, distill\.pkd: works on transformer layers, and model has none"):
        run(Recipe(steps=(PatientDistillation(),)), adapt(cnn(teacher), tokenizer, spec), inputs)


def test_a_module_teaches_by_its_logits(teacher, tmp_path):
    task = tiny_task("classification")
    other = ModelTeacher(adapt(cnn(teacher), teacher.tokenizer, task.spec, name="cnn"), cache=tmp_path)
    small = run(Recipe(steps=(LogitDistillation(max_steps=2),)), teacher, Inputs(train=task.train, teacher=other))
    assert small.lineage[-1].technique == "distill.logits"


@pytest.mark.parametrize(
    "technique",
    [
        PatientDistillation,
        TinyBertDistillation,
        MiniLMDistillation,
        DistilBertDistillation,
        MobileBertDistillation,
    ],
)
def test_and_by_nothing_else(teacher, technique, tmp_path):
    task = tiny_task("classification")
    other = ModelTeacher(adapt(cnn(teacher), teacher.tokenizer, task.spec, name="cnn"), cache=tmp_path)
    with pytest.raises(UserError, match=r"teacher cnn has no (layers|hidden states) that are known here, only logits"):
        run(Recipe(steps=(technique(),)), teacher, Inputs(train=task.train, teacher=other))


def test_a_tensor_called_as_a_method_of_ours_is_the_modules_own(teacher):
    module = cnn(teacher)
    module.register_buffer("rates", torch.ones(2))
    task = tiny_task("classification")
    student = adapt(module, teacher.tokenizer, task.spec)
    run(Recipe(steps=(LabelTraining(max_steps=1),)), student, Inputs(train=task.train))
    assert torch.equal(module.rates, torch.ones(2))
