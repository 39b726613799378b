"""Distillation and fine-tuning of decoders against their formulas."""

import pytest
import torch
from torch.nn import functional

from compress import Inputs, Recipe, run
from compress.distill.distilbert import DistilBertDistillation
from compress.distill.logits import LogitDistillation
from compress.prune.layers import LayerPruning
from teachers.finetuning.auxiliary_lm import WithLanguageModel
from teachers.signals.hooks import observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import AuxiliaryLM, Training
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel


@pytest.fixture(scope="module")
def pair():
    task = tiny_task("causal-lm")
    return task, tiny_taskmodel("gpt2", task.spec), tiny_taskmodel("gpt2", task.spec, seed=1)


def terms_of(technique, pair, tmp_path):
    task, student, teacher = pair
    rows = rows_of(student, task.train, 1)
    loss = technique.bind(student, rows, ModelTeacher(teacher, cache=tmp_path))
    batch = rows.batch([0, len(rows) - 1])
    with torch.no_grad():
        own, other = (model.model(**batch.inputs, output_hidden_states=True) for model in (student, teacher))
        found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    return found, own, other, batch


def test_logits_are_compared_at_every_real_position(pair, tmp_path):
    found, own, other, batch = terms_of(LogitDistillation(temperature=2.0, alpha=0.25), pair, tmp_path)
    real = batch.mask.bool()
    divergences = [
        4 * functional.kl_div((s / 2).log_softmax(-1), (t / 2).softmax(-1), reduction="sum")
        for s, t in zip(own.logits[real], other.logits[real], strict=True)
    ]
    assert found["soft"].item() == pytest.approx(0.25 * torch.stack(divergences).mean().item(), rel=1e-4)
    next_word = functional.cross_entropy(own.logits.transpose(1, 2), batch.targets["labels"], ignore_index=-100)
    assert found["task"].item() == pytest.approx(0.75 * next_word.item(), rel=1e-5)


def test_distilgpt2s_loss_is_the_triple_loss_with_the_next_word(pair, tmp_path):
    technique = DistilBertDistillation(alpha_soft=5.0, alpha_task=0.5, alpha_cos=1.0)
    found, own, other, batch = terms_of(technique, pair, tmp_path)
    real = batch.mask.bool()
    cosine = 1 - functional.cosine_similarity(own.hidden_states[-1][real], other.hidden_states[-1][real], dim=-1)
    assert found["cosine"].item() == pytest.approx(cosine.mean().item(), rel=1e-5)
    soft = functional.kl_div(
        (own.logits[real] / 2).log_softmax(-1), (other.logits[real] / 2).softmax(-1), reduction="batchmean"
    )
    assert found["soft"].item() == pytest.approx(5 * 4 * soft.item(), rel=1e-4)


def test_the_last_hidden_state_is_what_the_head_reads(pair):
    _, student, _ = pair
    with torch.no_grad():
        found = student.model(torch.tensor([[3, 4, 5]]), output_hidden_states=True)
        assert torch.allclose(student.model.lm_head(found.hidden_states[-1]), found.logits, atol=1e-6)


def test_every_other_layer_is_distilled(pair, tmp_path):
    task, _, teacher = pair
    training = Training(epochs=3, learning_rate=3e-3, batch_size=8)
    steps = (LayerPruning(keep=(0, 2)), DistilBertDistillation(training=training))
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path))
    made = run(Recipe(steps=steps), teacher, inputs)
    assert made.model.config.n_layer == 2
    losses = made.lineage[-1].facts["history"]
    assert losses[-1]["loss"] < losses[0]["loss"]


def test_gpts_auxiliary_loss_is_that_of_the_next_word_with_half_its_weight():
    task = tiny_task()
    student = tiny_taskmodel("gpt2", task.spec)
    rows = rows_of(student, task.train, 1)
    loss = WithLanguageModel(weight=AuxiliaryLM(start=0.5, end=0.5)).bind(student, rows)
    batch = rows.batch([0, 1, 2, 3])
    with torch.no_grad():
        found = loss(observe(student.model, batch.inputs, loss.reads), batch)
        states = student.model.transformer(**batch.inputs).last_hidden_state
        words = states @ student.model.transformer.wte.weight.T
    losses = [
        -words[row, place].log_softmax(-1)[batch.inputs["input_ids"][row, place + 1]]
        for row, length in enumerate(batch.mask.sum(dim=1).tolist())
        for place in range(length - 1)
    ]
    assert found["language_model"].item() == pytest.approx(0.5 * torch.stack(losses).mean().item(), rel=1e-5)
    assert loss.counts(batch)["language_model"] == len(losses)
    assert found["task"] > 0
