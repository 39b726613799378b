"""ERNIE 2.0's token-document relation, by construction, and said once more in slow loops over whole texts."""

import json
from bisect import bisect_right
from itertools import pairwise

import numpy as np
import pytest

from eval.data.sources import Source
from eval.encoding import IGNORED
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.objectives.in_document import in_document
from teachers.pretraining.objectives.pretext_objective import Text
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.text.corpus import build
from teachers.pretraining.text.sequence import Frame
from teachers.pretraining.text.sequence_sources import Dialogues, Given, Packed, dialogues, labelled_pairs
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer("bert")
WORDS = ("the", "film", "was", "good", "it", "is", "a", "warm", "room", "of", "ann", "in", "paris", "rome", "bad")
FORMATS = ("full_sentences", "doc_sentences", "segment_pair", "sentence_pair")
PAIRS = (None, "next_sentence", "sentence_order", "sentence_structure", "sentence_distance")


def text_of(seed=5, documents=12):
    """Return documents of one to nine sentences of two to six words."""
    chance = np.random.default_rng(seed)
    made = [
        "\n".join(" ".join(chance.choice(WORDS, chance.integers(2, 7))) + "." for _ in range(chance.integers(1, 10)))
        for _ in range(documents)
    ]
    return "\n\n".join(made)


def relations(corpus, source, objectives):
    """Draw all sequences; return what was asked, what slow loops say, and how many documents each sequence holds."""
    frame = Frame(TOKENIZER)
    text = Text(corpus, frame, TOKENIZER)
    asks = {name: own.ask(text) for name, own in Objectives(**objectives).given.items()}
    rows = PretextDataset(source(frame), frame, asks)
    bounds = [int(corpus.sentence_starts[first]) for first in corpus.document_starts]
    found, expected, documents = [], [], []
    for number in range(len(rows)):
        drawn = rows.draw(number, epoch=0)
        hidden = drawn.targets["mlm"] != IGNORED if "mlm" in drawn.targets else np.zeros_like(drawn.ids)
        here = {place for place in drawn.places.tolist() if place >= 0}
        held = set()
        for position, place in enumerate(drawn.places.tolist()):
            if place < 0 or hidden[position]:
                expected.append(IGNORED)
                continue
            document = bisect_right(bounds, place) - 1
            held.add(document)
            others = [p for p in range(bounds[document], bounds[document + 1]) if p not in here]
            expected.append(int(any(corpus.tokens[other] == corpus.tokens[place] for other in others)))
        found += drawn.targets["in_document"].tolist()
        documents.append(len(held))
    return found, expected, documents


def test_a_token_may_come_back_in_its_document():
    assert in_document([5, 6, 7, 8], [6, 8, 9], [0, 1, 3]).tolist() == [0, 1, IGNORED, 1]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("how", FORMATS)
def test_every_token_is_compared_with_its_own_document(how, pair, tmp_path):
    (tmp_path / "a.txt").write_text(text_of(), encoding="utf-8")
    corpus = build([Source.of(tmp_path / "a.txt")], TOKENIZER, tmp_path / "home")
    for objectives in ({"in_document": {}}, {"mlm": {"units": "word"}, "in_document": {}}):
        source = lambda frame: Packed(corpus, frame, 36, how, pair)  # noqa: E731
        found, expected, documents = relations(corpus, source, objectives)
        assert found == expected
        assert {0, 1} <= set(found)
        several = how == "full_sentences" or pair in ("next_sentence", "sentence_structure", "sentence_distance")
        assert (max(documents) > 1) == several


def test_so_is_every_token_of_a_shuffled_paragraph(tmp_path):
    (tmp_path / "a.txt").write_text(text_of(), encoding="utf-8")
    corpus = build([Source.of(tmp_path / "a.txt")], TOKENIZER, tmp_path / "home")
    found, expected, _ = relations(
        corpus, lambda frame: Packed(corpus, frame, 36, "segment_pair", reorder=3), {"in_document": {}}
    )
    assert found == expected
    assert {0, 1} <= set(found)


@pytest.mark.parametrize("reader", [labelled_pairs, dialogues])
def test_so_is_every_token_of_given_texts(reader, tmp_path):
    turns = text_of(documents=1).splitlines() + text_of(seed=6, documents=2).split("\n")
    pairs = [{"text_a": a, "text_b": b, "label": str(n % 2)} for n, (a, b) in enumerate(pairwise(turns)) if a and b]
    talks = [{"turns": [one for one in turns[start : start + 5] if one]} for start in range(6)]
    lines = pairs if reader is labelled_pairs else talks
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    corpus = build([Source.of(tmp_path / "a.jsonl")], TOKENIZER, tmp_path / "home", reader=reader)
    made = Given if reader is labelled_pairs else Dialogues
    found, expected, documents = relations(corpus, lambda frame: made(corpus, frame, 12), {"in_document": {}})
    assert found == expected
    assert {0, 1} <= set(found)
    assert (max(documents) > 1) == (reader is dialogues), "a strange turn is another dialogue's"
