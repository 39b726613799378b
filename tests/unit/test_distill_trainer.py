"""DistillationTrainer: a Trainer with an objective of ours does what our own loop does."""

import copy
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    TrainerCallback,
    TrainingArguments,
)

from compress import DistillationTrainer
from compress.distill.logits import LogitDistillation
from compress.distill.margin_mse import MarginDistillation
from compress.distill.mobilebert import MobileBertDistillation
from compress.distill.pkd import PatientDistillation
from compress.distill.tinybert import TinyBertDistillation
from compress.objective import ObjectiveBlock
from compress.prune.layers import LayerPruning
from compress.technique import Inputs
from eval.errors import UserError
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import save_taskmodel
from teachers.training.accumulation import Accumulation
from teachers.training.scoring import rows_of
from teachers.training.training_task import BoundTask
from tests.tiny import tiny_task, tiny_taskmodel

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SUM = {"distill.logits": {"alpha": 0.6}, "distill.tinybert": {"stages": ["intermediate"], "weight": 0.5}}
ROWS = 12


@pytest.fixture(scope="module")
def task():
    return tiny_task("tagging", examples=ROWS)


@pytest.fixture(scope="module")
def teacher(task):
    return tiny_taskmodel("bert", task.spec, seed=1)


def thin(task, **sizes):
    return tiny_taskmodel("bert", task.spec, num_hidden_layers=1, hidden_size=16, **STILL, **sizes)


def encoded(task, student):
    """Return the training examples as a data set of the user's own, with labels."""
    rows = rows_of(student, task.train, 1)
    names = {"ids": "input_ids", "type_ids": "token_type_ids"}
    return [
        {**{names[name]: list(getattr(feature, name)) for name in names}, "labels": target}
        for feature, target in zip(rows.features, rows.targets, strict=True)
    ]


def trainer(folder, student, teacher, objective, data, *, callbacks=(), settings=None, **kwargs):
    collator = DataCollatorForTokenClassification if isinstance(data[0]["labels"], list) else DataCollatorWithPadding
    settings = {"per_device_train_batch_size": 4, "learning_rate": 1e-3, "use_cpu": True, **(settings or {})}
    return DistillationTrainer(
        student.model,
        TrainingArguments(str(folder), report_to="none", disable_tqdm=True, **settings),
        collator(student.tokenizer),
        data,
        processing_class=student.tokenizer,
        callbacks=list(callbacks),
        teacher=teacher,
        objective=objective,
        **kwargs,
    )


class Gradients(TrainerCallback):
    """Keeps the gradients of the first optimizer step."""

    def __init__(self, modules):
        self.modules, self.found = modules, []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.found.append(gradients(self.modules()))


def gradients(modules):
    return [
        torch.zeros_like(one) if one.grad is None else one.grad.clone()
        for module in modules
        for one in module.parameters()
    ]


def own_gradients(task, student, teacher, objective, projections):
    """Return what our own loop would give its optimizer for all rows as one batch."""
    rows = rows_of(student, task.train, 1)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, budget_bytes=0))
    loss = ObjectiveBlock.model_validate(objective).make(inputs).bind(student, rows)
    loss.modules.load_state_dict(projections)
    student.model.train()
    student.model.zero_grad()
    Accumulation(Accelerator(cpu=True), 1).backward(BoundTask(student, rows, loss), list(range(len(rows))), 0, 1.0)
    return gradients((student.model, loss.modules))


