"""ELECTRA's losses, sampling and shared tables, against numbers made by hand."""

import math

import numpy as np
import pytest
import torch

from eval.encoding import IGNORED
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.objectives import ReplacedTokenDetection
from teachers.pretraining.objectives.discriminator import (
    Discriminator,
    auc,
    discriminator_loss,
    replaced,
    sample,
    sample_rows,
)
from teachers.pretraining.pretraining_task import PretextLoss, mean_loss, reads_last
from teachers.signals.hooks import Signals
from tests.tiny import tiny_spec, tiny_taskmodel

WEIGHT = ReplacedTokenDetection().discriminator_weight


def test_a_discriminator_that_knows_nothing_loses_ln_2_times_50():
    mask = torch.ones(2, 5)
    loss = discriminator_loss(torch.zeros(2, 5), torch.randint(0, 2, (2, 5)).float(), mask)
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert WEIGHT * loss.item() == pytest.approx(34.657, abs=1e-3)


def test_padding_is_not_judged():
    scores, labels = torch.tensor([[0.0, 9.0]]), torch.tensor([[1.0, 0.0]])
    assert discriminator_loss(scores, labels, torch.tensor([[1.0, 0.0]])).item() == pytest.approx(math.log(2))


def test_what_the_generator_guesses_right_is_original():
    text = torch.arange(20)[None]
    labels = torch.full((1, 20), IGNORED)
    labels[0, [3, 7, 11]] = text[0, [3, 7, 11]]
    ids = text.clone()
    ids[0, [3, 7, 11]] = 30
    logits = torch.full((3, 40), -1e4)
    logits[0, 3] = logits[1, 8] = logits[2, 12] = 1e4
    filled, is_replaced = replaced(ids, labels, sample(logits, torch.Generator().manual_seed(0)))
    assert is_replaced.sum().item() == 2
    assert (1 - is_replaced).sum().item() == 18
    assert filled[0, [3, 7, 11]].tolist() == [3, 8, 12]
    assert (filled[labels == IGNORED] == text[labels == IGNORED]).all()


def test_no_gradient_of_the_discriminator_reaches_the_generator():
    generator, discriminator = torch.nn.Linear(4, 10), torch.nn.Embedding(10, 1)
    logits = generator(torch.randn(3, 4))
    labels = torch.tensor([[1, IGNORED, 3, IGNORED, IGNORED, 2]])
    drawn = sample(logits, torch.Generator().manual_seed(0))
    filled, is_replaced = replaced(torch.zeros(1, 6, dtype=torch.int64), labels, drawn)
    discriminator_loss(discriminator(filled)[..., 0], is_replaced, torch.ones(1, 6)).backward()
    assert generator.weight.grad is None
    assert discriminator.weight.grad.abs().sum() > 0


def test_samples_follow_the_softmax():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2])).repeat(20_000, 1)
    counts = torch.bincount(sample(logits, torch.Generator().manual_seed(0)), minlength=3) / 20_000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.2], atol=4 * math.sqrt(0.25 / 20_000))


def test_the_area_under_the_curve_counts_pairs_in_order():
    chance = np.random.default_rng(0)
    scores = torch.tensor(np.round(chance.normal(size=40), 1))
    labels = torch.tensor(chance.integers(0, 2, 40)).float()
    mask = torch.tensor(chance.integers(0, 2, 40)).float()
    values = [(s, y) for s, y, m in zip(scores.tolist(), labels.tolist(), mask.tolist(), strict=True) if m]
    ones, zeros = ([s for s, y in values if y == kind] for kind in (1, 0))
    pairs = [(a > b) + 0.5 * (a == b) for a in ones for b in zeros]
    assert auc(scores, labels, mask) == pytest.approx(np.mean(pairs))
    assert math.isnan(auc(scores, labels * 0, mask))


def electra():
    torch.manual_seed(0)
    network = tiny_taskmodel("electra", tiny_spec("embedding")).model
    head = Discriminator(network, 0.5, WEIGHT)
    ids = torch.randint(10, 60, (2, 12))
    labels = torch.full((2, 12), IGNORED)
    labels[:, 2:5] = ids[:, 2:5]
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    targets = {"generator": labels, "generator_seed": torch.tensor([[1], [2]]).expand_as(ids)}
    return network, head, head.prepare(Batch(inputs, targets, torch.arange(2)))


def test_what_a_row_draws_does_not_depend_on_its_batch():
    logits, counts, seeds = torch.randn(5, 30), torch.tensor([2, 0, 3]), torch.tensor([7, 8, 9])
    drawn = sample_rows(logits, counts, seeds)
    assert drawn.tolist() == [
        *sample(logits[:2], torch.Generator().manual_seed(7)).tolist(),
        *sample(logits[2:], torch.Generator().manual_seed(9)).tolist(),
    ]


def test_generator_and_discriminator_share_all_tables_and_nothing_else():
    network, head, _ = electra()
    own, other = (dict(module.named_parameters()) for module in (network, head.generator))
    shared = [name for name, p in other.items() if any(p is q for q in own.values())]
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    assert sorted(shared) == sorted(f"electra.embeddings.{table}.weight" for table in tables)
    assert head.generator.get_output_embeddings().weight is network.embeddings.word_embeddings.weight
    assert head.generator.config.hidden_size == network.config.hidden_size // 2


def test_the_discriminators_loss_leaves_the_generators_own_layers_alone():
    network, head, batch = electra()
    hidden = network(**batch.inputs).last_hidden_state
    answered = head(hidden, batch)
    mean_loss(answered["rtd"], hidden).backward()
    tables = {id(p) for p in network.parameters()}
    assert all(p.grad is None for p in head.generator.parameters() if id(p) not in tables)
    assert network.encoder.layer[0].intermediate.dense.weight.grad.abs().sum() > 0


def test_terms_are_means_over_what_they_ask_for():
    network, head, batch = electra()
    loss = PretextLoss({"rtd": head}, {"rtd": 1.0}, reads_last(network))
    assert {name: int(count) for name, count in loss.counts(batch).items()} == {"generator": 6, "rtd": 21}
    states = torch.randn(2, 12, 32)
    torch.nn.init.zeros_(head.judge[2].weight)
    torch.nn.init.zeros_(head.judge[2].bias)
    terms = loss(Signals(torch.empty(0), {network.config.num_hidden_layers: states}), batch)
    assert terms["rtd"].item() == pytest.approx(34.657, abs=1e-3)
    asked = batch.targets["generator"][:, 2:5].flatten()
    expected = torch.nn.functional.cross_entropy(batch.targets["generator_answers"], asked)
    torch.testing.assert_close(terms["generator"], expected)
