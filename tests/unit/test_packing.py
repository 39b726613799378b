"""RoBERTa's four formats: every token comes once and in order, and sequences are as full as each format allows."""

import itertools

import pytest

from teachers.pretraining.text.packing import sequences


def corpus(*documents):
    """Return documents of sentences with these lengths, as runs of tokens."""
    place = 0
    for lengths in documents:
        runs = []
        for length in lengths:
            runs.append((place, place + length))
            place += length
        yield runs


def packed(how, *documents, room=10):
    return list(sequences(corpus(*documents), room, how))


def test_full_sentences_cross_documents_with_a_separator():
    assert packed("full_sentences", [4, 3], [2, 5]) == [(0, [(0, 7), (7, 9)]), (1, [(9, 14)])]
    assert packed("full_sentences", [4, 3], [3]) == [(0, [(0, 7)]), (1, [(7, 10)])], "with its separator it is too long"


def test_doc_sentences_stop_at_the_end_of_a_document():
    assert packed("doc_sentences", [4, 3], [2, 5]) == [(0, [(0, 7)]), (1, [(7, 14)])]
    assert packed("doc_sentences", [4, 3, 5]) == [(0, [(0, 7)]), (0, [(7, 12)])]


def test_blocks_are_full_wherever_that_ends_them_and_separators_count():
    assert packed("blocks", [4, 3], [2, 5]) == [(0, [(0, 7), (7, 9)]), (1, [(9, 14)])]
    assert packed("blocks", [9], [5]) == [(0, [(0, 9), (9, 9)]), (1, [(9, 14)])], "the separator ends the block"
    assert packed("blocks", [10], [], [5]) == [(0, [(0, 10)]), (2, [(10, 10), (10, 15)])], "it begins the next"


def test_segments_keep_their_sentences_apart_to_be_divided():
    assert packed("segment_pair", [4, 3], [2, 5]) == [(0, [(0, 4), (4, 7)]), (1, [(7, 9), (9, 14)])]


def test_a_sentence_pair_is_two_sentences():
    assert packed("sentence_pair", [2, 2, 2]) == [(0, [(0, 2), (2, 4)]), (0, [(4, 6)])]


@pytest.mark.parametrize("how", ["segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "blocks"])
@pytest.mark.parametrize("room", [1, 7, 10, 100])
def test_every_token_comes_once_and_in_order(how, room):
    documents = ([3, 25, 4], [], [1], [9, 9, 9, 2], [30])
    found = packed(how, *documents, room=room)
    tokens = [token for _, runs in found for start, end in runs for token in range(start, end)]
    assert tokens == list(range(sum(map(sum, documents))))
    ends = list(itertools.accumulate(map(sum, documents)))
    for first, runs in found:
        crossed = sum(any(a < end <= b for end in ends[:-1]) for a, b in itertools.pairwise(run[0] for run in runs))
        assert sum(end - start for start, end in runs) + crossed <= room
        assert runs[0][0] >= (ends[first - 1] if first else 0)
        if how not in ("full_sentences", "blocks"):
            assert runs[-1][1] <= ends[first]


def test_documents_are_read_one_at_a_time():
    def endless():
        for number in itertools.count():
            yield [(10 * number, 10 * number + 10)]

    found = list(itertools.islice(sequences(endless(), 25, "full_sentences"), 1000))
    assert found[-1] == (1998, [(19980, 19990), (19990, 20000)])
