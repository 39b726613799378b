"""SpanBERT's boundary objective, against its formula said once more."""

import math

import numpy as np
import pytest
import torch

from eval.data.sources import Source
from eval.encoding import IGNORED
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.objectives.mlm import mark_spans
from teachers.pretraining.objectives.pretext_objective import Text
from teachers.pretraining.objectives.span_boundary_head import SpanBoundaryHead, SpanVectors
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.text.corpus import build
from teachers.pretraining.text.sequence import Drawn, Frame
from teachers.pretraining.text.sequence_sources import Packed
from tests.tiny import tiny_spec, tiny_taskmodel, tiny_tokenizer


def test_a_token_is_told_from_the_ends_of_its_span_and_its_place():
    places = torch.tensor([[0, 2, 6, 0], [0, 2, 6, 1], [0, 2, 6, 2], [0, 7, 9, 0], [1, 1, 4, 0], [1, 1, 4, 1]])
    torch.manual_seed(0)
    head, hidden = SpanVectors(8, positions=5).eval(), torch.randn(2, 12, 8)
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
    head, hidden = SpanVectors(8), torch.randn(1, 12, 8)
    other = hidden.clone()
    other[0, 3:6] = 99.0
    torch.testing.assert_close(head(hidden, places), head(other, places))


def test_the_head_asks_for_each_hidden_token_by_its_span():
    network = tiny_taskmodel("bert", tiny_spec("masked-lm")).model
    torch.manual_seed(0)
    head, hidden = SpanBoundaryHead(network).eval(), torch.randn(2, 9, 32)
    drawn = Drawn(np.arange(9), np.zeros(9, int), np.zeros(9, int), np.arange(9))
    mark_spans(drawn, [[3, 4], [7]])
    labels = torch.full((2, 9), IGNORED)
    labels[1, [3, 4, 7]] = torch.tensor([11, 12, 13])
    targets = {name: torch.from_numpy(np.stack([np.full(9, IGNORED), own])) for name, own in drawn.targets.items()}
    batch = Batch({}, {**targets, "span_boundary": labels}, torch.arange(2))
    answered = head(hidden, batch)["span_boundary"]
    vectors = head.vectors(hidden, torch.tensor([[1, 2, 5, 0], [1, 2, 5, 1], [1, 6, 8, 0]]))
    torch.testing.assert_close(answered.logits, vectors @ network.bert.embeddings.word_embeddings.weight.T + head.bias)
    assert answered.labels.tolist() == [11, 12, 13]


@pytest.mark.parametrize("how", ["doc_sentences", "full_sentences", "segment_pair"])
def test_what_stands_around_a_span_is_what_stands_in_the_text(how, tmp_path):
    tokenizer, words = tiny_tokenizer("bert"), ["film", "good", "warm", "room", "of", "ann", "in", "paris", "it", "was"]
    chance = np.random.default_rng(3)
    documents = (" ".join(chance.choice(words, 90)) + "." for _ in range(30))
    (tmp_path / "a.txt").write_text("\n\n".join(documents), encoding="utf-8")
    corpus = build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")
    frame = Frame(tokenizer)
    text, source = Text(corpus, frame, tokenizer), Packed(corpus, frame, 64, how)
    given = Objectives(mlm={"units": "span"}, span_boundary={}).given
    rows = PretextDataset(source, frame, {name: own.ask(text) for name, own in given.items()})
    spans = 0
    for number in range(len(rows)):
        plain, drawn = source.draw(number, np.random.default_rng(0)), rows.draw(number, 0)
        hidden = drawn.targets["span_boundary"] != IGNORED
        assert 0 < hidden.sum() <= math.ceil(0.15 * (plain.words >= 0).sum())
        ends = np.concatenate([drawn.targets[name][hidden] for name in ("span_before", "span_after")])
        assert not hidden[ends].any(), "no word is asked for by a hidden one"
        assert (drawn.ids[ends] == plain.ids[ends]).all()
        spans += (drawn.targets["span_number"] == 0).sum()
        for place in np.flatnonzero(hidden):  # the whole run of hidden tokens is one span
            before, after = (int(drawn.targets[name][place]) for name in ("span_before", "span_after"))
            assert hidden[before + 1 : after].all()
            assert drawn.targets["span_number"][place] == place - before - 1
            assert after - before - 1 <= 10
    assert spans > 60
