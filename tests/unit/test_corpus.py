"""A corpus on disk holds what the tokenizer gives, word for word, and is read without being loaded."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest

from eval.data.sources import Source
from eval.errors import CompressError, UserError
from teachers.pretraining.network import segmenter_for
from teachers.pretraining.text.corpus import BEGINS, CAPITAL, FACTS, Corpus, build
from teachers.pretraining.text.tokenizer_training import tokenizer_of_beginning
from teachers.pretraining.text.wordpiece_trainer import bert_word_pieces
from tests.tiny import tiny_taskmodel

FULL_DEVICE = Path("/dev/full")
TEXT = "The film was good. It was a film.\nNot bad at all!\n\nAnother document. It ends.\n"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_taskmodel("bert").tokenizer


@pytest.fixture
def corpus(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    return build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")


def test_it_holds_what_the_tokenizer_gives(corpus, tokenizer):
    expected = [["The film was good.", "It was a film.", "Not bad at all!"], ["Another document.", "It ends."]]
    ids = [[tuple(tokenizer(s, add_special_tokens=False)["input_ids"]) for s in document] for document in expected]
    assert len(corpus) == 2
    assert [corpus.sentences(number) for number in range(2)] == ids
    flat = [token for document in ids for sentence in document for token in sentence]
    assert corpus.tokens.tolist() == flat
    assert corpus.runs(1)[0] == (len(flat) - sum(map(len, ids[1])), len(flat) - len(ids[1][1]))
    assert isinstance(corpus.tokens, np.memmap)


def test_frequencies_are_counted_in_pieces_as_at_once(corpus, monkeypatch):
    size = int(corpus.tokens.max()) + 3
    expected = (np.bincount(corpus.tokens, minlength=size) + 1) / (len(corpus.tokens) + size)
    np.testing.assert_allclose(corpus.frequencies(size), expected)
    monkeypatch.setattr("teachers.pretraining.text.corpus.COUNTED", 4)
    np.testing.assert_allclose(corpus.frequencies(size), expected)


@pytest.mark.parametrize("name", ["tokens", "sentence_starts", "labels"])
def test_a_full_disk_is_told_as_such_and_leaves_no_corpus(name, tokenizer, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    opened = Path.open
    with monkeypatch.context() as full:
        full.setattr(
            Path, "open", lambda path, *rest: opened(FULL_DEVICE if path.name == f"{name}.bin" else path, *rest)
        )
        with pytest.raises(CompressError, match=r"the disk is full \(.+\); free some space"):
            build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")
    assert list((tmp_path / "home").glob("*/*")) == []
    assert len(build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")) == 2


def test_padding_and_length_of_the_tokenizer_do_not_count(corpus, tokenizer, tmp_path):
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.enable_padding(length=32)
    other.backend_tokenizer.enable_truncation(2)
    assert build([Source.of(tmp_path / "a.txt")], other, tmp_path / "home").folder == corpus.folder


def test_words_begin_where_the_tokenizer_says(corpus, tokenizer):
    start, end = corpus.runs(0)[0]
    found = tokenizer("The film was good.", add_special_tokens=False)
    assert corpus.words(start, end) == found.word_ids()


def test_a_segmenter_finds_words_where_there_are_no_spaces(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("a b c d\n", encoding="utf-8")
    joined = build(
        [Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home", segmenter=lambda text: [(0, 3), (4, 7)]
    )
    letters = tokenizer("a b c d", add_special_tokens=False)
    first = [0 if start < 4 else 1 for start, _ in letters.encodings[0].offsets]
    assert joined.words(0, len(first)) == first


def test_jieba_finds_chinese_words(tmp_path):
    pytest.importorskip("jieba", reason="jieba is not installed: pip install 'nlp-compress[chinese]'")
    (tmp_path / "a.txt").write_text("北京的学生喜欢电影\n", encoding="utf-8")
    characters = bert_word_pieces(["北京的学生喜欢电影"] * 2, 40, 16)
    corpus = build([Source.of(tmp_path / "a.txt")], characters, tmp_path / "home", segmenter=segmenter_for("jieba"))
    assert corpus.words(0, 9) == [0, 0, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("segmenter", [None, lambda text: [match.span() for match in re.finditer(r"\s|\w+", text)]])
def test_a_space_alone_is_of_the_word_after_it(segmenter, tmp_path):
    (tmp_path / "a.txt").write_text("we saw Xavier and Yolanda\n", encoding="utf-8")
    pieces, _ = tokenizer_of_beginning(["we saw we saw"], "bytes", 300, lowercase=False)
    corpus = build([Source.of(tmp_path / "a.txt")], pieces, tmp_path / "home", segmenter=segmenter)
    first = np.flatnonzero(corpus.flags & BEGINS)
    assert "\u0120" in pieces.convert_ids_to_tokens(corpus.tokens[first].tolist()), "a byte that is a space alone"
    assert ((corpus.flags[first] & CAPITAL) > 0).tolist() == [False, False, True, False, True]


def test_it_is_made_once(corpus, tokenizer, tmp_path):
    made = (corpus.folder / FACTS).stat().st_mtime_ns
    again = build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")
    assert (again.folder, (again.folder / FACTS).stat().st_mtime_ns) == (corpus.folder, made)
    (tmp_path / "a.txt").write_text(TEXT + "More.", encoding="utf-8")
    assert build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home").folder != corpus.folder


def test_an_interrupted_build_leaves_nothing(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="holds no text"):
        build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")
    assert not [path for path in (tmp_path / "home").glob("*") if (path / FACTS).exists()]
    with pytest.raises(UserError, match=r"b\.txt: no such file"):
        build([Source.of(tmp_path / "b.txt")], tokenizer, tmp_path / "home")


def test_a_damaged_corpus_is_refused(corpus):
    with (corpus.folder / "tokens.bin").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(UserError, match=r"tokens\.bin: has \d+ bytes instead of \d+; remove"):
        Corpus.open(corpus.folder)
    with pytest.raises(UserError, match="is no corpus"):
        Corpus.open(corpus.folder.parent)


def test_the_facts_say_what_was_left_out(corpus):
    facts = json.loads((corpus.folder / FACTS).read_text(encoding="utf-8"))
    assert facts["documents"] == facts["read"]["documents"] == 2
    assert facts["sentences"] == 5
