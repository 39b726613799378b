"""Objectives of pretraining beside the masked language, against numbers made by hand."""

import math

import numpy as np
import pytest
import torch

from eval.encoding import IGNORED
from teachers.features import Batch
from teachers.observing import Signals
from teachers.pretraining.drawn import Drawn
from teachers.pretraining.heads import TextHead, pooler
from teachers.pretraining.lesson import PretextLoss, mean_loss, reads_last
from teachers.pretraining.objectives import _mark_spans
from teachers.pretraining.replaced import WEIGHT, Discriminator, auc, discriminator_loss, replaced, sample
from teachers.pretraining.span_boundary import SpanBoundary, SpanBoundaryHead
from teachers.pretraining.words import capitals, in_document, shuffle_trigrams
from tests.tiny import tiny_spec, tiny_taskmodel

# ---- ELECTRA


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
    filled, is_replaced = replaced(ids, labels, logits, torch.Generator().manual_seed(0))
    assert is_replaced.sum().item() == 2
    assert (1 - is_replaced).sum().item() == 18
    assert filled[0, [3, 7, 11]].tolist() == [3, 8, 12]
    assert (filled[labels == IGNORED] == text[labels == IGNORED]).all()


def test_no_gradient_of_the_discriminator_reaches_the_generator():
    generator, discriminator = torch.nn.Linear(4, 10), torch.nn.Embedding(10, 1)
    logits = generator(torch.randn(3, 4))
    labels = torch.tensor([[1, IGNORED, 3, IGNORED, IGNORED, 2]])
    filled, is_replaced = replaced(
        torch.zeros(1, 6, dtype=torch.int64), labels, logits, torch.Generator().manual_seed(0)
    )
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


# ---- SpanBERT


def test_a_token_is_told_from_the_ends_of_its_span_and_its_place():
    places = torch.tensor([[0, 2, 6, 0], [0, 2, 6, 1], [0, 2, 6, 2], [0, 7, 9, 0], [1, 1, 4, 0], [1, 1, 4, 1]])
    torch.manual_seed(0)
    head, hidden = SpanBoundary(8, positions=5).eval(), torch.randn(2, 12, 8)
    found = head(hidden, places)
    for vector, (row, before, after, number) in zip(found, places.tolist(), strict=True):
        x = torch.cat([hidden[row, before], hidden[row, after], head.places.weight[number]])
        for dense, norm in ((head.layers[0], head.layers[2]), (head.layers[3], head.layers[5])):
            x = dense.weight @ x + dense.bias
            x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
            x = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + norm.eps) * norm.weight + norm.bias
        torch.testing.assert_close(vector, x)


def test_what_stands_inside_a_span_is_not_read():
    torch.manual_seed(0)
    places = torch.tensor([[0, 2, 6, 0], [0, 2, 6, 1], [0, 2, 6, 2]])
    head, hidden = SpanBoundary(8), torch.randn(1, 12, 8)
    other = hidden.clone()
    other[0, 3:6] = 99.0
    torch.testing.assert_close(head(hidden, places), head(other, places))


def test_the_head_asks_for_each_hidden_token_by_its_span():
    network = tiny_taskmodel("bert", tiny_spec("masked-lm")).model
    torch.manual_seed(0)
    head, hidden = SpanBoundaryHead(network).eval(), torch.randn(2, 9, 32)
    drawn = Drawn(np.arange(9), np.zeros(9, int), np.zeros(9, int), np.arange(9), 0)
    _mark_spans(drawn, [[3, 4], [7]])
    labels = torch.full((2, 9), IGNORED)
    labels[1, [3, 4, 7]] = torch.tensor([11, 12, 13])
    targets = {name: torch.from_numpy(np.stack([np.full(9, IGNORED), own])) for name, own in drawn.targets.items()}
    batch = Batch({}, {**targets, "span_boundary": labels}, torch.arange(2))
    answered = head(hidden, batch)["span_boundary"]
    vectors = head.vectors(hidden, torch.tensor([[1, 2, 5, 0], [1, 2, 5, 1], [1, 6, 8, 0]]))
    torch.testing.assert_close(answered.logits, vectors @ network.bert.embeddings.word_embeddings.weight.T + head.bias)
    assert answered.labels.tolist() == [11, 12, 13]


