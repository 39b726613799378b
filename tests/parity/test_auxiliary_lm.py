"""SiATL's loss (arXiv 1902.10547): the weight by hand, the masked-language loss computed a second way."""

import math

import pytest
import torch

from eval.encoding import IGNORED
from eval.errors import UserError
from eval.task import Examples
from teachers.anatomy.encoder import word_embeddings
from teachers.finetuning.auxiliary_lm import LanguageModelLoss, WithLanguageModel, gamma, language_model
from teachers.losses.loss import Objective
from teachers.losses.task_loss import TaskLoss
from teachers.signals.hooks import observe
from teachers.taskmodel import load_taskmodel, save_taskmodel, weights_digest
from teachers.training.config import AuxiliaryLM, Training
from teachers.training.loop import train
from teachers.training.scoring import rows_of
from tests.stopping import StopsAt
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

QUICK = Training(epochs=2, learning_rate=3e-3, batch_size=8, checkpoint_seconds=0)
WORDED = [family for family in FAMILIES if family not in ("xlnet", "gpt2")]


@pytest.fixture(scope="module")
def task():
    return tiny_task(examples=24)


def bound(task, family="bert"):
    student = tiny_taskmodel(family, task.spec)
    rows = rows_of(student, task.train, seed=5)
    return student, rows, WithLanguageModel().bind(student, rows)


def test_the_weight_falls_from_two_tenths_to_one():
    found = [gamma(AuxiliaryLM(), epoch / 4) for epoch in range(5)]
    assert found == pytest.approx([0.2 * 0.5 ** (epoch / 4) for epoch in range(5)])
    assert found[0] == 0.2
    assert found[2] == pytest.approx(0.141421, abs=1e-6)
    assert found[4] == pytest.approx(0.1)
    assert gamma(AuxiliaryLM(start=0.3, end=0.3), 0.7) == 0.3


@pytest.mark.parametrize("family", WORDED)
def test_the_head_reads_the_students_own_encoder(task, family):
    student, _, loss = bound(task, family)
    own = {id(parameter) for parameter in student.model.parameters()}
    assert loss.reader.get_output_embeddings().weight is word_embeddings(student.model).weight
    extra = [p for p in loss.modules.parameters() if id(p) not in own]
    new = [name for name, p in loss.reader.named_parameters() if id(p) not in own]
    assert len(extra) == len(new) > 0, "all of the head is trained, and nothing of a second encoder"


