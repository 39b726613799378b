"""Ensemble teachers and ``distill.ensemble`` against the numbers of the paper's formula and slow loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from compress.distill.distilbert import DistilBertDistillation
from compress.distill.ensemble import EnsembleDistillation
from compress.distill.logits import LogitDistillation
from compress.distill.pkd import PatientDistillation
from compress.engine.steps import problems, run
from compress.objective import ObjectiveBlock
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict, softmax
from eval.measurement import measure
from eval.task import TaskSpec
from teachers.signals.ensemble_teacher import EnsembleTeacher, combined
from teachers.signals.hooks import Signals, SignalSpec
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

FIRST, SECOND = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])
Q = [0.574869, 0.425131]


@pytest.fixture
def task():
    return tiny_task("classification")


@pytest.fixture
def source(tmp_path):
    """Return what makes a tiny network a teacher with its cache in a place of its own."""
    return lambda model: ModelTeacher(model, cache=tmp_path / "signals")


@pytest.fixture
def ensemble(task, source):
    return EnsembleTeacher(tuple(source(tiny_taskmodel("bert", task.spec, seed=seed)) for seed in (1, 2, 3)))


def mixed(kind, logits, weights, mask=None):
    return combined(kind, logits, weights, torch.ones(logits[0].shape[:2]) if mask is None else mask)


def test_the_mean_is_of_probabilities_and_not_of_logits():
    found = mixed("classification", [FIRST, SECOND], (0.5, 0.5)).softmax(dim=-1)
    assert found[0].tolist() == pytest.approx(Q, abs=1e-6)
    of_logits = ((FIRST + SECOND) / 2).softmax(dim=-1)
    assert of_logits[0].tolist() == pytest.approx([0.622459, 0.377541], abs=1e-6)


def test_the_weighted_mean_by_hand():
    found = mixed("classification", [FIRST, SECOND], (0.75, 0.25)).exp()
    one, other = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))
    assert found[0, 0].item() == pytest.approx(0.75 * one + 0.25 * other, abs=1e-6)
    assert found.sum().item() == pytest.approx(1, abs=1e-6)
    assert mixed("regression", [torch.tensor([[1.0]]), torch.tensor([[5.0]])], (0.75, 0.25)).item() == 2.0


def test_very_sure_members_stay_finite():
    found = mixed("classification", [torch.tensor([[400.0, -400.0]]), torch.tensor([[-400.0, 400.0]])], (0.5, 0.5))
    assert found.exp()[0].tolist() == pytest.approx([0.5, 0.5])


def test_questions_have_probabilities_over_real_tokens():
    generator = torch.Generator().manual_seed(4)
    logits = [torch.randn(2, 5, 2, generator=generator) for _ in range(2)]
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    found = combined("qa", logits, (0.5, 0.5), mask).exp()
    for row, tokens in enumerate((5, 3)):
        for side in range(2):
            slow = [member[row, :tokens, side].softmax(dim=0) for member in logits]
            assert torch.allclose(found[row, :tokens, side], sum(slow) / 2, atol=1e-6)
    assert found[1, 3:].sum() == 0
    assert torch.isfinite(combined("qa", logits, (0.5, 0.5), mask)).all()


def loss_of(technique, teacher, student, rows, batch, logits):
    return technique.bind(student, rows, teacher)(Signals(logits), batch)


def test_the_loss_and_its_gradient(task, ensemble):
    student = tiny_taskmodel("bert", task.spec)
    rows = rows_of(student, task.train, seed=1)
    batch = rows.batch([3, 8, 1, 0])
    logits = torch.randn(4, 2, generator=torch.Generator().manual_seed(2), requires_grad=True)
    (loss,) = loss_of(EnsembleDistillation(alpha=1.0), ensemble, student, rows, batch, logits).values()
    loss.backward()

    texts = [task.train[i] for i in (3, 8, 1, 0)]
    members = [softmax(np.stack(predict(teacher.model, texts).logits)) for teacher in ensemble.teachers]
    mean = np.mean(members, axis=0)
    own = softmax(logits.detach().numpy())
    slow = -sum(q * math.log(p) for q, p in zip(mean.ravel(), own.ravel(), strict=True)) / 4
    assert loss.item() == pytest.approx(slow, abs=1e-5)
    assert np.allclose(logits.grad.numpy(), (own - mean) / 4, atol=1e-6)


def test_the_least_loss_is_the_entropy_of_the_mean(task, ensemble):
    student = tiny_taskmodel("bert", task.spec)
    rows = rows_of(student, task.train, seed=1)
    soft = EnsembleDistillation(alpha=1.0).bind(student, rows, ensemble)
    soft.reader = lambda batch: Signals(mixed("classification", [FIRST, SECOND], (0.5, 0.5)))
    batch = rows.batch([0])
    least = soft(Signals(torch.tensor([Q]).log()), batch)["soft"].item()
    assert least == pytest.approx(0.681894, abs=1e-6)
    for other in ([0.6, 0.4], [0.55, 0.45]):
        assert soft(Signals(torch.tensor([other]).log()), batch)["soft"].item() > least


def test_both_are_averaged_by_default(task, ensemble):
    student = tiny_taskmodel("bert", task.spec)
    rows = rows_of(student, task.train, seed=1)
    batch, logits = rows.batch([3, 8]), torch.tensor([[1.0, 0.0], [0.5, -0.5]])
    terms = loss_of(EnsembleDistillation(), ensemble, student, rows, batch, logits)
    soft = loss_of(EnsembleDistillation(alpha=1.0), ensemble, student, rows, batch, logits)["soft"]
    hard = loss_of(EnsembleDistillation(alpha=0.0), ensemble, student, rows, batch, logits)["task"]
    assert terms["soft"].item() == pytest.approx(soft.item() / 2)
    assert terms["task"].item() == pytest.approx(hard.item() / 2)


def test_equal_teachers_are_one_teacher(task, source):
    model = tiny_taskmodel("bert", task.spec, seed=1)
    rows = rows_of(model, task.train, seed=1)
    batch, logits = rows.batch([3, 8]), torch.tensor([[1.0, 0.0], [0.5, -0.5]])
    many = EnsembleTeacher((source(model),) * 3, (1.0, 2.0, 5.0))
    plain = LogitDistillation(temperature=1.0, alpha=1.0, loss="soft_cross_entropy")
    expected = loss_of(plain, source(model), model, rows, batch, logits)["soft"].item()
    for teacher in (many, source(model)):
        found = loss_of(EnsembleDistillation(alpha=1.0), teacher, model, rows, batch, logits)["soft"].item()
        assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "qa"])
def test_its_answers_are_those_of_the_mean(kind, source):
    task = tiny_task(kind)
    members = [tiny_taskmodel("bert", task.spec, seed=seed) for seed in (1, 2)]
    teacher = EnsembleTeacher(tuple(map(source, members)))
    answers = teacher.answers(task.validation[:6])
    logits = [predict(member, task.validation[:6]).logits for member in members]
    for number, answer in enumerate(answers):
        one, other = logits[0][number], logits[1][number]
        if kind == "classification":
            mean = (softmax(one) + softmax(other)) / 2
            assert answer["label"] == task.spec.labels[mean.argmax()]
            assert answer["probability"] == pytest.approx(mean.max(), abs=1e-6)
        elif kind == "regression":
            assert answer["score"] == pytest.approx((one[0] + other[0]) / 2, abs=1e-6)
        elif kind == "tagging":
            mean = (softmax(one) + softmax(other)) / 2
            assert answer["tags"] == [task.spec.labels[i] for i in mean.argmax(axis=-1)]
        else:
            assert answer["text"] in task.validation[number]["context"]
    result = measure(teacher, task)
    assert result.name == "teacher"
    assert result.size.parameters == 2 * members[0].size().parameters


def test_members_may_read_texts_differently(task, source):
    members = [tiny_taskmodel(family, task.spec) for family in ("bert", "roberta", "xlnet")]
    teacher = EnsembleTeacher(tuple(map(source, members)))
    answers = teacher.answers(task.validation[:5])
    apart = [softmax(np.stack(predict(member, task.validation[:5]).logits)) for member in members]
    assert [answer["probability"] for answer in answers] == pytest.approx(np.mean(apart, axis=0).max(axis=-1))
    student = tiny_taskmodel("distilbert", task.spec)
    rows = rows_of(student, task.validation, seed=1)
    signals = teacher.read(rows)(rows.batch(range(5)))
    assert np.allclose(signals.logits.exp().numpy(), np.mean(apart, axis=0), atol=1e-5)
    assert [row.batch for row in measure(teacher, task, latency=plan(8)).latency] == [1]


@pytest.mark.parametrize("kind", ["tagging", "qa"])
def test_members_with_other_inputs_still_pair_their_tokens(kind, source):
    task = tiny_task(kind)
    members = [tiny_taskmodel(family, task.spec) for family in ("bert", "distilbert")]
    assert len({member.encoder.settings.inputs for member in members}) == 2
    teacher = EnsembleTeacher(tuple(map(source, members)))
    examples = task.validation[:4]
    rows = rows_of(members[1], examples, seed=1)
    batch = rows.batch(range(len(rows)))
    found = teacher.read(rows)(batch).logits[batch.mask.bool()]
    features = teacher.encoder.encode(examples)
    own = torch.from_numpy(teacher.forward(teacher.encoder.collate(features)))[batch.mask.bool()]
    assert torch.allclose(found, own, atol=1e-5)
    assert len(teacher.answers(examples)) == 4


def plan(length):
    from eval.cost.latency import LatencyPlan

    return LatencyPlan(batch=(1,), lengths=(length,), seconds=0.05)


def test_tokens_need_one_tokenizer(source):
    spec = tiny_task("tagging").spec
    with pytest.raises(UserError, match="the members of the ensemble tokenize differently"):
        EnsembleTeacher((source(tiny_taskmodel("bert", spec)), source(tiny_taskmodel("roberta", spec))))


def test_vectors_have_no_mean(source):
    spec = TaskSpec(kind="embedding", metric="spearman", pair=True, max_length=32)
    with pytest.raises(UserError, match="an ensemble gives no embeddings"):
        EnsembleTeacher((source(tiny_taskmodel("bert", spec)),) * 2)


def test_members_that_answer_other_things_are_refused(task, source):
    other = TaskSpec(kind="classification", labels=("x", "y"), max_length=32)
    members = (source(tiny_taskmodel("bert", task.spec)), source(tiny_taskmodel("bert", other)))
    with pytest.raises(UserError, match="the members of an ensemble must answer the same"):
        EnsembleTeacher(members)


def test_only_logits_are_shared(task, ensemble):
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2)
    inputs = Inputs(train=task.train, teacher=ensemble)
    (found,) = problems([PatientDistillation()], student, inputs)
    assert found == (
        "step 1, distill.pkd: an ensemble of 3 teachers has no layers of its own, only logits; use distill.ensemble or "
        "distill.logits, or name one model as the teacher"
    )
    with pytest.raises(UserError, match="no hidden states, queries, keys or values of its own"):
        ensemble.read(rows_of(student, task.train, seed=1), SignalSpec(values=(0,)))
    with pytest.raises(UserError, match=r"step 1, distill\.distilbert.*an ensemble of 3 teachers"):
        run(Recipe(steps=(DistilBertDistillation(max_steps=1),)), student, inputs)


def test_weights_have_to_fit(task, ensemble, source):
    student = tiny_taskmodel("bert", task.spec)
    single = source(student)
    step = EnsembleDistillation(weights=(0.5, 0.5))
    for teacher, members in ((ensemble, 3), (single, 1)):
        (found,) = problems([step], student, Inputs(train=task.train, teacher=teacher))
        assert found == (
            f"step 1, distill.ensemble: weights [0.5, 0.5]: needs {members} numbers above 0, one for each teacher of "
            "the ensemble"
        )
    with pytest.raises(ValueError, match="greater than 0"):
        EnsembleDistillation(weights=(1.0, 0.0))


def test_weights_reach_the_target_also_inside_an_objective(task, ensemble):
    student = tiny_taskmodel("bert", task.spec)
    rows = rows_of(student, task.train, seed=1)
    batch, logits = rows.batch([3, 8]), torch.tensor([[1.0, 0.0], [0.5, -0.5]])
    step = EnsembleDistillation(alpha=1.0, weights=(8.0, 1.0, 1.0))
    expected = replace(ensemble, weights=(0.8, 0.1, 0.1)).read(rows)(batch).logits.exp()
    slow = -(expected * logits.log_softmax(dim=-1)).sum(dim=-1).mean().item()
    assert loss_of(step, ensemble, student, rows, batch, logits)["soft"].item() == pytest.approx(slow, abs=1e-6)
    block = ObjectiveBlock.model_validate({"distill.ensemble": {"alpha": 1.0, "weights": [8, 1, 1]}})
    bound = block.make(Inputs(train=task.train, teacher=ensemble)).bind(student, rows)
    assert bound(Signals(logits), batch)["distill.ensemble.soft"].item() == pytest.approx(slow, abs=1e-6)


def test_a_student_trains_on_it(task, ensemble):
    student = tiny_taskmodel("distilbert", task.spec)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ensemble)
    step = EnsembleDistillation(epochs=4, learning_rate=3e-3, batch_size=8)
    result = run(Recipe(seed=7, steps=(step,)), student, inputs)
    history = result.lineage[-1].facts["history"]
    assert history[-1]["loss"] < history[0]["loss"]
    assert all(0 <= entry["agreement"] <= 1 for entry in history)
    assert result.lineage[-1].teacher == ensemble.digest
    assert replace(ensemble, weights=(3.0, 1.0, 1.0)).digest != ensemble.digest
