"""Listwise KL, and what it shares with Margin-MSE: the formula in numpy, a cross-encoder as teacher, two students."""

from pathlib import Path

import numpy as np
import pytest
import torch

from compress import load
from compress.distill.components.query_scores import mean_range, pair_scores, scorer
from compress.distill.listwise import ListwiseDistillation, listwise_kl
from compress.distill.margin_mse import MarginDistillation, margin_mse
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.registry import get
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import head_parts, max_tokens
from teachers.losses.ranking import scores
from teachers.signals.hooks import observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import save_taskmodel
from teachers.training.scoring import rows_of
from tests.tiny import PEOPLE, PLACES, tiny_spec, tiny_task, tiny_taskmodel

TASK = tiny_task("embedding", pair=True)


def by_numpy(student, teacher, group, temperature):
    found = []
    for number in sorted(set(group)):
        rows = [row for row, own in enumerate(group) if own == number]
        if len(rows) > 1:
            chances = []
            for side in (student, teacher):
                weights = np.exp(np.asarray(side)[rows] / temperature)
                chances.append(weights / weights.sum())
            own, other = chances
            found.append(temperature**2 * (other * np.log(other / own)).sum())
    return np.mean(found) if found else 0.0


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_loss_is_the_mean_over_queries(temperature):
    generator = torch.Generator().manual_seed(3)
    student, teacher = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    group = torch.tensor([0, 1, 0, 2, 1, 0, 3, 3, 1])
    expected = by_numpy(student.tolist(), teacher.tolist(), group.tolist(), temperature)
    assert listwise_kl(student, teacher, group, temperature).item() == pytest.approx(expected, rel=1e-9)
    assert listwise_kl(teacher + 5, teacher, group, temperature).item() == pytest.approx(0, abs=1e-12)
    assert listwise_kl(student, teacher, torch.arange(9)).item() == 0.0


def asked(label=True):
    """Return four passages for each of eight questions, one of them right, and a text alone."""
    lines = []
    for number, person in enumerate(PEOPLE):
        for turn in range(4):
            place = PLACES[(number + turn) % 8]
            line = {"text_a": f"where is {person} ?", "text_b": f"{PEOPLE[(number + turn) % 8]} lives in {place}"}
            lines.append(line | ({"label": float(turn == 0)} if label else {}))
    return Examples(lines, "train")


