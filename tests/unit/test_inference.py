"""Inputs and answers: windows, padding, spans, tags; against transformers' own tokenizers and slow searches."""

import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from eval.encoding import EncoderSettings, TextEncoder
from eval.inference import MOST_TOKENS, batches_by_length, cheapest_batches, predict, softmax
from eval.kinds.qa import LONGEST_ANSWER, best_span
from tests.tiny import tiny_tokenizer

FAMILIES = ("bert", "distilbert", "roberta", "albert", "xlnet", "deberta-v2", "modernbert")
LINES = [
    "the film was very good and bright !",
    "Ann lives in Rome , and Bob lives in Oslo .",
    "",
    "a",
    "Ünïcode , 中文 text 🎉 and don't-stop\x07now",
    "  spaces   in \t odd places\n",
    "it is good " * 12,
]
QUESTIONS = {
    "several tokens a character": "中文🎉ﷺ" * 30,
    "one word": "x" * 200,
    "many words": "don't " * 40,
    "empty": "",
    "blank": " ",
    "characters that become several": "㎞" * 40,
}


def pieces(words: str) -> Tokenizer:
    """A small WordPiece with BERT's rules; words of `##` are continuations."""
    names = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split()])
    tokenizer = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


WORDS = "where is ann bob in rome oslo lives . ? un ##aff ##able ##ly good"


def encoder(kind="classification", tokenizer=None, **settings):
    labels = {"classification": ("bad", "good"), "tagging": ("O", "B-PER", "B-LOC")}.get(kind, ())
    values = {"kind": kind, "labels": labels, "inputs": ("input_ids", "attention_mask", "token_type_ids")} | settings
    return TextEncoder(tokenizer or pieces(WORDS), EncoderSettings(**values))


class Model:
    """Answers by a rule over ids, so that the right answer of any batch is known."""

    def __init__(self, encoder, rule, name="rule"):
        self.encoder, self.rule, self.name, self.shapes = encoder, rule, name, []

    def forward(self, inputs):
        self.shapes.append(inputs["input_ids"].shape)
        return np.asarray(self.rule(**inputs), dtype=np.float32)


def family_encoder(family, kind, **settings):
    tokenizer = tiny_tokenizer(family)
    given = {
        "inputs": tuple(tokenizer.model_input_names),
        "pad_id": tokenizer.pad_token_id,
        "pad_type_id": tokenizer.pad_token_type_id,
        "pad_side": tokenizer.padding_side,
    }
    return tokenizer, encoder(kind, tokenizer.backend_tokenizer, **given | settings)


def same(arrays, expected):
    assert set(arrays) <= set(expected)
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, np.array(expected[name]), err_msg=name)


def threads_agree(own, several):
    """Several threads encode the same examples as one does."""
    expected = [own.encode(examples) for examples in several]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(own.encode, several * 30))
    assert found == expected * 30


