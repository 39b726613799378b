"""prune.vocabulary on tokenizers of XLM-RoBERTa's kind: large unigram vocabularies with many ways to cut each text."""

import json
import random

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    CamembertTokenizer,
    PreTrainedTokenizerFast,
    XLMRobertaTokenizer,
)

from compress import load
from compress.engine.steps import run
from compress.prune.subwords import supported, with_pieces
from compress.prune.vocabulary import VocabularyPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import word_embeddings
from teachers.taskmodel import build_taskmodel, load_taskmodel, save_taskmodel
from tests.tiny import tiny_config, tiny_spec

LETTERS = "abcdeghiklmnorstu"
SPECIAL = {
    "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
}
STRANGE = ("crème", "漢字", "naïve 漢", "Emma", "a_b")
"""Words with characters that are no pieces."""


def words(seed, count=80):
    chance = random.Random(seed)
    return ["".join(chance.choices(LETTERS, k=chance.randint(2, 7))) for _ in range(count)]


def pieces(seed=1):
    """Return every substring of many words, with the mark of a beginning, as a piece with a score by chance."""
    found = {"▁": -4.0} | dict.fromkeys(LETTERS, -9.0)
    chance = random.Random(seed)
    for word in (f"▁{word}" for word in (*words("known"), *words("other"))):
        for start in range(len(word)):
            for stop in range(start + 2, min(start + 6, len(word)) + 1):
                found.setdefault(word[start:stop], -chance.uniform(2, 12))
    return list(found.items())


def texts(seed, strange=()):
    """Return texts of the known words."""
    chance, known = random.Random(seed), [*words("known"), *strange]
    lines = [" ".join(chance.choices(known, k=chance.randint(1, 8))) for _ in range(60)]
    return Examples([{"text": line, "label": ("bad", "good")[i % 2]} for i, line in enumerate(lines)], "texts")


def model_of(family):
    """Return a tiny network with a tokenizer of thousands of pieces, as a user's folder gives it."""
    vocabulary = [(piece, 0.0) for piece in SPECIAL[family]] + pieces() + [("<mask>", 0.0)]
    made = {"xlm-roberta": XLMRobertaTokenizer, "camembert": CamembertTokenizer}[family]
    tokenizer = made(vocab=vocabulary, model_max_length=128)
    config = tiny_config(family, vocab_size=len(tokenizer))
    return build_taskmodel(config, tokenizer, tiny_spec(max_length=64))


def cut(source, examples):
    step = VocabularyPruning()
    return run(Recipe(steps=(step,)), source, Inputs(train=examples), dry_run_first=False)


def segments(model, examples):
    """Return the pieces of every text."""
    found = model.encoder.encode(examples)
    return [[model.encoder.tokenizer.id_to_token(i) for i in feature.ids] for feature in found]


@pytest.mark.parametrize("family", sorted(SPECIAL))
@pytest.mark.parametrize("seed", range(3))
def test_the_corpus_is_cut_as_before_and_gives_the_same(family, seed, tmp_path):
    corpus = texts(seed, STRANGE)
    (tmp_path / "source").mkdir()
    save_taskmodel(model_of(family), tmp_path / "source")
    source = load_taskmodel(tmp_path / "source")
    result = cut(source, corpus)
    assert len(result.tokenizer) < 0.4 * len(source.tokenizer)
    assert word_embeddings(result.model).weight.shape[0] == len(result.tokenizer) == result.model.config.vocab_size
    before = segments(source, corpus)
    assert segments(result, corpus) == before
    assert any("<unk>" in own for own in before), "characters that are no pieces are part of it"
    assert np.array_equal(np.stack(predict(result, corpus).logits), np.stack(predict(source, corpus).logits))
    result.save(tmp_path / "cut")
    again, plain = load(tmp_path / "cut"), AutoTokenizer.from_pretrained(tmp_path / "cut")
    assert segments(again, corpus) == before
    assert [plain.convert_ids_to_tokens(plain(example["text"])["input_ids"]) for example in corpus] == before
    assert type(plain) is type(source.tokenizer)
    assert plain.special_tokens_map == source.tokenizer.special_tokens_map
    standard = AutoModelForSequenceClassification.from_pretrained(tmp_path / "cut")
    assert standard.config.vocab_size == len(plain)
    assert standard.config.pad_token_id == plain.pad_token_id == 1


@pytest.mark.parametrize("family", sorted(SPECIAL))
def test_scores_stay_and_other_texts_become_no_more_unknown(family):
    source = model_of(family)
    result = cut(source, texts(0))
    old, new = (json.loads(m.tokenizer.backend_tokenizer.to_str())["model"] for m in (source, result))
    scores = dict(map(tuple, old["vocab"]))
    kept = dict(map(tuple, new["vocab"]))  # the library may read a number from JSON one bit off
    assert kept == pytest.approx({piece: scores[piece] for piece in kept}, rel=1e-12)
    assert [piece for piece, _ in old["vocab"] if piece in dict(map(tuple, new["vocab"]))] == [
        p for p, _ in new["vocab"]
    ]
    assert min(score for _, score in new["vocab"]) == pytest.approx(min(scores.values())), (
        "unknown characters are as likely as before"
    )
    assert new["vocab"][new["unk_id"]][0] == "<unk>"
    assert {*LETTERS, "▁", *SPECIAL[family], "<mask>"} <= {piece for piece, _ in new["vocab"]}
    others = Examples([{"text": f"{word} {strange}"} for word in words("other") for strange in STRANGE[:2]], "others")
    ours, theirs = (segments(model, others) for model in (result, source))
    assert ours != theirs
    assert [own.count("<unk>") for own in ours] == [own.count("<unk>") for own in theirs]
    joined = ["".join(piece for piece in own if piece not in SPECIAL[family]) for own in ours]
    assert joined == ["".join(piece for piece in own if piece not in SPECIAL[family]) for own in theirs]


def test_bytes_stay_where_unknown_characters_fall_back_to_them():
    bytes_ = [(f"<0x{number:02X}>", -20.0) for number in range(256)]
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), *bytes_, *pieces()], unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    corpus = [example["text"] for example in texts(1, STRANGE)]
    used = {i for text in corpus for i in tokenizer(text)["input_ids"]}
    small = with_pieces(tokenizer, sorted(supported(tokenizer, used)))
    assert len(small) < len(tokenizer)
    assert {piece for piece, _ in bytes_} < set(small.get_vocab())
    for text in (*corpus, "ça 字 ok"):
        own, other = (each.tokenize(text) for each in (small, tokenizer))
        assert own == other if text in corpus else "<unk>" not in own
        assert small.decode(small(text)["input_ids"]) == tokenizer.decode(tokenizer(text)["input_ids"])
    assert any(piece.startswith("<0x") for text in corpus for piece in small.tokenize(text))
