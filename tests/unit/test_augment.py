"""Augmentation: what changes, how often, what stays, and where each copy came from."""

import json
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch

from compress.augment import tagger as tagger_file
from compress.augment import training_set as training_set_file
from compress.augment.bilstm_rule import LONGEST, BilstmRule
from compress.augment.block import AugmentBlock
from compress.augment.copies import ORIGIN, augment
from compress.augment.masked_lm_words import MaskedWords
from compress.augment.neighbours import vectors_of_file, vectors_of_model
from compress.augment.opening import open_masked
from compress.augment.sentence import Sentence
from compress.augment.stop_words import STOP_WORDS
from compress.augment.tagger import SpacyTagger, open_tagger, tags_of_data
from compress.augment.text_files import read_examples, read_unlabelled
from compress.augment.tinybert_rule import TinyBertRule
from compress.augment.training_set import expected as expected_number
from compress.augment.training_set import training_set, unlabelled_texts
from compress.augment.whole_words import in_case_of, whole_words
from compress.engine.preparation import unlabelled_of
from compress.reading.block_reader import BlockReader
from compress.reading.yaml_places import Document
from compress.recipe import Recipe
from compress.recipe.task_block import TaskBlock
from eval.encoding import IGNORED
from eval.errors import UserError
from eval.task import Examples, TaskSpec
from teachers.data.encoded_dataset import Batch
from teachers.losses.task_loss import task_loss
from teachers.taskmodel import logits_of, save_taskmodel
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.scoring import rows_of
from tests.tiny import PEOPLE, tiny_spec, tiny_task, tiny_taskmodel

MASKED = TaskSpec(kind="masked-lm", metric="masked_accuracy", max_length=128)
LONG = "one two three four five six seven eight nine ten"


@pytest.fixture(scope="module")
def masked_model():
    return tiny_taskmodel("bert", MASKED)


@pytest.fixture
def tinybert(masked_model):
    return TinyBertRule(MaskedWords(masked_model), vectors_of_model(masked_model))


def draws(rule, text, count=1, seed=0):
    draw = rule.fit([Sentence.of_text(text)])
    chance = Random(seed)
    return [draw(0, chance) for _ in range(count)]


class TestSentence:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("it's  a (charming) film, well-made .", ["it's", "a", "charming", "film", "well-made"]),
            ("这部电影 very 好看。", ["这", "部", "电", "影", "very", "好", "看"]),
            ("नमस्ते दुनिया!", ["नमस्ते", "दुनिया"]),
            ("\tfiń\n\n", ["fiń"]),
            ("... !", []),
            ("", []),
        ],
    )
    def test_words_and_the_text_again(self, text, words):
        sentence = Sentence.of_text(text)
        assert list(sentence.words) == words
        assert sentence.text == text
        assert [text[start:stop] for start, stop in sentence.spans] == words

    def test_changed_words_keep_spacing_and_punctuation(self):
        sentence = Sentence.of_text("  good (film),  bad ")
        assert sentence.with_words(["a", "b", "c"]).text == "  a (b),  c "
        assert sentence.part(1, 2).text == "film),  bad"

    def test_a_part_cuts_tags_alike(self):
        sentence = Sentence.of_tokens(["ann", "in", "oslo", "."], ["B-PER", "O", "B-LOC", "O"])
        part = sentence.part(1, 2)
        assert (part.words, part.tags, part.text) == (("in", "oslo"), ("O", "B-LOC"), "in oslo")


