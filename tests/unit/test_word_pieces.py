"""Small WordPiece vocabularies: the same texts give the same pieces, and standard transformers reads them."""

import random

import pytest
import transformers

from teachers.pretraining.text.wordpiece_trainer import has_word_pieces, train_word_pieces
from tests.tiny import FAMILIES, tiny_task, tiny_tokenizer

TEXTS = [example["text"] for example in tiny_task("masked-lm").train]


def pieces_of(tokenizer):
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


@pytest.mark.parametrize("size", [70, 150])
def test_the_same_texts_give_the_same_pieces(size):
    found = [pieces_of(train_word_pieces(tiny_tokenizer("bert"), TEXTS, size)) for _ in range(5)]
    assert found[1:] == found[:1] * 4  # pairs of equal count abound in these texts
    assert len(found[0]) == size


def test_special_tokens_come_first_and_frequent_words_are_one_piece():
    like = tiny_tokenizer("bert")
    tokenizer = train_word_pieces(like, TEXTS, 150)
    assert pieces_of(tokenizer)[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.all_special_tokens == like.all_special_tokens
    assert tokenizer.tokenize("Lives in") == ["lives", "in"]
    ids = tokenizer("lives in", "quito")
    assert tokenizer.convert_ids_to_tokens(ids["input_ids"])[:4] == ["[CLS]", "lives", "in", "[SEP]"]
    assert ids["token_type_ids"][-1] == 1
    assert tokenizer.unk_token_id not in tokenizer(TEXTS[0])["input_ids"]


def test_a_stock_load_gives_the_same_tokenizer(tmp_path):
    tokenizer = train_word_pieces(tiny_tokenizer("distilbert"), TEXTS, 100)
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert loaded.model_max_length == tokenizer.model_max_length


def test_letters_leave_no_room_for_rarer_ones():
    chance = random.Random(0)
    letters = [chr(0x4E00 + i) for i in range(200)]  # each a word by itself, the first the most frequent
    texts = ["".join(chance.choices(letters, weights=[200 - i for i in range(200)], k=400)) for _ in range(20)]
    found = pieces_of(train_word_pieces(tiny_tokenizer("bert"), texts, 100))
    counts = {letter: sum(text.count(letter) for text in texts) for letter in letters}
    frequent = sorted(letters, key=lambda letter: (-counts[letter], letter))[:95]
    assert set(found[5:]) == set(frequent)


def test_letters_that_hardly_occur_are_left_out():
    found = pieces_of(train_word_pieces(tiny_tokenizer("bert"), [*TEXTS * 20, "§"], 150))
    assert "§" not in found
    assert "§" in pieces_of(train_word_pieces(tiny_tokenizer("bert"), [*TEXTS, "§"], 150))


@pytest.mark.parametrize("family", FAMILIES)
def test_only_word_piece_tokenizers_have_word_pieces(family):
    expected = family in ("bert", "mpnet", "ernie", "distilbert", "electra", "mobilebert")
    assert has_word_pieces(tiny_tokenizer(family)) == expected