@pytest.fixture
def cross_encoder(tmp_path, monkeypatch):
    """Return a folder with a byte-level reranker, whose scores of pairs differ."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    spec = tiny_spec("regression", pair=True)
    model = tiny_taskmodel("roberta", spec, seed=3, initializer_range=0.3)
    with torch.no_grad():
        head_parts(model.model)["classifier"].weight.mul_(5.0)
    (tmp_path / "cross").mkdir()
    save_taskmodel(model, tmp_path / "cross")
    return str(tmp_path / "cross")


def cosine(vectors):
    first, second = vectors
    return first @ second / np.linalg.norm(first) / np.linalg.norm(second)


@pytest.mark.parametrize("technique", [MarginDistillation, ListwiseDistillation])
def test_an_embedders_scores_are_scaled_cosines_against_the_cross_encoders(technique, cross_encoder):
    student = tiny_taskmodel("bert", TASK.spec)
    train = Examples([{"text": "a text alone"}, *asked()], "train")
    config = technique(cross_encoder=cross_encoder, scale=7.0)
    objective = config.make_objective(Inputs(train=train))
    rows = rows_of(student, train, 1)
    loss = objective.bind(student, rows)
    batch = rows.batch([0, *range(1, 17), 19])  # two queries, a text alone, and half of a pair
    found = loss(observe(student.model, batch.inputs), batch)
    vectors = predict(student, train[1:9]).logits
    own = [7.0 * cosine(pair) for pair in vectors]
    pairs = Examples([{"text_a": e["text_a"], "text_b": e["text_b"]} for e in train[1:9]], "pairs")
    other = np.concatenate(predict(scorer(cross_encoder), pairs).logits).reshape(-1)
    group = [0] * 4 + [1] * 4
    if technique is ListwiseDistillation:
        expected = by_numpy(own, other, group, 1.0)
    else:
        labels = [e["label"] for e in train[1:9]]
        squares = [
            ((own[i] - own[j]) - (other[i] - other[j])) ** 2
            for i in range(8)
            for j in range(i + 1, 8)
            if group[i] == group[j] and labels[i] != labels[j]
        ]
        expected = np.mean(squares)
    assert [value.item() for value in found.values()] == [pytest.approx(expected, rel=1e-3)]
    assert next(iter(loss.counts(batch).values())).item() == (2 if technique is ListwiseDistillation else 6)


@pytest.mark.parametrize("technique", [MarginDistillation, ListwiseDistillation])
def test_by_default_the_scores_of_a_query_range_as_far_as_the_cross_encoders(technique, cross_encoder):
    student, train = tiny_taskmodel("bert", TASK.spec), Examples([{"text": "a text alone"}, *asked()], "train")
    loss = (
        technique(cross_encoder=cross_encoder)
        .make_objective(Inputs(train=train))
        .bind(student, rows_of(student, train, 1))
    )
    own = [cosine(pair) for pair in predict(student, train[1:]).logits]
    pairs = Examples([{"text_a": e["text_a"], "text_b": e["text_b"]} for e in train[1:]], "pairs")
    other = np.concatenate(predict(scorer(cross_encoder), pairs).logits).reshape(-1).tolist()
    group = [PEOPLE.index(e["text_a"].split()[2]) for e in train[1:]]
    ranges = [mean_range(torch.tensor(one), group) for one in (own, other)]
    assert min(ranges) > 0
    assert loss.scored.scale == pytest.approx(ranges[1] / ranges[0], rel=1e-3)


def test_passages_without_labels_all_differ(cross_encoder):
    student = tiny_taskmodel("bert", TASK.spec)
    rows = rows_of(student, asked(label=False), 1)
    loss = MarginDistillation(cross_encoder=cross_encoder).make_objective(Inputs()).bind(student, rows)
    assert loss.counts(rows.batch(range(8)))["margin"].item() == 6


def test_a_standard_cross_encoder_reads_all_it_can(cross_encoder):
    (Path(cross_encoder) / "task.json").unlink()
    found = scorer(cross_encoder)
    assert found.task.max_length == min(found.tokenizer.model_max_length, max_tokens(found.model.config)) != 128


def test_the_scores_are_found_in_the_cache_again(cross_encoder, monkeypatch):
    teacher = ModelTeacher(scorer(cross_encoder))
    first = pair_scores(teacher, asked())

    def refuse(*given):
        raise AssertionError("the cross-encoder ran again")

    monkeypatch.setattr("teachers.signals.model_teacher.write_signals", refuse)
    assert torch.equal(pair_scores(ModelTeacher(scorer(cross_encoder)), asked()), first)


@pytest.mark.parametrize("name", ["distill.margin_mse", "distill.listwise"])
def test_an_embedder_learns_from_a_cross_encoder_and_is_saved(name, cross_encoder, tmp_path):
    train = Examples([{"text": "a text alone"}, *asked(label=False)], "train")
    technique = get(name)(cross_encoder=cross_encoder, epochs=8, batch_size=32, learning_rate=3e-3)
    assert technique.needed() == {"train"}
    assert {path.name for path in technique.reads()} >= {"model.safetensors", "config.json"}
    student = tiny_taskmodel("bert", TASK.spec)
    result = run(Recipe(steps=(technique,)), student, Inputs(train=train), dry_run_first=False)
    result.save(tmp_path / "a")
    assert load(tmp_path / "a").digest == result.digest
    history = result.lineage[-1].facts["history"]
    assert sum(history[-1]["terms"].values()) < 0.8 * sum(history[0]["terms"].values())


def test_a_small_cross_encoder_learns_the_order(tmp_path):
    task = tiny_task("classification", pair=True)
    train = Examples([{**example, "label": ("bad", "good")[int(example["label"])]} for example in asked()], "train")
    student, teacher = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (0, 1))
    with torch.no_grad():
        head_parts(teacher.model)["classifier"].weight.mul_(50.0)
    technique = ListwiseDistillation(epochs=8, batch_size=8, learning_rate=2e-3)
    inputs = Inputs(train=train, teacher=ModelTeacher(teacher, cache=tmp_path))
    result = run(Recipe(steps=(technique,)), student, inputs, dry_run_first=False)
    goal, before, after = (
        scores(torch.from_numpy(np.stack(predict(model, train).logits))) for model in (teacher, student, result)
    )
    group = torch.arange(32) // 4
    assert listwise_kl(after, goal, group).item() < 0.8 * listwise_kl(before, goal, group).item()
    assert margin_mse(after, goal, group).item() < margin_mse(before, goal, group).item()


def test_what_cannot_be_is_refused_by_name(cross_encoder, tmp_path):
    embedder, reranker = (tiny_taskmodel("bert", tiny_spec(kind, pair=True)) for kind in ("embedding", "regression"))
    (said,) = ListwiseDistillation().check(embedder, Inputs())
    assert "an embedder learns the scores of a cross-encoder; name its folder as cross_encoder" in said
    (said,) = ListwiseDistillation(cross_encoder=cross_encoder).check(reranker, Inputs())
    assert "cross_encoder: is for embedders" in said
    (said,) = MarginDistillation(cross_encoder=cross_encoder, alpha=0.5).check(embedder, Inputs())
    assert "alpha: an embedding task has no labels' own loss" in said
    (said,) = ListwiseDistillation(cross_encoder=cross_encoder).check(embedder, Inputs(train=asked()[::4]))
    assert "no two of the 8 training examples have the same text_a" in said
    (tmp_path / "texts").mkdir()
    save_taskmodel(tiny_taskmodel("bert"), tmp_path / "texts")
    with pytest.raises(UserError, match="answers classification of single texts; give a model that scores pairs"):
        scorer(str(tmp_path / "texts"))