class TestBilstm:
    def test_nothing_at_probability_0(self):
        rule = BilstmRule(mask=0, pos=0, ngram=0)
        examples = [{"text": "a (good)  film .", "label": "good"}, {"text": "", "label": "bad"}]
        assert {sentence.text for sentence in draws(rule, LONG, 50)} == {LONG}
        assert list(augment(examples, rule, 20, seed=1)) == examples

    def test_everything_at_probability_1(self):
        (found,) = draws(BilstmRule(mask=1, pos=0, ngram=0, mask_word="<mask>"), "it is, well, good .")
        assert found.text == "<mask> <mask>, <mask>, <mask> ."

    def test_rates_of_masks_and_of_words_with_the_same_tag(self):
        words = [f"n{i}" for i in range(40)] + [f"v{i}" for i in range(40)]
        sentence = Sentence.of_tokens(words, ["NOUN"] * 40 + ["VERB"] * 40)
        draw = BilstmRule(ngram=0, tagger=tags_of_data).fit([sentence])
        chance = Random(0)
        found = np.array([draw(0, chance).words for _ in range(1000)])
        masks = found == "[MASK]"
        changed = ~masks & (found != np.array(words))
        assert masks.mean() == pytest.approx(0.1, abs=0.004)
        # One of the 40 words of a tag is the word itself.
        assert changed.mean() == pytest.approx(0.1 * 39 / 40, abs=0.004)
        kinds = np.char.startswith(found, "n")
        assert kinds[:, :40][~masks[:, :40]].all()
        assert not kinds[:, 40:].any()

    def test_one_draw_decides_between_mask_and_tag(self):
        sentence = Sentence.of_tokens(["w"] * 100, ["X"] * 99 + ["Y"])
        draw = BilstmRule(mask=0.5, pos=0.5, ngram=0, tagger=lambda _: [["X"] * 100]).fit([sentence])
        found = [word for seed in range(200) for word in draw(0, Random(seed)).words]
        assert found.count("[MASK]") / len(found) == pytest.approx(0.5, abs=0.015)

    def test_words_come_as_often_as_in_the_corpus(self):
        sentence = Sentence.of_tokens(["rare"] + ["often"] * 3, ["N"] * 4)
        draw = BilstmRule(mask=0, pos=1, ngram=0, tagger=tags_of_data).fit([sentence])
        counts = Counter(word for seed in range(2000) for word in draw(0, Random(seed)).words)
        assert counts["often"] / counts.total() == pytest.approx(0.75, abs=0.02)

    def test_parts_are_neighbouring_words_of_uniform_length(self):
        found = draws(BilstmRule(mask=0, pos=0, ngram=0.25), LONG, 8000)
        parts = [sentence for sentence in found if sentence.text != LONG]
        assert len(parts) / len(found) == pytest.approx(0.25, abs=0.015)
        lengths = Counter(len(sentence.words) for sentence in parts)
        assert set(lengths) == {1, 2, 3, 4, 5}
        assert all(count / len(parts) == pytest.approx(1 / LONGEST, abs=0.03) for count in lengths.values())
        assert all(f" {sentence.text} " in f" {LONG} " for sentence in parts)
        assert {sentence.words[0] for sentence in parts} == set(LONG.split()), "every place is reached"

    def test_punctuation_is_neither_masked_nor_drawn(self):
        sentence = Sentence.of_tokens(["good", ".", "!"], ["A", "A", "A"])
        draw = BilstmRule(mask=0.5, pos=0.5, ngram=0, tagger=tags_of_data).fit([sentence])
        for seed in range(100):
            word, *marks = draw(0, Random(seed)).words
            assert marks == [".", "!"]
            assert word in ("good", "[MASK]")

    def test_texts_of_a_pair_change_in_turn(self):
        pair = {"text_a": LONG, "text_b": LONG.upper(), "label": 1.0}
        rule = BilstmRule(mask=0.5, pos=0, ngram=0)
        original, *copies = augment([pair], rule, 9, seed=3)
        assert original == pair
        changed = [(copy["text_a"] != LONG, copy["text_b"] != LONG.upper()) for copy in copies]
        assert changed == [(True, False), (False, True), (True, True)] * 3
        assert all("label" not in copy for copy in copies)
        assert all(set(copy["text_b"].split()) <= {*LONG.upper().split(), "[MASK]"} for copy in copies)

    def test_tagging_keeps_a_tag_a_word(self):
        task = tiny_task("tagging")
        rule = BilstmRule(mask=0.3, pos=0.3, ngram=0.5, tagger=tags_of_data)
        found = list(augment(task.train, rule, 10, seed=0))
        copies = [example for example in found if "source" in example]
        assert len(copies) > 300
        for copy in copies:
            original = task.train[copy["source"]]
            pairs = [*zip(copy["tokens"], copy["tags"], strict=True)]
            assert f" {' '.join(copy['tags'])} " in f" {' '.join(original['tags'])} "
            assert {word for word, tag in pairs if tag == "B-PER"} <= {*PEOPLE, "[MASK]"}


