"""Distillation of sentence embedders against slow loops over the formulas of its papers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from compress.distill.embedding import EmbeddingDistillation, VectorLoss, principal_axes, similarity_kl, similarity_mse
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.signals.hooks import Signals, observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

STUDENT = [[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]
TEACHER = [[0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]


def cosine(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)


def loss_of(student, teacher, **fields):
    read = lambda batch: Signals(torch.tensor(teacher))  # noqa: E731
    loss = VectorLoss(EmbeddingDistillation(**fields), read, torch.nn.ModuleList([torch.nn.Identity()]))
    return {name: value.item() for name, value in loss(Signals(torch.tensor(student)), None).items()}


def test_every_term_is_the_slow_loop():
    squares = [(a - b) ** 2 for x, y in zip(STUDENT, TEACHER, strict=True) for a, b in zip(x, y, strict=True)]
    angles = [1 - cosine(x, y) for x, y in zip(STUDENT, TEACHER, strict=True)]
    among = [(cosine(STUDENT[i], STUDENT[j]) - cosine(TEACHER[i], TEACHER[j])) ** 2 for i in range(3) for j in range(3)]
    found = loss_of(STUDENT, TEACHER, mse=2.0, cosine=3.0, similarity=5.0)
    assert found["mse"] == pytest.approx(2 * sum(squares) / 6, rel=1e-6)
    assert found["cosine"] == pytest.approx(3 * sum(angles) / 3, rel=1e-6)
    assert found["similarity"] == pytest.approx(5 * sum(among) / 9, rel=1e-5)


def test_kl_among_the_other_texts():
    temperature, total = 0.5, 0.0
    for i in range(3):
        others = [j for j in range(3) if j != i]
        chances = []
        for side in (STUDENT, TEACHER):
            weights = [math.exp(cosine(side[i], side[j]) / temperature) for j in others]
            chances.append([weight / sum(weights) for weight in weights])
        total += sum(t * math.log(t / s) for s, t in zip(*chances, strict=True))
    found = loss_of(STUDENT, TEACHER, mse=0, similarity=1.0, relation="kl", temperature=temperature)
    assert found == pytest.approx({"similarity": total / 3}, rel=1e-5)


def test_equal_vectors_lose_nothing_and_similarities_ignore_turns_and_lengths():
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    turned = vectors @ torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q * 7
    wider = torch.cat([turned, torch.zeros(6, 3, dtype=torch.float64)], dim=1)
    assert similarity_mse(vectors, wider).item() == pytest.approx(0, abs=1e-12)
    assert similarity_kl(vectors, wider, 0.1).item() == pytest.approx(0, abs=1e-12)
    assert loss_of(TEACHER, TEACHER, cosine=1.0, similarity=1.0) == pytest.approx(
        {"mse": 0, "cosine": 0, "similarity": 0}, abs=1e-6
    )


def test_a_text_alone_has_no_others():
    alone = torch.randn(1, 4, requires_grad=True)
    found = similarity_kl(alone, torch.randn(1, 4), 0.1)
    found.backward()
    assert found.item() == 0
    assert alone.grad.abs().sum().item() == 0


def test_for_vectors_of_length_one_mse_is_the_angle_over_the_width():
    generator = torch.Generator().manual_seed(2)
    one, other = (torch.nn.functional.normalize(torch.randn(5, 8, generator=generator), dim=-1).tolist() for _ in "ab")
    found = loss_of(one, other, cosine=1.0)
    assert found["mse"] == pytest.approx(2 * found["cosine"] / 8, rel=1e-5)


def test_principal_axes_keep_products_best():
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(40, 6, generator=generator) @ torch.diag(torch.tensor([9.0, 7, 1, 0.5, 0.2, 0.1])) + 2
    axes = principal_axes(vectors, 2)
    assert torch.allclose(axes.T @ axes, torch.eye(2), atol=1e-5)
    kept = vectors @ axes
    lost = ((vectors @ vectors.T - kept @ kept.T) ** 2).sum().item()
    values = torch.linalg.svdvals(vectors)
    assert lost == pytest.approx((values[2:] ** 4).sum().item(), rel=1e-3)


@pytest.fixture(scope="module")
def task():
    return tiny_task("embedding", pair=True)


def bound(task, tmp_path, student, teacher, **fields):
    rows = rows_of(student, task.train, 1)
    return EmbeddingDistillation(**fields).bind(student, rows, ModelTeacher(teacher, cache=tmp_path)), rows


def test_the_loss_reads_pooled_vectors_of_single_texts(task, tmp_path):
    student, teacher = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (0, 1))
    loss, rows = bound(task, tmp_path, student, teacher, cosine=1.0)
    assert list(loss.modules.parameters()) == []
    batch = rows.batch(range(6))
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    own, other = (np.concatenate(predict(model, task.train[:3]).logits) for model in (student, teacher))
    assert found["mse"].item() == pytest.approx(((own - other) ** 2).mean(), rel=1e-4)
    assert found["cosine"].item() == pytest.approx((1 - (own * other).sum(axis=1)).mean(), rel=1e-4)
    found["mse"].backward()
    assert student.model.embeddings.word_embeddings.weight.grad.abs().sum().item() > 0


def test_a_narrower_student_learns_through_a_map(task, tmp_path):
    teacher = tiny_taskmodel("bert", task.spec)
    student = tiny_taskmodel("bert", task.spec, hidden_size=16)
    loss, rows = bound(task, tmp_path, student, teacher)
    assert [tuple(p.shape) for p in loss.modules.parameters()] == [(32, 16)]
    batch = rows.batch([0, 1, 2])
    signals = observe(student.model, batch.inputs)
    mapped = signals.logits @ loss.modules[0].linear.weight.T
    expected = ((mapped - loss.reader(batch).logits) ** 2).mean()
    assert loss(signals, batch)["mse"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_similarities_alone_need_no_map(task, tmp_path):
    student = tiny_taskmodel("bert", task.spec, hidden_size=16)
    loss, _ = bound(task, tmp_path, student, tiny_taskmodel("bert", task.spec), mse=0, similarity=1.0, project="pca")
    assert list(loss.modules.parameters()) == []
    assert loss.axes is None


def test_principal_axes_of_the_teacher_are_the_target(task, tmp_path):
    teacher = tiny_taskmodel("bert", task.spec)
    student = tiny_taskmodel("bert", task.spec, hidden_size=16)
    loss, rows = bound(task, tmp_path, student, teacher, project="pca")
    assert list(loss.modules.parameters()) == []
    vectors = torch.from_numpy(np.concatenate(predict(teacher, task.train).logits))
    expected = vectors @ principal_axes(vectors, 16)
    expected = expected / expected.norm(dim=1, keepdim=True)
    batch = rows.batch(range(8))
    target = loss._target(loss.reader(batch).logits, 16)
    # Axes are known up to their sign, so products are compared.
    assert torch.allclose(target @ target.T, expected[:8] @ expected[:8].T, atol=1e-4)


def test_training_comes_closer_to_the_teacher(task, tmp_path):
    teacher = tiny_taskmodel("bert", task.spec, seed=5)
    plain = Examples([{"text": text} for item in task.train for text in (item["text_a"], item["text_b"])], "train")
    technique = EmbeddingDistillation(similarity=1.0, epochs=6, batch_size=16, learning_rate=3e-3)
    inputs = Inputs(train=plain, validation=plain[:20], teacher=ModelTeacher(teacher, cache=tmp_path))
    result = run(Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec), inputs)
    history = result.lineage[-1].facts["history"]
    assert history[-1]["terms"]["mse"] < 0.5 * history[0]["terms"]["mse"]
    # Nothing is known of the validation texts, so no score, but the teacher's vectors are.
    assert "score" not in history[-1]
    assert history[-1]["agreement"] > history[0]["agreement"]


def test_a_teacher_of_another_width_and_tokenizer_reads_the_texts_itself(task, tmp_path):
    """WordPiece student of width 16, byte-level teacher of width 32: they meet in the vectors of whole texts."""
    teacher = tiny_taskmodel("roberta", task.spec, seed=5)
    student = tiny_taskmodel("bert", task.spec, hidden_size=16)
    loss, rows = bound(task, tmp_path, student, teacher, mse=0, cosine=1.0)
    batch = rows.batch([0, 1, 2, 3])
    wanted = np.concatenate(predict(teacher, task.train[:2]).logits)
    assert np.allclose(loss.reader(batch).logits.numpy(), wanted, atol=1e-5)
    technique = EmbeddingDistillation(similarity=1.0, project="pca", epochs=6, batch_size=16, learning_rate=3e-3)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path))
    history = run(Recipe(steps=(technique,)), student, inputs).lineage[-1].facts["history"]
    assert history[-1]["terms"]["mse"] < 0.8 * history[0]["terms"]["mse"]
    assert history[-1]["terms"]["similarity"] < 0.5 * history[0]["terms"]["similarity"]


def scaled(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("normalize", [True, False])
def test_prefixes_are_vectors_of_their_own(normalize):
    """The sum over prefixes in numpy: without a map, along principal axes, and by maps to the whole teacher vector."""
    generator = torch.Generator().manual_seed(4)
    own, other = torch.randn(5, 4, generator=generator), torch.randn(5, 6, generator=generator)
    own = torch.nn.functional.normalize(own, dim=-1) if normalize else own
    axes = torch.linalg.qr(torch.randn(6, 4, generator=generator)).Q
    sizes, weights = (4, 2), (0.5, 3.0)
    maps = torch.nn.ModuleList(torch.nn.Linear(size, 6, bias=False) for size in sizes)
    nothing = torch.nn.ModuleList(torch.nn.Identity() for _ in sizes)
    fields = {"dimensions": sizes, "dimension_weights": weights, "cosine": 2.0, "similarity": 5.0}
    config = EmbeddingDistillation(**fields)
    for modules, along in ((nothing, axes), (maps, None)):
        loss = VectorLoss(config, lambda batch: Signals(other), modules, along, normalize)
        found = {name: value.item() for name, value in loss(Signals(own), None).items()}
        expected = {"mse": 0.0, "cosine": 0.0, "similarity": 0.0}
        for size, weight, to_teacher in zip(sizes, weights, maps, strict=True):
            s, t = own.numpy()[:, :size], other.numpy()
            s = scaled(s) if normalize else s
            among = (scaled(s) @ scaled(s).T - scaled(t) @ scaled(t).T) ** 2
            if along is not None:
                t = t @ axes.numpy()[:, :size]
                t = scaled(t) if normalize else t
            else:
                s = s @ to_teacher.weight.detach().numpy().T
            expected["mse"] += weight * ((s - t) ** 2).mean()
            expected["cosine"] += weight * 2 * (1 - (scaled(s) * scaled(t)).sum(axis=1)).mean()
            expected["similarity"] += weight * 5 * among.mean()
        assert found == pytest.approx(expected, rel=1e-4)


def test_all_dimensions_alone_are_the_plain_loss(task, tmp_path):
    student, teacher = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (0, 1))
    found = []
    for fields in ({}, {"dimensions": (32,)}, {"dimensions": (32, 8), "dimension_weights": (1, 0)}):
        loss, rows = bound(task, tmp_path, student, teacher, cosine=1.0, similarity=1.0, **fields)
        batch = rows.batch(range(6))
        found.append(loss(observe(student.model, batch.inputs), batch))
    assert found[0] == found[1] == found[2]


def cosine_errors(student, teacher, examples, size):
    """Return the mean squared error of the cosines among texts that the first ``size`` numbers of vectors give."""
    own, other = (np.concatenate(predict(model, examples).logits) for model in (student, teacher))
    own, other = scaled(own[:, :size]), scaled(other)
    return ((own @ own.T - other @ other.T) ** 2).mean()


def test_truncated_vectors_are_better_where_prefixes_were_trained(tmp_path):
    """The student begins as the teacher, whose whole vectors need nothing; the first 4 of 32 numbers do."""
    task = tiny_task("embedding", pair=True, examples=120)
    changes = {"initializer_range": 0.3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    teacher = tiny_taskmodel("bert", task.spec, seed=5, **changes)
    errors = {}
    for dimensions in ((), (32, 4)):
        technique = EmbeddingDistillation(
            mse=0, similarity=1.0, dimensions=dimensions, epochs=6, batch_size=32, learning_rate=1e-3
        )
        inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path))
        result = run(Recipe(steps=(technique,)), teacher, inputs, dry_run_first=False)
        errors[dimensions] = [cosine_errors(result, teacher, task.test, size) for size in (32, 4)]
    assert errors[32, 4][1] < 0.5 * errors[()][1], "the truncated vectors are much better"
    assert errors[32, 4][0] < 0.5 * errors[()][1], "and the whole ones still good"


def test_dimensions_that_cannot_be_are_refused(task):
    for fields, said in (
        ({"dimensions": (8, 8)}, "each may stand there once"),
        ({"dimensions": (8, 4), "dimension_weights": (1.0,)}, "got 1 for 2 dimensions"),
        ({"dimension_weights": (1.0,)}, "got 1 for 0 dimensions"),
        ({"dimensions": (8,), "dimension_weights": (0.0,)}, "are all 0"),
    ):
        with pytest.raises(ValidationError, match=said):
            EmbeddingDistillation(**fields)
    found = EmbeddingDistillation(dimensions=(64, 8)).check(tiny_taskmodel("bert", task.spec), Inputs())
    assert found == [
        "distill.embedding: dimensions: 64 is more than the student's 32 channels; give numbers from 1 to 32"
    ]


def test_what_cannot_be_is_refused_by_name(task):
    with pytest.raises(ValidationError, match="mse, cosine and similarity are all 0"):
        EmbeddingDistillation(mse=0)
    technique = EmbeddingDistillation(project="pca")
    assert technique.check(tiny_taskmodel("bert"), Inputs()) == [
        "distill.embedding: is for embedding tasks, this one is classification; take distill.logits"
    ]
    narrow = SimpleNamespace(hidden_size=16)
    found = technique.check(tiny_taskmodel("bert", task.spec), Inputs(teacher=narrow))
    assert "cannot widen the teacher's 16 channels to the student's 32" in found[0]


@pytest.mark.parametrize("name", ["distill.labels", "distill.logits"])
def test_losses_of_labels_and_logits_are_refused(name, task, tmp_path):
    from compress.registry import get

    model = tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(model, cache=tmp_path))
    with pytest.raises(UserError, match=r"distill\.embedding"):
        run(Recipe(steps=(get(name)(max_steps=1),)), model, inputs)
