"""Feature-based use: the encoder runs once, and the result is that of training with a frozen encoder."""

import time

import pytest
import torch
from torch import nn

from eval.errors import UserError
from eval.task import Examples
from teachers.anatomy.encoder import base_encoder, head_parameters, layers
from teachers.finetuning.finetune import finetune
from teachers.finetuning.frozen_features import kept_features
from teachers.taskmodel import load_taskmodel, weights_digest
from teachers.training.config import AuxiliaryLM, Training
from teachers.training.loop import train
from tests.tiny import FAMILIES, at_first, tiny_task, tiny_taskmodel

QUICK = Training(epochs=4, learning_rate=3e-3, batch_size=8, weight_decay=0.1)
FROZEN = QUICK.model_copy(update={"freeze": ("embeddings", "encoder")})


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))


def without_dropout(model):
    """Switch the encoder's dropout off, the head's stays."""
    for module in base_encoder(model.model).modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    base_encoder(model.model).config.attention_probs_dropout_prob = 0.0
    return model


def passes(model):
    """Count how often the first layer runs."""
    calls = []
    layers(model.model)[0].register_forward_hook(lambda *_: calls.append(1))
    return calls


def trained(family, task, features):
    model = without_dropout(tiny_taskmodel(family, task.spec))
    examples = Examples([*task.train, *task.validation])
    if features:
        with kept_features(model, examples):
            history = train(model, task.train, training=FROZEN, seed=4, validation=task.validation)
    else:
        history = train(model, task.train, training=FROZEN, seed=4, validation=task.validation)
    return model, history


def assert_close(one, other):
    theirs = head_parameters(other.model)
    for name, parameter in head_parameters(one.model).items():
        assert torch.allclose(parameter, theirs[name], atol=2e-5), name


def equal_encoders(one, other):
    heads = head_parameters(one.model)
    theirs = dict(other.model.named_parameters())
    return all(torch.equal(p, theirs[name]) for name, p in one.model.named_parameters() if name not in heads)


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "albert", "xlnet", "modernbert", "mobilebert"))
@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_the_result_is_that_of_a_frozen_encoder(family, kind):
    task = tiny_task(kind, examples=24)
    (kept, history), (run, expected) = trained(family, task, True), trained(family, task, False)
    untouched = tiny_taskmodel(family, task.spec)
    assert_close(kept, run)
    heads = [head_parameters(model.model) for model in (kept, untouched)]
    assert not any(torch.equal(parameter, heads[1][name]) for name, parameter in heads[0].items()), "a pooler too"
    assert equal_encoders(kept, untouched)
    assert [entry["loss"] for entry in history] == pytest.approx([entry["loss"] for entry in expected], abs=1e-4)
    assert [entry["score"] for entry in history] == [entry["score"] for entry in expected]


@pytest.mark.parametrize("kind", ["qa", "regression"])
@pytest.mark.parametrize("pair", [False, True])
def test_other_kinds_and_pairs(kind, pair):
    task = tiny_task(kind, pair=pair and kind == "regression", examples=16)
    (kept, history), (run, expected) = trained("bert", task, True), trained("bert", task, False)
    assert_close(kept, run)
    assert [entry["loss"] for entry in history] == pytest.approx([entry["loss"] for entry in expected], abs=1e-4)


def test_the_encoder_runs_once_over_the_texts_however_many_epochs():
    task = tiny_task(examples=64)
    counted = []
    for epochs in (2, 12):
        model = tiny_taskmodel("bert", task.spec, seed=epochs)
        calls = passes(model)
        started = time.perf_counter()
        with kept_features(model, Examples([*task.train, *task.validation])):
            made = len(calls)
            train(model, task.train, training=FROZEN.model_copy(update={"epochs": epochs}), seed=4)
        counted.append((made, len(calls) - made, time.perf_counter() - started))
    assert [made for made, _, _ in counted] == [5, 5], "four batches of 32, and one row to see what it returns"
    assert [later for _, later, _ in counted] == [0, 0]
    model = tiny_taskmodel("bert", task.spec, seed=2)
    calls = passes(model)
    train(model, task.train, training=FROZEN.model_copy(update={"epochs": 12}), seed=4)
    assert len(calls) == 12 * 8