class Known(TinyBertRule):
    """The rule with given candidates."""

    def _candidates(self, sentences):
        return [dict.fromkeys(range(1, len(each.words)), ("x", "y", "z")) for each in sentences]


class TestTinyBert:
    def test_rate_of_replacements(self):
        found = np.array([each.words for each in draws(Known(None, None), LONG, 4000)])
        replaced = np.isin(found, ["x", "y", "z"])
        assert replaced[:, 1:].mean() == pytest.approx(0.4, abs=0.008)
        assert not replaced[:, 0].any(), "a word without candidates stays"
        for word in "xyz":
            assert (found == word).sum() / replaced.sum() == pytest.approx(1 / 3, abs=0.01)
        assert {each.text for each in draws(Known(None, None, replace=0), LONG, 50)} == {LONG}

    def test_only_alphabetic_words_that_carry_content_change(self, masked_model):
        rule = TinyBertRule(MaskedWords(masked_model), vectors_of_model(masked_model), replace=1)
        text = "The film was NOT good , and 42 isn't a2 (great)  !"
        before, after = Sentence.of_text(text), draws(rule, text)[0]
        assert after.gaps == before.gaps
        changed = {old for old, new in zip(before.words, after.words, strict=True) if old != new}
        assert changed == {"film", "good", "great"}
        assert {"the", "not", "and"} <= STOP_WORDS

    @pytest.mark.parametrize("family", ["bert", "roberta", "mobilebert", "deberta-v2", "modernbert"])
    @pytest.mark.parametrize("beside", [True, False])
    def test_candidates_equal_a_slow_loop(self, family, beside):
        model = tiny_taskmodel(family, MASKED)
        words = whole_words(model.tokenizer)
        texts = ["the film is good and great", "a dull book", "the show was boring , very boring ."]
        sentences = [Sentence.of_text(text) for text in texts]
        proposer = MaskedWords(model, beside=beside)
        pieces = [proposer.pieces(each, range(len(each.words))) for each in sentences]
        found = proposer.candidates(sentences, pieces, 5)
        assert sum(map(len, found)) >= 2
        for text, sentence, own in zip(texts, sentences, found, strict=True):
            for place, candidates in own.items():
                start, stop = sentence.spans[place]
                encoding = model.encoder.tokenizer.encode(text, text if beside else None)
                at = [
                    i
                    for i, (first, last) in enumerate(encoding.offsets)
                    if encoding.sequence_ids[i] == 0 and text[first:last].strip() == text[start:stop] and last == stop
                ]
                ids = torch.tensor([encoding.ids])
                ids[0, at] = model.tokenizer.mask_token_id
                inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
                if "token_type_ids" in model.encoder.settings.inputs:
                    inputs["token_type_ids"] = torch.tensor([encoding.type_ids])
                with torch.no_grad():
                    logits = logits_of(model.model(**inputs))[0, at[0]]
                order = sorted(words, key=lambda index: -logits[index].item())
                assert list(candidates) == [words[i] for i in order if words[i] != sentence.words[place]][:5]

    def test_words_of_several_pieces_get_neighbours(self, masked_model):
        vectors = vectors_of_model(masked_model)
        rule = TinyBertRule(MaskedWords(masked_model), vectors, replace=1, candidates=3)
        (sentence,) = draws(rule, "Filmbook")
        table = masked_model.model.get_input_embeddings().weight.detach().numpy()
        ids = masked_model.tokenizer.encode("filmbook", add_special_tokens=False)
        assert len(ids) > 1
        mean = table[ids].mean(axis=0)
        words = whole_words(masked_model.tokenizer)
        cosine = {
            word: mean @ table[index] / np.linalg.norm(mean) / np.linalg.norm(table[index])
            for index, word in words.items()
        }
        nearest = sorted(cosine, key=cosine.__getitem__, reverse=True)[:3]
        assert vectors.nearest(["Filmbook"], 3)["Filmbook"] == tuple(word.capitalize() for word in nearest)
        assert sentence.text.lower() in nearest

    def test_both_texts_of_a_pair_change_each_from_its_own_words(self, tinybert):
        pair = {"text_a": "the good film and the great book", "text_b": "a dull song", "label": "same"}
        original, *copies = augment([pair], tinybert, 30, seed=0)
        assert original == pair
        assert len(copies) > 20
        for copy in copies:
            words = copy["text_a"].split()
            assert [words[0], *words[3:5], len(words)] == ["the", "and", "the", 7]
            assert copy["text_b"].startswith("a ")
            assert len(copy["text_b"].split()) == 3
            assert copy["label"] == "same"
        assert {copy["text_a"] != pair["text_a"] for copy in copies} == {True, False}
        assert {copy["text_b"] != pair["text_b"] for copy in copies} == {True, False}

    def test_words_beyond_the_longest_input_stay(self, masked_model):
        text = "good film " * 80
        rule = TinyBertRule(MaskedWords(masked_model, beside=False), vectors_of_model(masked_model), replace=1)
        words = draws(rule, text)[0].words
        assert all(old != new for old, new in zip(words[:120], text.split(), strict=False))
        assert words[-30:] == tuple(text.split()[-30:])

    def test_equal_texts_are_predicted_once(self, tinybert, monkeypatch):
        seen = []
        find = MaskedWords.candidates
        monkeypatch.setattr(MaskedWords, "candidates", lambda self, s, *rest: seen.extend(s) or find(self, s, *rest))
        examples = [{"text": "a good film", "label": "good"}] * 5 + [{"text": "a bad film", "label": "bad"}]
        list(augment(examples, tinybert, 20, seed=0))
        assert len(seen) == 2

    def test_one_text_may_be_cut_into_words_in_two_ways(self, tinybert):
        cut = [["good", "film", "book"], ["good film", "book"]]
        found = list(augment([{"tokens": tokens, "tags": ["O"] * len(tokens)} for tokens in cut], tinybert, 5, seed=0))
        assert {len(example["tokens"]) for example in found if example.get("source") == 1} == {2}

    def test_tagging_keeps_its_tags(self, tinybert):
        task = tiny_task("tagging", examples=5)
        found = list(augment(task.train, tinybert, 5, seed=0))
        copies = [example for example in found if "source" in example]
        assert copies
        assert all(copy["tags"] == task.train[copy["source"]]["tags"] for copy in copies)
        assert all(len(copy["tokens"]) == len(copy["tags"]) for copy in copies)

    def test_a_model_without_a_trained_head_is_refused(self, tmp_path, masked_model):
        (tmp_path / "masked").mkdir()
        save_taskmodel(masked_model, tmp_path / "masked")
        assert open_masked(str(tmp_path / "masked")).digest == masked_model.digest
        (tmp_path / "classifier").mkdir()
        save_taskmodel(tiny_taskmodel("bert"), tmp_path / "classifier")
        with pytest.raises(UserError, match=r"no trained masked-language head \(it is BertForSequenceC"):
            open_masked(str(tmp_path / "classifier"))

    def test_case_follows_the_word(self):
        assert [in_case_of("film", model) for model in ("book", "Book", "BOOK", "B", "iPod")] == [
            *("film", "Film", "FILM", "Film", "film")
        ]
        assert in_case_of("Rome", "paris") == "Rome"


