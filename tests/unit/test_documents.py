"""Text becomes documents of sentences; what cannot be read is counted, not lost in silence."""

import gzip
import json
import tracemalloc

import pytest

from eval.data.sources import Source
from eval.errors import UserError
from teachers.pretraining.text import documents as module
from teachers.pretraining.text.documents import Counts, documents, split


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rains. It pours!  Does it?", ["It rains.", "It pours!", "Does it?"]),
        ("J. S. Bach wrote it. Mr. Bach was paid.", ["J. S. Bach wrote it.", "Mr. Bach was paid."]),
        ("On Jan. 3 it was 3.5 m. Then less.", ["On Jan. 3 it was 3.5 m.", "Then less."]),
        ('"Stop." He stopped. (So did I.) Then…', ['"Stop."', "He stopped.", "(So did I.)", "Then…"]),
        ("我来了。你呢？他说：“好。”然后走了！", ["我来了。", "你呢？", "他说：“好。”", "然后走了！"]),
        ("真的！！！好…", ["真的！！！", "好…"]),
        ("no end at all", ["no end at all"]),
        ("  ", []),
    ],
)
def test_sentences_end_where_a_reader_would_say(text, sentences):
    assert split(text) == sentences


def test_blank_lines_end_documents(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write("\n\nOne. Two.\nThree.\n\n\nFour.\n")
    (tmp_path / "b.txt").write_text("Five.", encoding="utf-8")
    counts = Counts()
    found = list(documents([Source.of(tmp_path / "a.txt.gz"), Source.of(tmp_path / "b.txt")], counts))
    assert found == [["One.", "Two.", "Three."], ["Four."], ["Five."]]
    assert (counts.documents, counts.sentences, counts.bad) == (3, 5, 0)


def test_rows_are_documents_and_bad_ones_are_counted(tmp_path):
    rows = [{"text": "One. Two."}, {"txt": "x"}, {"text": 3}, {"text": " "}, {"text": "Three."}]
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join([json.dumps(row).encode() for row in rows] + [b"{", b"\xff\xfe"]))
    counts = Counts()
    assert list(documents([Source.of(file)], counts)) == [["One.", "Two."], ["Three."]]
    assert (counts.bad, counts.empty) == (4, 1)
    assert any("has no text in 'text'" in problem for problem in counts.problems)
    assert any("UTF-8" in problem for problem in counts.problems)


def test_nothing_to_read_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\n\n\xff\n")
    with pytest.raises(UserError, match=r"a\.txt: holds no text \(1 lines could not be read\)"):
        list(documents([Source.of(tmp_path / "a.txt")], Counts()))


def test_a_document_of_a_million_words_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 20_000)
    (tmp_path / "a.txt").write_text("A word is here. " * 100_000, encoding="utf-8")
    counts = Counts()
    tracemalloc.start()
    total = sum(len(" ".join(sentences).split()) for sentences in documents([Source.of(tmp_path / "a.txt")], counts))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 400_000
    assert counts.cut > 0
    assert counts.documents > 20
    assert most < 80e6