def test_features_are_found_again_by_another_head():
    task = tiny_task(examples=16)
    base = tiny_taskmodel("bert", task.spec)
    with kept_features(base, task.train):
        pass
    other = tiny_taskmodel("bert", task.spec)
    with torch.no_grad():
        other.model.classifier.weight.mul_(-3.0)
    calls = passes(other)
    with kept_features(other, task.train):
        assert len(calls) == 1, "the row that shows what it returns"


def test_what_was_not_seen_before_is_computed_as_ever():
    task = tiny_task(examples=16)
    model = tiny_taskmodel("bert", task.spec)
    batch = {
        name: torch.from_numpy(array) for name, array in model.encoder.collate(model.encoder.encode(task.test)).items()
    }
    with torch.no_grad():
        expected = model.model(**batch).logits
        with kept_features(model, task.train):
            calls = passes(model)
            assert torch.equal(model.model(**batch).logits, expected)
            assert len(calls) == 1
            states = model.model(**batch, output_hidden_states=True).hidden_states
            assert len(states) == 4
    assert "forward" not in vars(base_encoder(model.model)), "afterwards the encoder is as it was"


def test_the_same_pieces_with_other_token_types_are_another_text():
    task = tiny_task("classification", pair=True, examples=2)
    lines = [
        {"text_a": "the film", "text_b": "is good", "label": "good"},
        {"text_a": "a book", "text_b": "is bad", "label": "bad"},
    ]
    model = tiny_taskmodel("bert", task.spec)
    examples = Examples(lines)
    inputs = {
        name: torch.from_numpy(array) for name, array in model.encoder.collate(model.encoder.encode(examples)).items()
    }
    swapped = {**inputs, "token_type_ids": 1 - inputs["token_type_ids"]}
    with torch.no_grad():
        expected = [model.model(**one).logits for one in (inputs, swapped)]
        with kept_features(model, examples):
            calls = passes(model)
            found = [model.model(**one).logits for one in (inputs, swapped)]
    assert len(calls) == 1
    assert torch.allclose(found[0], expected[0], atol=1e-6)
    assert torch.equal(found[1], expected[1])
    assert not torch.allclose(expected[0], expected[1], atol=1e-4)


def test_beyond_the_budget_the_encoder_runs_without_dropout(monkeypatch):
    monkeypatch.setattr("teachers.signals.model_teacher.ModelTeacher.__init__.__defaults__", (None, 0, "fp32"))
    task = tiny_task(examples=16)
    model = tiny_taskmodel("bert", task.spec)
    inputs = model.encoder.collate(model.encoder.encode(task.train))
    batch = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.no_grad():
        expected = model.model(**batch).logits
        with kept_features(model, task.train):
            base_encoder(model.model).train()
            calls = passes(model)
            assert torch.allclose(model.model(**batch).logits, expected, atol=1e-6)
            assert len(calls) == 1


def test_a_teacher_of_features_is_kept_and_stock(tmp_path):
    task = tiny_task(examples=24)
    teacher, folder = finetune(tiny_taskmodel("bert", task.spec), task, QUICK, features=True, seed=4)
    again, same = finetune(tiny_taskmodel("bert", task.spec), task, QUICK, features=True, seed=4)
    plain, other = finetune(tiny_taskmodel("bert", task.spec), task, QUICK, seed=4)
    assert folder == same != other
    assert weights_digest(load_taskmodel(folder).model) == weights_digest(teacher.model) == again.digest
    assert teacher.digest != plain.digest
    assert equal_encoders(teacher, tiny_taskmodel("bert", task.spec))
    assert not equal_encoders(plain, teacher)


def test_what_excludes_each_other_is_refused_at_once():
    task = tiny_task(examples=8)
    with pytest.raises(UserError) as error:
        finetune(
            tiny_taskmodel("bert", task.spec),
            task,
            QUICK.model_copy(update={"unfreeze": 0.5}),
            features=True,
            auxiliary_lm=AuxiliaryLM(),
        )
    assert len(error.value.problems) == 2
    assert "auxiliary_lm: trains the encoder, which features keeps as it is" in str(error.value)
    assert "features: keeps the encoder as it is, and unfreeze trains it" in str(error.value)