class TestVectors:
    def test_a_file_gives_neighbours_by_cosine(self, tmp_path):
        file = tmp_path / "vectors.txt"
        file.write_text("good 1 0\nfine 9 1\n<unk> 1 1\nbad -1 0\nGood 1 0.1\nodd 0 1\n", encoding="utf-8")
        vectors = vectors_of_file(file)
        assert vectors.nearest(["good", "Bad", "unknown"], 2) == {"good": ("fine", "odd"), "Bad": ("Odd", "Fine")}
        assert vectors.nearest(["good"], 99)["good"] == ("fine", "odd", "bad")

    def test_the_first_line_of_word2vec_is_skipped(self, tmp_path):
        file = tmp_path / "vectors.txt"
        file.write_text("2 3\na 1 2 3\nb 1 2 4\n", encoding="utf-8")
        assert vectors_of_file(file).words == ["a", "b"]

    def test_lines_may_end_in_a_blank_and_words_have_blanks(self, tmp_path):
        file = tmp_path / "vectors.txt"
        file.write_text("3 2\na 1 2 \n. . . 1 2 \nat one@two.org 1 2 \nb 2 1 \n", encoding="utf-8")
        assert vectors_of_file(file).words == ["a", "b"]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [("good 1 0\nbad 1\n", ":2: has 1 number,"), ("good x\n", "a word and its numbers"), ("", "holds no words")],
    )
    def test_a_bad_file(self, text, problem, tmp_path):
        file = tmp_path / "vectors.txt"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=problem):
            vectors_of_file(file)
        with pytest.raises(UserError, match="cannot be read"):
            vectors_of_file(tmp_path / "none.txt")