class TestParityWithTransformers:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_single_texts(self, family, side, monkeypatch):
        tokenizer, own = family_encoder(family, "classification", max_length=12, truncation_side=side)
        monkeypatch.setattr(tokenizer, "truncation_side", side)
        features = own.encode([{"text": line} for line in LINES])
        expected = tokenizer(LINES, truncation=True, max_length=12, padding=True)
        same(own.collate(features), expected)
        assert [feature.example for feature in features] == list(range(len(LINES)))

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
    def test_pairs(self, family, strategy):
        long, short = "it is good and bright " * 6, "the film"
        pairs = {
            "longest_first": [(long, short), (short, long), (long, long), (short, short), ("", long)],
            "only_first": [(long, short), (short, short), (long, "")],
            "only_second": [(short, long), (short, short), ("", long)],
        }[strategy]
        tokenizer, own = family_encoder(family, "classification", max_length=20, pair=True, truncation=strategy)
        features = own.encode([{"text_a": a, "text_b": b} for a, b in pairs])
        same(
            own.collate(features),
            tokenizer(*zip(*pairs, strict=True), truncation=strategy, max_length=20, padding=True),
        )

    @pytest.mark.parametrize("family", FAMILIES)
    def test_question_windows(self, family):
        question, context = "where is ann ?", "ann lives in rome and bob lives in oslo . " * 8
        tokenizer, own = family_encoder(family, "qa", max_length=40, stride=6)
        features = own.encode([{"question": question, "context": context}])
        expected = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=40,
            stride=6,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        assert [feature.ids for feature in features] == expected["input_ids"]
        assert len(features) > 2
        for row, feature in enumerate(features):
            for ours, (start, end), side in zip(
                feature.offsets, expected["offset_mapping"][row], expected.sequence_ids(row), strict=True
            ):
                there = context[start:end].strip()
                assert (ours is None) == (side != 1 or not there)
                assert ours is None or context[ours[0] : ours[1]] == there

    @pytest.mark.parametrize("family", ["bert", "albert", "xlnet", "deberta-v2"])
    def test_word_windows(self, family):
        words = [
            *[
                "ann",
                "lives",
                "in",
                "rome",
                "and",
                "Bobby",
                "not",
                "unlike",
                "xyzzy",
                ",",
                "is",
                "in",
                "oslo",
                ".",
                "中",
            ],
            "\x07",
        ] * 3
        tokenizer, own = family_encoder(family, "tagging", max_length=16, stride=4)
        features = own.encode([{"tokens": words}])
        expected = tokenizer(
            words, is_split_into_words=True, truncation=True, max_length=16, stride=4, return_overflowing_tokens=True
        )
        assert [feature.ids for feature in features] == expected["input_ids"]
        for row, feature in enumerate(features):
            places = [place for place, word in enumerate(feature.words) if word >= 0]
            assert [feature.words[place] for place in places] == [expected.word_ids(row)[place] for place in places]

    @pytest.mark.parametrize("family", ["roberta", "modernbert"])
    def test_words_of_byte_level_tokenizers_are_read_as_in_running_text(self, family):
        words = ["ann", "lives", "in", "rome", ",", "don't"]
        tokenizer, own = family_encoder(family, "tagging", max_length=64)
        assert own.encode([{"tokens": words}])[0].ids == tokenizer(" " + " ".join(words))["input_ids"]


class TestShortening:
    def test_a_strategy_for_pairs_leaves_single_texts_alone(self):
        own = encoder(max_length=5, truncation="only_second")
        assert own.encode([{"text": "ann lives in rome ."}])[0].ids == [2, *ids("ann lives in"), 3]

    @pytest.mark.parametrize("strategy", ["only_first", "only_second"])
    def test_both_are_shortened_where_one_text_is_too_short_for_it(self, strategy):
        own = encoder(max_length=9, pair=True, truncation=strategy)
        texts = ("ann ann", "in in in in in in in in in in in in")
        short, long = texts if strategy == "only_first" else texts[::-1]
        odd = {"text_a": short, "text_b": long}
        fine = {"text_a": "bob bob bob", "text_b": "in in in"}
        tight = {"text_a": "bob " * 4, "text_b": "in " * 3} if strategy == "only_first" else None
        features = own.encode([example for example in (odd, fine, tight, odd) if example])
        assert [len(feature.ids) for feature in features] == [9] * len(features)
        assert features[0].ids == features[-1].ids
        assert features[0].ids.count(ids("ann")[0]) == 2
        assert features[1].ids == [2, *ids("bob bob bob"), 3, *ids("in in in"), 3]
        if tight:
            assert features[2].ids == [2, *ids("bob bob bob"), 3, *ids("in in in"), 3]

    def test_threads_may_share_an_encoder_of_questions(self):
        example = {"question": "where is bob in oslo ? " * 4, "context": "ann lives in rome . " * 9}
        threads_agree(encoder("qa", max_length=16, stride=4), [[example] * 40])

    def test_threads_may_share_an_encoder_of_pairs(self):
        usual, odd = {"text_a": "ann " * 20, "text_b": "in " * 9}, {"text_a": "ann", "text_b": "in " * 40}
        threads_agree(encoder(max_length=16, pair=True, truncation="only_first"), [[usual] * 40, [odd] * 40])

    def test_no_room_at_all(self):
        tokenizer = tiny_tokenizer("roberta").backend_tokenizer
        own = encoder(tokenizer=tokenizer, max_length=4, pair=True)
        assert [len(f.ids) for f in own.encode([{"text_a": "a b", "text_b": "c d e"}])] == [4]
        for kind, least in (("qa", 6), ("tagging", 4)):
            with pytest.raises(
                ValueError, match=f"max_length={least - 1} leaves no room for text; use {least} or more"
            ):
                encoder(kind, tokenizer, max_length=least - 1)
            encoder(kind, tokenizer, max_length=least)

    def test_masked_text_is_cut_into_windows_that_hold_every_token_once(self):
        own = encoder("masked-lm", max_length=6, truncation_side="left", truncation="only_second")
        features = own.encode([{"text": "ann lives in rome . bob lives in oslo ."}, {"text": ""}, {"text": "bob"}])
        assert [feature.example for feature in features] == [0, 0, 0, 1, 2]
        assert [i for f in features[:3] for i in f.ids[1:-1]] == ids("ann lives in rome . bob lives in oslo .")


