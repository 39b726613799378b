"""Padding changes no answer, whatever side a tokenizer names.

The vector of padding, which MobileBERT's last word sees, stays 0 through training with tied embeddings.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import mixes_neighbours, word_embeddings
from teachers.taskmodel import load_taskmodel, save_taskmodel
from teachers.training.loop import train
from tests.tiny import FAMILIES, LONG, at_first, tiny_task, tiny_taskmodel


def alone_and_padded(model, examples):
    rows = [model.encoder.encode(examples[i : i + 1]) for i in range(len(examples))]
    for row in rows:
        length = len(row[0].ids)
        short = model.forward(model.encoder.collate(row))
        long = model.forward(model.encoder.collate(row, multiple_of=32))
        place = model.encoder.place(length, long.shape[1])
        yield short, long[:, place]


def test_masked_words_leave_the_vector_of_padding_alone():
    task = tiny_task("masked-lm")
    model = tiny_taskmodel("mobilebert", task.spec)
    pad = model.tokenizer.pad_token_id
    before = word_embeddings(model.model).weight.detach().clone()
    train(model, task.train, seed=1, training=None)
    after = word_embeddings(model.model).weight.detach()
    assert after[pad].abs().max() == 0
    assert not torch.equal(after, before)
    assert word_embeddings(model.model).weight._backward_hooks in (None, {})
    for short, long in alone_and_padded(model, task.validation[:4]):
        assert np.allclose(short, long, atol=1e-5)


def test_a_model_that_had_another_vector_is_read_without_it(tmp_path):
    task = tiny_task("classification")
    model = tiny_taskmodel("mobilebert", task.spec)
    with torch.no_grad():
        word_embeddings(model.model).weight[model.tokenizer.pad_token_id] = 1.0
    save_taskmodel(model, tmp_path)
    loaded = load_taskmodel(tmp_path)
    assert word_embeddings(loaded.model).weight[model.tokenizer.pad_token_id].abs().max() == 0
    examples = task.validation[:6]
    alone = [np.stack(predict(one, examples, batch_size=1).logits) for one in (model, loaded)]
    assert np.array_equal(*alone)
    assert np.allclose(np.stack(predict(loaded, examples, batch_size=6).logits), alone[0], atol=1e-5)
    assert not np.allclose(np.stack(predict(model, examples, batch_size=6).logits), alone[0], atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_mobilebert_mixes_neighbours(family):
    assert mixes_neighbours(tiny_taskmodel(family).model.config) == (family == "mobilebert")


@pytest.mark.parametrize("kind", ["classification", "embedding"])
@pytest.mark.parametrize("family", at_first((*FAMILIES, *LONG), "bert", "modernbert", "longformer"))
def test_a_tokenizer_that_pads_on_the_left_changes_no_answer(family, kind):
    plain = tiny_taskmodel(family, tiny_task(kind).spec)
    left = replace(plain, tokenizer=copy.deepcopy(plain.tokenizer))
    left.tokenizer.padding_side = "left"
    texts = Examples([{"text": "ann lives in paris"}, {"text": "the film was good and the book was dull and the song"}])
    for own, expected in zip(predict(left, texts).logits, predict(plain, texts).logits, strict=True):
        assert np.allclose(own, expected, atol=1e-6)
    assert np.allclose(predict(left, texts).logits[0], predict(left, texts[:1]).logits[0], atol=1e-5)