class TestCopies:
    def test_originals_come_first_and_copies_say_where_from(self):
        task = tiny_task("classification")
        rule = BilstmRule(pos=0)
        found = list(augment(task.train, rule, 4, seed=5))
        assert [example for example in found if "source" not in example] == list(task.train)
        source = -1
        for example in found:
            if "source" not in example:
                source, last = source + 1, 0
                continue
            assert (example["source"], example["rule"], example["seed"]) == (source, "bilstm", 5)
            assert last < example["copy"] <= 4
            last = example["copy"]
            assert set(example) == {"text", *ORIGIN}

    def test_no_text_stands_twice(self):
        examples = [{"text": "good"}, {"text": "good"}, {"text": "good film"}]
        found = list(augment(examples, BilstmRule(mask=0.5, pos=0, ngram=0.5), 50, seed=0))
        copies = [example["text"] for example in found if "source" in example]
        assert len(copies) == len(set(copies))
        assert not set(copies) & {"good", "good film"}

    def test_seeds(self, tinybert):
        task = tiny_task("classification", examples=10)
        for rule in (BilstmRule(pos=0), tinybert):
            first = list(augment(task.train, rule, 3, seed=1))
            assert list(augment(task.train, rule, 3, seed=1)) == first
            assert list(augment(task.train, rule, 3, seed=2)) != first
            more = list(augment(task.train[:1], rule, 6, seed=1))
            assert [example for example in more if example.get("copy", 0) <= 3] == list(
                augment(task.train[:1], rule, 3, seed=1)
            )

    def test_what_cannot_be_augmented(self):
        qa = tiny_task("qa").train
        with pytest.raises(UserError, match="qa examples are not augmented: their answers are places"):
            list(augment(qa, BilstmRule(pos=0), 2, seed=0))
        with pytest.raises(UserError, match="must have text, text_a and text_b, or tokens; there are 'sentence'"):
            list(augment([{"sentence": "x"}], BilstmRule(pos=0), 2, seed=0))
        with pytest.raises(UserError, match="'a film' has no tags; name a spaCy pipeline"):
            list(augment([{"text": "a film"}], BilstmRule(tagger=tags_of_data), 2, seed=0))