def test_pieces_of_a_batch_add_up(task):
    found = []
    for pieces in (1, 3):
        student = tiny_taskmodel("bert", task.spec, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
        training = Training(max_steps=2, batch_size=8, gradient_accumulation_steps=pieces)
        found.append(train(student, task.train, WithLanguageModel(), training)[-1]["terms"])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_text_without_a_next_word_has_no_language_loss(task, pieces):
    student = tiny_taskmodel("gpt2", task.spec)
    empty = Examples([{"text": "", "label": task.spec.labels[0]}] * 2, "empty")
    training = Training(max_steps=1, batch_size=2, gradient_accumulation_steps=pieces)
    assert train(student, empty, WithLanguageModel(), training)[-1]["terms"]["language_model"] == 0


def test_the_loss_is_the_mean_over_masked_tokens_times_the_weight(task):
    student, rows, loss = bound(task)
    student.model.eval()
    loss.reader.eval()
    batch = rows.batch(range(16), progress=0.5)
    with torch.no_grad():
        terms = loss(observe(student.model, batch.inputs), batch)
        masked = loss.masked(batch)
        logits = loss.reader(**masked.inputs).logits
    total, count = 0.0, 0
    for row, labels in zip(logits, masked.targets["labels"].tolist(), strict=True):
        for scores, label in zip(row, labels, strict=True):
            if label != IGNORED:
                total -= float(scores.double().log_softmax(dim=0)[label])
                count += 1
    assert count > 5
    assert float(terms["language_model"]) == pytest.approx(0.2 * math.sqrt(0.5) * total / count, rel=1e-5)
    plain = TaskLoss().bind(student, rows)
    with torch.no_grad():
        assert float(terms["task"]) == float(plain(observe(student.model, batch.inputs), batch)["task"])


def test_words_are_masked_at_the_rates_of_bert_and_anew_at_every_update(task):
    student, rows, loss = bound(task)
    hidden = real = replaced = 0
    for step in range(200):
        batch = rows.batch(range(24), progress=step / 200)
        masked = loss.masked(batch)
        labels, ids = masked.targets["labels"], batch.inputs["input_ids"]
        chosen = labels != IGNORED
        special = torch.isin(ids, torch.tensor(student.tokenizer.all_special_ids))
        assert torch.equal(labels[chosen], ids[chosen])
        assert torch.equal(masked.inputs["input_ids"][~chosen], ids[~chosen])
        assert not (chosen & special).any()
        hidden, real = hidden + int(chosen.sum()), real + int((~special).sum())
        replaced += int((masked.inputs["input_ids"][chosen] == student.tokenizer.mask_token_id).sum())
    assert hidden / real == pytest.approx(0.15, abs=0.01)
    assert replaced / hidden == pytest.approx(0.8, abs=0.02)
    first, again, later = (loss.masked(rows.batch(range(24), progress=p)).inputs["input_ids"] for p in (0.1, 0.1, 0.2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    alone = loss.masked(rows.batch([7], progress=0.1)).inputs["input_ids"][0]
    assert torch.equal(alone, first[7][: len(alone)]), "whatever it is batched with"


def test_both_losses_fall_and_the_head_is_thrown_away(task, tmp_path):
    student = tiny_taskmodel("bert", task.spec)
    training = QUICK.model_copy(update={"epochs": 8})
    history = train(student, task.train, WithLanguageModel(weight=AuxiliaryLM(start=0.2, end=0.2)), training, seed=5)
    for name in ("task", "language_model"):
        assert history[-1]["terms"][name] < history[0]["terms"][name]
    assert history[0]["loss"] == pytest.approx(sum(history[0]["terms"].values()))
    save_taskmodel(student, tmp_path)
    assert weights_digest(load_taskmodel(tmp_path).model) == weights_digest(student.model)
    assert student.model.state_dict().keys() == tiny_taskmodel("bert", task.spec).model.state_dict().keys()


def test_the_encoder_learns_from_the_words(task):
    """With no task loss left, gradients still reach every layer and the word embeddings."""
    student, rows, loss = bound(task)
    batch = rows.batch(range(8))
    loss(observe(student.model, batch.inputs), batch)["language_model"].backward()
    for name, parameter in student.model.named_parameters():
        outside = "pooler" in name or name.startswith("classifier")
        assert (parameter.grad is None or not parameter.grad.any()) == outside, name


@pytest.mark.parametrize("update", [2, 4])
def test_a_stopped_training_goes_on_to_the_same_weights(task, tmp_path, update):
    whole, stopped, again = (tiny_taskmodel("bert", task.spec) for _ in range(3))
    train(whole, task.train, WithLanguageModel(), QUICK, seed=3)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, task.train, WithLanguageModel(objective=StopsAt(update)), QUICK, seed=3, folder=tmp_path)
    train(again, task.train, WithLanguageModel(), QUICK, seed=3, folder=tmp_path)
    assert weights_digest(again.model) == weights_digest(whole.model)
    plain = tiny_taskmodel("bert", task.spec)
    train(plain, task.train, training=QUICK, seed=3)
    assert weights_digest(plain.model) != weights_digest(whole.model)


def test_a_family_that_predicts_no_words_is_refused(task):
    with pytest.raises(UserError, match="xlnet has no masked-language head"):
        bound(task, "xlnet")


def test_any_objective_can_stand_beside_it(task):
    student, rows, _ = bound(task)

    class Grouped(Objective):
        def bind(self, student, rows):
            loss = TaskLoss().bind(student, rows)
            loss.groups = [0] * len(rows)
            return loss

    loss = WithLanguageModel(objective=Grouped()).bind(student, rows)
    assert isinstance(loss, LanguageModelLoss)
    assert loss.groups == [0] * len(rows)
    mixed = Examples([{"text": "a film", "label": "good"}, {"text": "a book"}], "mixed")
    assert len(WithLanguageModel(objective=Grouped()).select(task.spec, mixed)) == 2
    assert len(WithLanguageModel().select(task.spec, mixed)) == 1


def test_equal_seeds_give_equal_heads(task):
    student = tiny_taskmodel("bert", task.spec)
    one, same, other = (weights_digest(language_model(student, seed)) for seed in (1, 1, 2))
    assert one == same != other
