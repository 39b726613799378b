"""Texts that an encoder with a decoder writes are those of transformers' own ``generate``."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from eval.generation.beam_search import best_of, likeliest, searched
from teachers.anatomy.encoder import decoder_layers, layer_parts
from teachers.generation.torch_decoding import TorchDecoding
from teachers.taskmodel import evaluating
from tests.tiny import ENCODER_DECODERS, tiny_spec, tiny_taskmodel

MOST = 12


def with_an_end(model, inputs):
    """Return a token that stands in some texts at another place than in others, to be taken as the end."""
    with evaluating(model):
        texts = likeliest(TorchDecoding(model, inputs), 0, -1, MOST)
        texts += [own[0] for own in searched(TorchDecoding(model, inputs), 0, -1, MOST, 3)]
    places = {token: {row.index(token) for row in texts if token in row} for row in texts for token in row}
    return max(places, key=lambda token: (len(places[token]), token))


def written(model, inputs, end, beams, penalty):
    config = GenerationConfig(
        num_beams=beams,
        length_penalty=penalty,
        max_new_tokens=MOST,
        do_sample=False,
        early_stopping=False,
        decoder_start_token_id=0,
        eos_token_id=end,
        pad_token_id=0,
    )
    rows = model.generate(**inputs, generation_config=config)[:, 1:].tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_texts_are_those_of_transformers(family):
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 300, (5, 9), generator=chance)
    mask = torch.ones_like(ids)
    mask[1, 5:] = mask[3, 2:] = 0
    inputs, lengths = {"input_ids": ids, "attention_mask": mask}, set()
    model = tiny_taskmodel(family, tiny_spec("seq2seq"), seed=3).model
    with torch.no_grad():
        for layer in decoder_layers(model):
            for part in layer_parts(model, layer).values():
                part.weight.mul_(2.0)
    end = with_an_end(model, inputs)
    for beams, penalty in ((1, 1.0), (3, 1.0), (2, 0.5), (4, 2.0)):
        with evaluating(model):
            decoding = TorchDecoding(model, inputs)
            if beams == 1:
                found = likeliest(decoding, 0, end, MOST)
            else:
                every = searched(decoding, 0, end, MOST, beams, penalty)
                found = [own[0] for own in every]
                assert all(1 <= len(own) <= beams for own in every)
            assert found == written(model, inputs, end, beams, penalty), (beams, penalty)
        lengths |= {len(row) for row in found}
    assert len(lengths) > 2, "some texts end early, so that the end was tested"


class Chain:
    """Scores that depend on the newest token alone: of what follows 1, the second best goes on better."""

    table = np.log(
        [[0.2, 0.2, 0.3, 0.3], [0.0001, 0.0001, 0.55, 0.4498], [0.4, 0.2, 0.2, 0.2], [0.9, 0.04, 0.03, 0.03]]
    )

    def __init__(self, rows):
        self.rows = rows

    def step(self, ids):
        return self.table[ids]

    def keep(self, rows):
        self.rows = len(rows)


def test_a_beam_finds_what_the_likeliest_token_misses():
    assert likeliest(Chain(1), 1, 0, 6) == [[2]]
    assert searched(Chain(1), 1, 0, 6, 2, 0.0)[0][0] == [3]
    assert searched(Chain(2), 1, 0, 6, 3, 0.0)[1][:2] == [[3], [2]]


def test_a_longer_text_wins_with_a_higher_penalty():
    short, long = (searched(Chain(1), 2, 0, 6, 4, penalty)[0][0] for penalty in (0.0, 8.0))
    assert len(short) < len(long)


@pytest.mark.parametrize("most", [1, 6, 400])
def test_the_best_tokens_are_the_same_wherever_they_are_found(most):
    inputs = {"input_ids": torch.randint(5, 300, (4, 7), generator=torch.Generator().manual_seed(1))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    model = tiny_taskmodel("t5", tiny_spec("seq2seq"), seed=3).model
    with evaluating(model):
        scores = TorchDecoding(model, inputs).step(np.zeros(4, dtype=np.int64))
        tokens, found = TorchDecoding(model, inputs).best(np.zeros(4, dtype=np.int64), most)
    expected = best_of(scores, most)
    np.testing.assert_array_equal(tokens, expected[0])
    np.testing.assert_allclose(found, expected[1], atol=1e-5)


@pytest.mark.parametrize("words", [5, 64, 700, 6000])
@pytest.mark.parametrize("most", [1, 4, 12])
def test_the_best_of_a_large_vocabulary_are_those_that_sorting_all_of_it_finds(words, most):
    chance = np.random.default_rng(words)
    scores = chance.permuted(np.tile(np.linspace(-8, 8, words, dtype=np.float32), (3, 1)), axis=1)
    tokens, found = best_of(scores, most)
    np.testing.assert_array_equal(tokens, np.sort(np.argsort(-scores, axis=-1)[:, :most], axis=-1))
    exact = scores.astype(np.float64)
    expected = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(found, np.take_along_axis(expected, tokens, axis=-1), atol=1e-5)