class TestTagger:
    def test_what_is_missing_is_named_with_its_cure(self, monkeypatch):
        monkeypatch.setattr(tagger_file, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"pip install 'nlp-compress\[tagger\]', then python -m spacy download"):
            open_tagger("en_core_web_sm")

    def test_spacy_tags_words_and_sees_punctuation(self):
        spacy = pytest.importorskip("spacy")
        pipeline = spacy.blank("en")
        ruler = pipeline.add_pipe("attribute_ruler")
        ruler.add([[{"IS_PUNCT": True}]], {"TAG": "."})
        ruler.add([[{"IS_PUNCT": True}, {"IS_ALPHA": True}]], {"TAG": "AFTER"}, index=1)
        ruler.add([[{"IS_ALPHA": True, "IS_SENT_START": True}]], {"TAG": "FIRST"})
        sentences = [Sentence.of_text("one (two), three"), Sentence.of_text("... four"), Sentence.of_text("!")]
        assert SpacyTagger(pipeline)(sentences) == [["FIRST", "AFTER", "AFTER"], ["AFTER"], []]
        with pytest.raises(UserError, match="there is no spaCy pipeline 'xx_none'; get it with python -m spacy"):
            open_tagger("xx_none")


def problems_of(**values):
    reader = BlockReader(Document("recipe", values))
    assert reader.block(AugmentBlock, values, (), "augment") is None
    return " ".join(reader.problems)


class TestBlock:
    def test_what_is_refused(self):
        assert "say what is added: rule (tinybert or bilstm), unlabelled" in problems_of()
        assert "model: tinybert needs a masked-language model; name a folder" in problems_of(rule="tinybert")
        assert "mask: does not belong here; the rule tinybert takes rule, copies, seed" in problems_of(
            rule="tinybert", model="m", mask=0.2
        )
        assert "copies: does not belong here; unlabelled text without a rule takes unlabelled" in problems_of(
            unlabelled="x", copies=2
        )
        assert "pos: words of the same tag need a tagger; name a spaCy pipeline such as tagger" in problems_of(
            rule="bilstm"
        )
        assert "mask + pos: got 1.1, must be at most 1" in problems_of(rule="bilstm", tagger="data", mask=1.0)
        assert "replace: got 1.5, must be a number" in problems_of(rule="tinybert", model="m", replace=1.5)
        assert "did you mean 'candidates'" in problems_of(rule="tinybert", model="m", candidate=1)

    def test_copies_by_default(self):
        tinybert, bilstm = AugmentBlock(rule="tinybert", model="m"), AugmentBlock(rule="bilstm", tagger="data")
        assert [block.copies_of(pair) for block in (tinybert, bilstm) for pair in (False, True)] == [20, 20, 20, 10]
        assert [block.keeps_labels for block in (tinybert, bilstm)] == [True, False]