# ---- ELECTRA, both networks


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
    return network, head, head.prepare(Batch(inputs, {"generator": labels}, torch.arange(2)))


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
    mean_loss(answered["replaced_tokens"], hidden).backward()
    tables = {id(p) for p in network.parameters()}
    assert all(p.grad is None for p in head.generator.parameters() if id(p) not in tables)
    assert network.encoder.layer[0].intermediate.dense.weight.grad.abs().sum() > 0


def test_terms_are_means_over_what_they_ask_for():
    network, head, batch = electra()
    loss = PretextLoss({"replaced_tokens": head}, {"replaced_tokens": 1.0}, reads_last(network))
    assert {name: int(count) for name, count in loss.counts(batch).items()} == {"generator": 6, "replaced_tokens": 21}
    states = torch.randn(2, 12, 32)
    torch.nn.init.zeros_(head.judge[2].weight)
    torch.nn.init.zeros_(head.judge[2].bias)
    terms = loss(Signals(torch.empty(0), {network.config.num_hidden_layers: states}), batch)
    assert terms["replaced_tokens"].item() == pytest.approx(34.657, abs=1e-3)
    asked = batch.targets["generator"][:, 2:5].flatten()
    expected = torch.nn.functional.cross_entropy(batch.targets["generator_answers"], asked)
    torch.testing.assert_close(terms["generator"], expected)


@pytest.mark.parametrize(("classes", "expected"), [(2, 0.693147), (3, 1.098612), (9, 2.197225)])
def test_a_class_of_nothing_known_costs_the_logarithm_of_their_number(classes, expected):
    network = tiny_taskmodel("bert", tiny_spec("masked-lm")).model
    head = TextHead(network, "label", classes, pooler(network))
    torch.nn.init.zeros_(head.classifier.weight)
    hidden = torch.randn(4, 5, 32)
    batch = Batch({}, {"label": torch.tensor([0, 1, IGNORED, 1])}, torch.arange(4))
    answered = head(hidden, batch)["label"]
    assert answered.logits.shape == (3, classes)
    assert mean_loss(answered, hidden).item() == pytest.approx(expected, abs=1e-6)


# ---- labels that a text gives for nothing


def test_runs_of_three_are_shuffled_and_asked_for():
    ids, able = np.arange(100, 400), [place for place in range(300) if place % 50]
    shares = []
    for seed in range(100):
        changed, labels = shuffle_trigrams(ids, able, 0.05, np.random.default_rng(seed))
        places = np.flatnonzero(labels != IGNORED)
        assert set(places) <= set(able)
        assert (labels[places] == ids[places]).all()
        assert (np.sort(changed) == ids).all()
        assert (changed[labels == IGNORED] == ids[labels == IGNORED]).all()
        shares.append(len(places) / len(able))
    assert np.mean(shares) == pytest.approx(0.05, abs=0.002)


def test_orders_of_a_run_are_equally_likely_but_for_its_own():
    seen = {}
    for seed in range(5000):
        changed, _ = shuffle_trigrams(np.arange(3), [0, 1, 2], 1.0, np.random.default_rng(seed))
        seen[tuple(changed)] = seen.get(tuple(changed), 0) + 1
    assert len(seen) == 5
    assert np.abs(np.array(list(seen.values())) / 5000 - 0.2).max() < 4 * math.sqrt(0.2 * 0.8 / 5000)


def test_capitals_are_asked_of_the_first_piece_of_a_word():
    labels = capitals([-1, 0, 0, 1, 2, -1], {0: True, 1: False, 2: True})
    assert labels.tolist() == [IGNORED, 1, IGNORED, 0, 1, IGNORED]


def test_a_token_may_come_back_in_its_document():
    assert in_document([5, 6, 7, 8], [6, 8, 9], [0, 1, 3]).tolist() == [0, 1, IGNORED, 1]
