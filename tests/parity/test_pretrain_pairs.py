"""Pairs of segments and their labels, by construction, and what knowing nothing of them costs."""

import numpy as np
import pytest
import torch

from eval.encoding import IGNORED
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.prediction_heads import TextHead, pooler
from teachers.pretraining.pretraining_task import mean_loss
from teachers.pretraining.text.sentence_pairs import (
    PAIRS,
    elsewhere,
    halves,
    joined,
    reordered,
    reordering_classes,
)
from tests.tiny import tiny_spec, tiny_taskmodel


def chance(seed=0):
    return np.random.default_rng(seed)


class Corpus:
    def __init__(self, documents=40, sentences=12):
        self.documents = [[tuple(1000 * d + 10 * s + np.arange(4)) for s in range(sentences)] for d in range(documents)]

    def __len__(self):
        return len(self.documents)

    def sentences(self, document):
        return self.documents[document]


@pytest.mark.parametrize("name", list(PAIRS))
def test_labels_of_pairs_are_balanced_and_true(name):
    corpus, source = Corpus(), chance()
    classes, make = PAIRS[name]
    counts = np.zeros(classes)
    for number in range(10_000):
        document = number % len(corpus)
        sentences = corpus.sentences(document)
        start = int(source.integers(0, 6))
        first, second = halves(sentences[start : start + 6], source)
        pair = make(corpus, first, second, document, source)
        counts[pair.label] += 1
        assert {first, second} >= {pair.first} or pair.first == first
        same = pair.second[0] // 1000 == document
        follows = (pair.first, pair.second) == (first, second)
        if name == "next_sentence":
            assert (pair.label == 0) == same == follows
        elif name == "sentence_order":
            assert same
            assert (pair.label == 0) == follows
        elif name == "sentence_structure":
            assert (pair.label == 2) == (not same)
            assert (pair.label == 0) == follows
        else:
            assert (pair.label == 2) == (not same)
            assert (pair.label == 0) == follows
    assert np.abs(counts / 10_000 - 1 / classes).max() < 0.02


@pytest.mark.parametrize("name", ["next_sentence", "sentence_structure", "sentence_distance"])
def test_segments_from_elsewhere_end_where_a_sentence_does(name):
    source, corpus = chance(), Corpus(documents=20, sentences=30)
    for document in corpus.documents:
        document[:] = [tuple(sentence[0] + np.arange(source.integers(2, 10))) for sentence in document]
    ends = {sentence[-1] for document in corpus.documents for sentence in document}
    sizes = {label: [] for label in range(PAIRS[name][0])}
    for number in range(2000):
        document = number % len(corpus)
        start = int(source.integers(0, 20))
        first, second = halves(corpus.sentences(document)[start : start + 8], source)
        pair = PAIRS[name][1](corpus, first, second, document, source)
        assert pair.second[-1] in ends or len(second) < 9, "the last token tells nothing of the label"
        assert len(pair.second) <= max(len(first), len(second))
        sizes[pair.label].append(len(pair.second))
    means = [np.mean(found) for found in sizes.values()]
    assert max(means) - min(means) < 2, "nor does the length"
    only = Corpus(documents=2, sentences=1)
    assert PAIRS["sentence_distance"][1](only, (0, 1), (2, 3), 0, chance(1)).label != 1, "there is no other place"
    assert len(elsewhere(only, 0, 3, source)) == 3, "a sentence that is too long is cut"


def test_segments_are_divided_between_sentences():
    sentences = Corpus().sentences(3)
    found = set()
    for seed in range(200):
        first, second = halves(sentences[2:6], chance(seed))
        assert first + second == joined(sentences[2:6])
        found.add(len(first))
    assert found == {4, 8, 12}, "at each place between two sentences"
    assert halves(sentences[:1], chance()) == (sentences[0][:2], sentences[0][2:]), "a single one in its middle"


@pytest.mark.parametrize(("most", "classes"), [(1, 1), (2, 3), (3, 9), (4, 33)])
def test_reordering_has_as_many_classes_as_orders(most, classes):
    assert reordering_classes(most) == classes
    segments = [(number,) for number in range(8)]
    seen = {}
    for seed in range(4000):
        parts, label = reordered(segments, most, chance(seed))
        assert sorted(joined(parts)) == list(range(8))
        starts = [part[0] for part in parts]
        order = tuple(sorted(starts).index(start) for start in starts)
        assert seen.setdefault(label, order) == order, "a class is one order"
    assert set(seen) == set(range(classes))


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