class TestTrainingSet:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))

    def test_copies_are_kept_by_content(self, tmp_path, masked_model, monkeypatch):
        (tmp_path / "masked").mkdir()
        save_taskmodel(masked_model, tmp_path / "masked")
        task = tiny_task("classification", examples=6)
        block = AugmentBlock(rule="tinybert", model=str(tmp_path / "masked"), copies=3)
        first = training_set(block, task.train, task.spec, 1)
        (file,) = (tmp_path / "home" / "augmented").iterdir()
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert len(lines) == len(first) > 12
        assert all(set(example) == {"text", "label"} for example in first)
        with monkeypatch.context() as patch:
            patch.setattr(training_set_file, "augment", lambda *_: pytest.fail("it was drawn again"))
            assert training_set(block, task.train, task.spec, 1).digest == first.digest
        for other in (
            (block, task.train, 2),
            (block.model_copy(update={"seed": 3}), task.train, 1),
            (block.model_copy(update={"replace": 0.5}), task.train, 1),
            (block, task.train[:5], 1),
        ):
            assert training_set(other[0], other[1], task.spec, other[2]).digest != first.digest
        assert len(list((tmp_path / "home" / "augmented").iterdir())) == 5

    def test_unlabelled_text_is_mixed_in(self, tmp_path):
        task = tiny_task("classification", examples=4)
        file = tmp_path / "pool.txt"
        file.write_text("a warm room\n\nthe story\n", encoding="utf-8")
        found = training_set(AugmentBlock(unlabelled=str(file)), task.train, task.spec, 1)
        texts = [{"text": "a warm room", "group": "document 1"}, {"text": "the story", "group": "document 2"}]
        assert list(found) == [*task.train, *texts]
        both = AugmentBlock(rule="bilstm", pos=0, copies=2, unlabelled=str(file), mask_word="<mask>", mask=1)
        texts = [example["text"] for example in training_set(both, task.train, task.spec, 1, mask_word="no")]
        assert any("<mask>" in text for text in texts)
        assert texts[-2:] == ["a warm room", "the story"]
        with pytest.raises(UserError, match="holds single texts, but the examples of the task are pairs"):
            read_unlabelled(str(file), tiny_spec(pair=True))

    def test_unlabelled_text_is_a_sample_without_the_texts_of_any_split(self, tmp_path):
        task = tiny_task("classification", examples=4)
        new = [{"text": f"text {number}", "label": "good"} for number in range(20)]
        file = tmp_path / "pool.jsonl"
        lines = [json.dumps(dict(example)) for example in (*task.train, *task.validation, *new)]
        file.write_text("\n".join(lines), encoding="utf-8")
        whole = training_set(AugmentBlock(unlabelled=str(file)), task.train, task.spec, 1, beside=task.validation)
        assert list(whole) == [*task.train, *({"text": example["text"]} for example in new)], "labels are not read"
        block = AugmentBlock(unlabelled=str(file), limit=5)
        some = training_set(block, task.train, task.spec, 1, beside=task.validation)
        assert len(task.train) <= len(some) <= len(task.train) + 5
        assert some.digest == training_set(block, task.train, task.spec, 1, beside=task.validation).digest
        other = block.model_copy(update={"seed": 9})
        assert unlabelled_texts(other, task.spec, 1) != unlabelled_texts(block, task.spec, 1)
        assert expected_number(block, task.train, task.spec)[0] == len(task.train) + 5

    def test_the_mask_word_is_the_teacher_s(self):
        task = tiny_task("classification", examples=4)
        block = AugmentBlock(rule="bilstm", pos=0, copies=2, mask=1, ngram=0)
        copies = training_set(block, task.train, task.spec, 1, mask_word="<mask>")
        assert any("<mask>" in example["text"] for example in copies)

    def test_forms_are_recognised(self, tmp_path):
        rows = {
            "a.jsonl": [{"text": "x", "label": "good", "more": 1}],
            "b.jsonl": [{"text_a": "x", "text_b": "y", "label": 0.5}],
            "c.jsonl": [{"tokens": ["x"], "tags": ["O"]}],
            "d.jsonl": [{"text": "x"}, {"text": "y", "label": 3}],
        }
        wanted = [
            [{"text": "x", "label": "good"}],
            [{"text_a": "x", "text_b": "y", "label": 0.5}],
            [{"tokens": ["x"], "tags": ["O"]}],
            [{"text": "x"}, {"text": "y", "label": "3"}],
        ]
        for (name, items), expected in zip(rows.items(), wanted, strict=True):
            (tmp_path / name).write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
            assert read_examples(str(tmp_path / name)) == expected

    def test_columns_are_found_as_those_of_the_task_s_own_data_are(self, tmp_path):
        (tmp_path / "usual.csv").write_text("Review,sentiment\na warm room,good\nthe story,\n", encoding="utf-8")
        found = [{"text": "a warm room", "label": "good"}, {"text": "the story"}]
        assert read_examples(str(tmp_path / "usual.csv")) == found
        texts = [{"text": "a warm room"}, {"text": "the story"}]
        spec, named = tiny_spec(), {"text": "said", "label": "stars"}
        assert read_unlabelled(str(tmp_path / "usual.csv"), spec) == texts
        assert read_unlabelled(str(tmp_path / "usual.csv"), spec, named) == texts
        (tmp_path / "named.csv").write_text("text,said\n1,a warm room\n2,the story\n", encoding="utf-8")
        assert read_unlabelled(str(tmp_path / "named.csv"), spec, named) == texts

    def test_a_recipe_reads_unlabelled_text_by_the_columns_of_its_task(self, tmp_path):
        (tmp_path / "more.csv").write_text("said\na warm room\n", encoding="utf-8")
        task = TaskBlock(kind="classification", data="reviews.csv", columns={"text": "said", "label": "stars"})
        recipe = Recipe(task=task, augment=AugmentBlock(unlabelled=str(tmp_path / "more.csv")))
        assert unlabelled_of(recipe, tiny_task("classification", examples=4)) == [{"text": "a warm room"}]