def ids(text, tokenizer=None):
    return (tokenizer or pieces(WORDS)).encode(text, add_special_tokens=False).ids


class TestQuestions:
    @pytest.mark.parametrize("max_length", [5, 6, 8, 16, 33])
    @pytest.mark.parametrize("stride", [0, 1, 5, 128])
    def test_windows_hold_the_whole_context_and_overlap(self, max_length, stride):
        own = encoder("qa", max_length=max_length, stride=stride)
        words = ["ann", "lives", "in", "rome", "unaffable", "."] * 6
        example = {"question": "where is bob in oslo ? " * 3, "context": " ".join(words)}
        features = own.encode([example, example])
        assert {feature.example for feature in features} == {0, 1}
        room = max_length - 3
        starts = []
        for feature in (f for f in features if f.example == 1):
            assert len(feature.ids) <= max_length
            inside = [offset for offset in feature.offsets if offset is not None]
            assert len(inside) <= room - room // 2
            starts.append((inside[0], inside[-1]))
        whole = pieces(WORDS).encode(example["context"], add_special_tokens=False)
        order = {offset: place for place, offset in enumerate(whole.offsets)}
        spans = [(order[first], order[last]) for first, last in starts]
        assert spans[0][0] == 0
        assert spans[-1][1] == len(order) - 1
        shared = [before[1] - after[0] + 1 for before, after in itertools.pairwise(spans)]
        assert set(shared) == {min(stride, room - room // 2 - 1)}

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
    def test_a_long_question_is_cut_to_half_of_the_room(self, family, question):
        tokenizer, own = family_encoder(family, "qa", max_length=24, stride=4)
        context = "ann lives in rome . " * 4
        alone, *features = own.encode([{"question": question, "context": text} for text in ("", context)])
        special = tokenizer.num_special_tokens_to_add(pair=True)
        whole = len(tokenizer(question, add_special_tokens=False)["input_ids"])
        most = (24 - special) // 2
        # A cut inside a word may leave a few tokens less.
        assert min(whole, most) - 3 <= len(alone.ids) - special <= min(whole, most)
        covered = {i for f in features for span in f.offsets if span for i in range(*span)}
        assert covered == {i for i, character in enumerate(context) if character != " "}
        assert max(len(feature.ids) for feature in features) <= 24

    @pytest.mark.parametrize("family", ["bert", "roberta", "albert", "deberta-v2", "modernbert", "xlnet"])
    def test_the_answer_is_found_in_whichever_window_it_stands(self, family):
        tokenizer, own = family_encoder(family, "qa", max_length=48, stride=8)
        filler = "the film was good and the song was fine . "
        examples = [
            {"question": "where ?", "context": filler * before + "ann lives in lima today ." + filler * after}
            for before, after in ((0, 0), (0, 6), (6, 0), (3, 3), (2, 7))
        ]
        target = tokenizer(" lima", add_special_tokens=False)["input_ids"]
        target = target[1:] if tokenizer.convert_ids_to_tokens(target[0]) in ("Ġ", "▁") else target

        def rule(input_ids, attention_mask, **_):
            logits = np.zeros((*input_ids.shape, 2))
            for row in range(len(input_ids)):
                for place in range(input_ids.shape[1] - len(target) + 1):
                    if list(input_ids[row, place : place + len(target)]) == target:
                        logits[row, place, 0] = logits[row, place + len(target) - 1, 1] = 5
            return logits

        for answer, example in zip(predict(Model(own, rule), examples, 3).answers, examples, strict=True):
            start = example["context"].index("lima")
            assert (answer["text"], answer["start"], answer["end"]) == ("lima", start, start + 4)
            assert answer["score"] == 10.0

    @pytest.mark.parametrize("context", ["", " ", "\x07"])
    def test_a_context_without_tokens_has_the_empty_answer(self, context):
        own = encoder("qa", max_length=16)
        model = Model(own, lambda input_ids, **_: np.ones((*input_ids.shape, 2)))
        predictions = predict(model, [{"question": "where ?", "context": context}])
        assert predictions.answers == [{"text": "", "start": 0, "end": 0, "score": 0.0}]
        assert predictions.logits[0].tolist() == [0.0]


class TestBestSpan:
    @pytest.mark.parametrize("seed", range(20))
    def test_against_all_spans(self, seed):
        generator = np.random.default_rng(seed)
        length = int(generator.integers(1, 90))
        starts, ends = generator.normal(size=(2, length)).astype(np.float32)
        offsets = [(3 * i, 3 * i + 2) if generator.random() < 0.8 else None for i in range(length)]
        every = [
            (float(starts[i] + ends[j]), offsets[i][0], offsets[j][1])
            for i in range(length)
            for j in range(i, min(i + LONGEST_ANSWER, length))
            if offsets[i] and offsets[j]
        ]
        assert best_span(starts, ends, offsets) == max(every, default=None)

    def test_starts_that_all_come_after_the_ends(self):
        starts = np.where(np.arange(50) >= 25, 9.0, 0.0).astype(np.float32)
        ends = np.where(np.arange(50) < 25, 9.0, 0.0).astype(np.float32)
        assert best_span(starts, ends, [(i, i + 1) for i in range(50)]) == (9.0, 0, 1)

    def test_equal_spans_give_the_shortest_and_then_the_first(self):
        assert best_span(np.zeros(4), np.zeros(4), [None, (1, 2), (2, 3), (3, 4)]) == (0.0, 1, 2)

    def test_no_answer_is_longer_than_the_limit(self):
        starts, ends = np.zeros(40), np.zeros(40)
        starts[2], ends[2 + LONGEST_ANSWER], ends[1 + LONGEST_ANSWER] = 5, 9, 8
        offsets = [(i, i + 1) for i in range(40)]
        assert best_span(starts, ends, offsets) == (13.0, 2, 2 + LONGEST_ANSWER)

    def test_nothing_inside(self):
        assert best_span(np.ones(3), np.ones(3), [None, None, None]) is None


class TestTagging:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize(("max_length", "stride"), [(8, 1), (8, 100), (17, 0), (17, 5), (64, 8)])
    def test_every_word_is_tagged_by_its_first_piece(self, family, max_length, stride):
        labels = tuple(f"B-{i}" for i in range(7))
        _, own = family_encoder(family, "tagging", max_length=max_length, stride=stride, labels=labels)
        chance = random.Random(f"{family}{max_length}{stride}")
        vocabulary = ["ann", "unbelievable", "rome", "xyzzyplugh", ".", "don't", "中文字", "a", "1996-08-22"]
        examples = [{"tokens": chance.choices(vocabulary, k=chance.randint(1, 40))} for _ in range(8)]
        model = Model(own, lambda input_ids, **_: np.eye(7)[input_ids % 7])
        predictions = predict(model, examples, batch_size=3)
        for example, answer, logits in zip(examples, predictions.answers, predictions.logits, strict=True):
            firsts = [
                own.tokenizer.encode([w], is_pretokenized=True, add_special_tokens=False) for w in example["tokens"]
            ]
            assert answer["tags"] == [labels[first.ids[0] % 7] for first in firsts]
            assert logits.shape == (len(example["tokens"]), 7)
            assert logits.dtype == np.float32

    def test_a_word_without_pieces_is_outside(self):
        own = encoder("tagging", max_length=8)
        model = Model(own, lambda input_ids, **_: np.eye(3)[np.full(input_ids.shape, 2)])
        predictions = predict(model, [{"tokens": ["ann", "\x07", "", "\u200b", "rome"]}, {"tokens": ["\x00"]}])
        assert predictions.answers == [{"tags": ["B-LOC", "O", "O", "O", "B-LOC"]}, {"tags": ["O"]}]
        assert predictions.logits[0][1].tolist() == [1, 0, 0]

    def test_byte_level_behind_a_split_gets_one_space_a_word(self):
        characters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(characters)}, merges=[]))
        split = pre_tokenizers.Split(Regex(r" ?[a-z]+|'[a-z]+|\s+"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        own = encoder("tagging", tokenizer, labels=("O",))
        feature = own.encode([{"tokens": ["ann", "don't"]}])[0]
        assert own.tokenizer.decode(feature.ids) == " ann don't"
        assert feature.words == [0, -1, -1, -1, 1, -1, -1, -1, -1, -1]
        tokenizer.normalizer = normalizers.NFC()
        assert encoder("tagging", tokenizer, labels=("O",)).encode([{"tokens": ["ann", "don't"]}])[0].ids == feature.ids

    def test_the_given_tokenizer_is_not_changed(self):
        tokenizer = tiny_tokenizer("roberta").backend_tokenizer
        before = tokenizer.to_str()
        encoder("tagging", tokenizer, max_length=9).encode([{"tokens": ["ann"]}])
        assert tokenizer.to_str() == before


class TestPadding:
    def test_left_and_right(self):
        features = encoder().encode([{"text": "ann"}, {"text": "ann lives ."}])
        for side, place in (("right", slice(0, 3)), ("left", slice(2, 5))):
            arrays = encoder(pad_side=side, pad_id=9, pad_type_id=4).collate(features)
            mask = np.zeros(5, dtype=np.int64)
            mask[place] = 1
            assert arrays["attention_mask"][0].tolist() == mask.tolist()
            assert arrays["input_ids"][0][place].tolist() == features[0].ids
            assert set(arrays["input_ids"][0][mask == 0]) == {9}
            assert arrays["token_type_ids"][0].tolist() == [0 if kept else 4 for kept in mask]
            assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}

    def test_length_is_rounded_up_and_only_wanted_inputs_are_given(self):
        own = encoder(inputs=("attention_mask", "input_ids"))
        arrays = own.collate(own.encode([{"text": "ann lives ."}]), multiple_of=8)
        assert {name: array.shape for name, array in arrays.items()} == {
            "attention_mask": (1, 8),
            "input_ids": (1, 8),
        }
        assert own.collate([])["input_ids"].shape == (0, 1)

    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("kind", ["tagging", "qa"])
    def test_outputs_are_read_where_the_tokens_stand(self, kind, side):
        own = encoder(kind, pad_side=side, max_length=12, stride=2)
        good = ids("good")[0]

        def rule(input_ids, attention_mask, **_):
            logits = np.where(attention_mask[..., None] == 1, 0.0, 99.0) * np.ones(3 if kind == "tagging" else 2)
            logits[input_ids == good] = [0, 0, 7] if kind == "tagging" else [7, 7]
            return logits

        texts = ["ann is good", "good", "where is good rome in oslo . ann lives in rome . " * 2]
        examples = [{"tokens": t.split(), "question": "is ?", "context": t} for t in texts]
        answers = predict(Model(own, rule), examples, 8).answers
        if kind == "tagging":
            assert [a["tags"] for a in answers] == [
                ["B-LOC" if word == "good" else "O" for word in text.split()] for text in texts
            ]
        else:
            assert [(a["text"], a["start"]) for a in answers] == [("good", text.index("good")) for text in texts]


class TestPredict:
    @pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
    def test_answers_come_in_the_order_of_the_examples(self, batch_size):
        own = encoder("regression", max_length=32)
        texts = ["ann " * n for n in (3, 1, 20, 0, 7, 7, 2)]
        model = Model(own, lambda attention_mask, **_: attention_mask.sum(axis=1, keepdims=True))
        predictions = predict(model, [{"text": text} for text in texts], batch_size)
        assert [answer["score"] for answer in predictions.answers] == [5, 3, 22, 2, 9, 9, 4]
        assert [row.tolist() for row in predictions.logits] == [[5], [3], [22], [2], [9], [9], [4]]
        assert [shape[1] for shape in model.shapes] == sorted((shape[1] for shape in model.shapes), reverse=True)

    def test_class_and_probability(self):
        logits = np.log([[0.2, 0.8], [0.6, 0.4]])
        model = Model(encoder(), lambda **_: logits)
        answers = predict(model, [{"text": "good ann"}, {"text": "ann"}]).answers
        assert [answer["label"] for answer in answers] == ["good", "bad"]
        assert [answer["probability"] for answer in answers] == pytest.approx([0.8, 0.6])

    def test_nothing_to_predict(self):
        predictions = predict(Model(encoder(), lambda **_: np.zeros((0, 2))), [])
        assert predictions.answers == predictions.logits == []

    def test_batches_hold_every_index_once_longest_first(self):
        batches = list(batches_by_length([5, 9, 5, 1, 9], 2))
        assert batches == [[1, 4], [0, 2], [3]]

    def test_long_inputs_come_in_smaller_batches(self):
        sizes = [len(batch) for batch in batches_by_length([4 * MOST_TOKENS, *[MOST_TOKENS // 3] * 4, *[1] * 40], 32)]
        assert sizes == [1, 3, 3, 32, 6]

    @pytest.mark.parametrize(("call_tokens", "most_tokens", "batch_size"), [(0, 60, None), (7, 60, 3), (100, 25, None)])
    def test_no_other_batches_cost_less(self, call_tokens, most_tokens, batch_size):
        lengths = [5, 30, 6, 5, 17, 2, 40, 19]

        def cost(batches):
            return sum(call_tokens + len(batch) * max(lengths[i] for i in batch) for batch in batches)

        def allowed(batches):
            sizes = [(len(batch), len(batch) * max(lengths[i] for i in batch)) for batch in batches]
            return all(rows == 1 or (rows <= (batch_size or 99) and tokens <= most_tokens) for rows, tokens in sizes)

        found = list(cheapest_batches(lengths, most_tokens, call_tokens, batch_size))
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
        assert [i for batch in found for i in batch] == order
        assert allowed(found)
        every = []
        for cuts in itertools.product((False, True), repeat=len(order) - 1):
            ends = [0, *(place for place, cut in enumerate(cuts, start=1) if cut), len(order)]
            every.append([order[first:end] for first, end in itertools.pairwise(ends)])
        assert cost(found) == min(cost(batches) for batches in every if allowed(batches))

    def test_what_a_call_costs_decides_how_many_there_are(self):
        lengths = [10, 9, 9, 2, 2]
        assert list(cheapest_batches(lengths, 512, 0)) == [[0], [1, 2], [3, 4]]
        assert list(cheapest_batches(lengths, 512, 10)) == [[0, 1, 2], [3, 4]]
        assert list(cheapest_batches(lengths, 512, 1000)) == [[0, 1, 2, 3, 4]]
        assert list(cheapest_batches([], 512, 10)) == []
        assert list(cheapest_batches([0, 9000], 512, 10)) == [[1], [0]]

    def test_many_inputs_of_one_length_are_planned_at_once(self):
        """With many threads a batch may be large; looking at each of its sizes for each input would take a minute."""
        start = time.process_time()
        (one,) = cheapest_batches([10] * 30_000, 10 * 30_000, 16)
        assert (one, time.process_time() - start < 2) == ([*range(30_000)], True)
        half, rest = cheapest_batches([10] * 30_000, 10 * 20_000, 16)
        assert sorted([len(half), len(rest)]) == [10_000, 20_000]

    def test_softmax_of_large_values(self):
        probabilities = softmax(np.array([[1000.0, 1000.0], [-1000.0, 0.0]], dtype=np.float32))
        np.testing.assert_allclose(probabilities, [[0.5, 0.5], [0, 1]])
        assert probabilities.dtype == np.float64


class TestFiles:
    @pytest.mark.parametrize("kind", ["classification", "tagging", "qa"])
    def test_a_saved_encoder_reads_texts_alike(self, kind, tmp_path):
        own = encoder(kind, max_length=10, stride=3, pad_side="left", pad_type_id=3)
        own.save(tmp_path)
        again = TextEncoder.from_folder(tmp_path)
        assert again.settings == own.settings
        words = "where is ann ? unaffable bob lives in rome ."
        examples = [{"text": words, "tokens": words.split(), "question": "where ?", "context": words}]
        assert again.encode(examples) == own.encode(examples)
        assert json.loads((tmp_path / "encoder.json").read_text())["labels"] == list(own.settings.labels)

    def test_it_runs_with_what_an_export_carries_alone(self, tmp_path):
        from eval import encoding

        encoder().save(tmp_path)
        (tmp_path / "eval").mkdir()
        (tmp_path / "eval" / "__init__.py").touch()
        own = Path(encoding.__file__).parent
        # Those beside are what files of kinds import beside, of which reading and answering need nothing.
        for room in ("kinds", "files", "metrics"):
            shutil.copytree(own / room, tmp_path / "eval" / room)
        for name in ("encoding", "encoder_settings", "examples", "long_texts", "errors"):
            shutil.copy(own / f"{name}.py", tmp_path / "eval")
        code = (
            "import sys\nfrom eval.encoding import TextEncoder\n"
            "own = TextEncoder.from_folder('.')\n"
            "print(own.encode([{'text': 'ann lives'}])[0].ids)\n"
            "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'transformers', 'pydantic'}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env={"PATH": ""}
        )
        assert done.stdout.splitlines() == [str([2, *ids("ann lives"), 3]), "[]"]