def test_a_step_has_the_gradient_of_our_own_loop(task, teacher, tmp_path):
    """Three micro-batches of unequal numbers of words, and projections, against the whole batch at once."""
    student = thin(task)
    data = encoded(task, student)
    seen = Gradients(lambda: (student.model, made.projections))
    settings = {"gradient_accumulation_steps": 3, "max_steps": 1, "max_grad_norm": 0.0, "save_strategy": "no"}
    made = trainer(tmp_path, student, teacher, SUM, data, callbacks=[seen], settings=settings)
    projections = {name: tensor.clone() for name, tensor in made.projections.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in student.model.state_dict().items()}
    made.train()
    trained = made.projections.state_dict()
    assert len(projections) == 2
    assert not any(torch.equal(trained[name], tensor) for name, tensor in projections.items())
    assert all(one.grad is None for one in made.projections.parameters())
    student.model.load_state_dict(before)
    (found,), expected = seen.found, own_gradients(task, student, teacher, SUM, projections)
    assert sum(tensor.abs().sum() for tensor in expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_student_learns_and_is_saved_without_projections(teacher, task, tmp_path):
    """The loss falls, a checkpoint goes on where it stopped, and the folder is a standard one."""
    one = tiny_task("classification", examples=16)
    big, student = tiny_taskmodel("bert", one.spec, seed=1), thin(one)
    folder = tmp_path / "teacher"
    folder.mkdir()
    save_taskmodel(big, folder)
    data, out = encoded(one, student), tmp_path / "out"
    settings = {"num_train_epochs": 6, "logging_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 2}
    objective = TinyBertDistillation(stages=("intermediate",))
    made = trainer(out, student, folder, objective, data, settings=settings, eval_dataset=data)
    before = made.evaluate()["eval_loss"]
    made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert losses[-1] < 0.9 * losses[0]
    assert made.evaluate()["eval_loss"] < 0.9 * before
    assert made.predict(data).predictions.shape == (16, 2)
    last = out / f"checkpoint-{made.state.global_step}"
    kept = load_file(last / "projections.safetensors")
    assert kept.keys() == made.projections.state_dict().keys()
    made.save_model(tmp_path / "saved")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert loaded.state_dict().keys() == student.model.state_dict().keys()
    assert not (tmp_path / "saved" / "projections.safetensors").exists()
    again = trainer(out, thin(one), folder, objective, data, settings={**settings, "num_train_epochs": 7})
    again.train(resume_from_checkpoint=str(last))
    assert again.state.global_step == 7 * 4
    (out / "checkpoint-28" / "projections.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no projections\.safetensors"):
        trainer(out, thin(one), folder, objective, data, settings=settings).train(resume_from_checkpoint=True)


def test_unlabelled_batches_and_an_ensemble(tmp_path):
    one = tiny_task("classification", examples=8)
    student, teachers = thin(one), [tiny_taskmodel("bert", one.spec, seed=seed) for seed in (1, 2)]
    data = [{name: value for name, value in row.items() if name != "labels"} for row in encoded(one, student)]
    settings = {"max_steps": 1, "save_strategy": "no"}
    collate = {"processing_class": student.tokenizer}

    def made(alpha):
        return DistillationTrainer(
            student.model,
            TrainingArguments(str(tmp_path), report_to="none", disable_tqdm=True, use_cpu=True, **settings),
            train_dataset=data,
            teacher=teachers,
            objective=LogitDistillation(alpha=alpha),
            **collate,
        )

    assert made(1.0).train().training_loss > 0
    with pytest.raises(UserError, match="the objective reads labels, and the batches have no labels"):
        made(0.5).train()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (LogitDistillation(epochs=3), "objective: epochs: TrainingArguments say how a Trainer trains"),
        (MarginDistillation(), "compares the passages of a query"),
        (PatientDistillation(), "distill.pkd: hidden sizes must be equal"),
        (LayerPruning(keep=(0,)), "objective: prune.layers is not a single loss"),
        (MobileBertDistillation(), "strategy progressive trains in several stages"),
        (TinyBertDistillation(layer_map="auto"), r"distill.tinybert: reads the training rows .*\(their examples\)"),
        ({"distill.logits": {"temprature": 2}}, "did you mean 'temperature'"),
        ("distill.bilstm", "distill.bilstm is not a single loss"),
    ],
)
def test_objectives_that_are_refused(task, teacher, tmp_path, objective, message):
    student = thin(task)
    with pytest.raises(UserError, match=message):
        trainer(tmp_path, student, teacher, objective, encoded(task, student))


def test_arguments_that_would_be_passed_over_are_refused_together(task, teacher, tmp_path):
    student = thin(task)
    settings = {"label_smoothing_factor": 0.1}
    with pytest.raises(UserError) as caught:
        trainer(
            tmp_path,
            student,
            teacher,
            LogitDistillation(),
            encoded(task, student),
            settings=settings,
            compute_loss_func=lambda *_: 0,
        )
    assert [problem.split(":")[1].strip() for problem in caught.value.problems] == [
        "compute_loss_func",
        "label_smoothing_factor",
    ]
    optimizer = torch.optim.SGD(student.model.parameters())
    with pytest.raises(UserError, match="has projections to train, which the optimizer given lacks"):
        trainer(tmp_path, student, teacher, SUM, encoded(task, student), optimizers=(optimizer, None))
    whole = TinyBertDistillation(stages=("intermediate",), reduction="code")
    several = {"gradient_accumulation_steps": 2}
    with pytest.raises(UserError, match="compares all rows of a batch; set gradient_accumulation_steps=1"):
        trainer(tmp_path, student, teacher, whole, encoded(task, student), settings=several)


def test_a_student_of_other_labels_or_words_is_refused(tmp_path):
    one = tiny_task("classification", examples=4)
    teacher, student = tiny_taskmodel("bert", one.spec), thin(one)
    data = encoded(one, student)
    student.model.config.id2label = {0: "good", 1: "bad"}
    with pytest.raises(UserError, match=r"the student's labels are \['good', 'bad'\] and the teacher's \['bad', 'go"):
        trainer(tmp_path, student, teacher, LogitDistillation(), data)
    student.model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    other = replace(teacher, tokenizer=copy.deepcopy(teacher.tokenizer))
    other.tokenizer.add_tokens(["besides"])
    with pytest.raises(UserError, match="its tokenizer has another vocabulary than the student's"):
        trainer(tmp_path, student, other, LogitDistillation(), data)


def test_an_evaluation_has_a_loss_without_labels_if_the_objective_reads_none(tmp_path):
    task = tiny_task(examples=ROWS)
    student, teacher = thin(task), tiny_taskmodel("bert", task.spec, seed=1)
    labelled = encoded(task, student)
    rows = [{name: value for name, value in row.items() if name != "labels"} for row in labelled]

    def of(alpha):
        objective = {"distill.logits": {"alpha": alpha}}
        return trainer(tmp_path / str(alpha), student, teacher, objective, labelled, eval_dataset=rows)

    both, alone = of(0.5), of(1.0)
    assert alone.evaluate()["eval_loss"] == pytest.approx(alone.evaluate(labelled)["eval_loss"], abs=1e-6)
    assert "eval_loss" not in both.evaluate()
    assert len(both.predict(rows).predictions) == ROWS