class TestWithoutLabels:
    """Texts without a label take part in training, and no label loss counts them."""

    def batch(self, kind, examples):
        task = tiny_task(kind)
        model = tiny_taskmodel("bert", task.spec)
        rows = rows_of(model, Examples(examples), seed=0)
        return task.spec, rows.batch(range(len(examples)))

    @pytest.mark.parametrize(("kind", "label"), [("classification", "good"), ("regression", 0.5)])
    def test_the_task_loss_counts_the_labelled_alone(self, kind, label):
        spec, batch = self.batch(kind, [{"text": "a film", "label": label}, {"text": "a book"}])
        logits = torch.randn(2, spec.outputs, generator=torch.Generator().manual_seed(0), requires_grad=True)
        loss = task_loss(spec, logits, batch)
        alone = Batch(batch.inputs, {"labels": batch.targets["labels"][:1]}, batch.rows[:1])
        assert loss.item() == pytest.approx(task_loss(spec, logits[:1], alone).item())
        loss.backward()
        assert logits.grad[0].abs().sum() > 0
        assert logits.grad[1].abs().sum() == 0

    @pytest.mark.parametrize("kind", ["classification", "regression"])
    def test_a_batch_without_any_label_gives_0(self, kind):
        spec, batch = self.batch(kind, [{"text": "a film"}, {"text": "a book"}])
        labels = batch.targets["labels"]
        assert bool((labels == IGNORED).all() if kind == "classification" else labels.isnan().all())
        logits = torch.ones(2, spec.outputs, requires_grad=True)
        loss = task_loss(spec, logits, batch)
        loss.backward()
        assert loss.item() == 0
        assert logits.grad.abs().sum() == 0

    def test_label_training_leaves_them_out(self):
        task = tiny_task("classification", examples=8)
        mixed = Examples([{"text": "a film"}, *task.train, {"text": "a book"}], "train")
        histories = []
        for examples in (task.train, mixed):
            model = tiny_taskmodel("bert", task.spec)
            histories.append(train(model, examples, training=Training(epochs=2, batch_size=4), seed=1))
        assert [entry["loss"] for entry in histories[0]] == [entry["loss"] for entry in histories[1]]
        assert histories[0][-1]["step"] == 4
        with pytest.raises(UserError, match="none of the 2 examples of train has a label"):
            train(tiny_taskmodel("bert", task.spec), Examples([{"text": "a"}, {"text": "b"}], "train"))
