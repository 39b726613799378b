"""An index of vectors: 8-bit products, Hamming distances and both stages against statements in plain loops."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from eval.errors import UserError
from eval.ranking.best import largest, unit
from eval.ranking.vector_index import PRODUCTS, IndexForm, VectorIndex, hamming, int8_codes, sign_codes

CHANCE = np.random.default_rng(5)
DOCUMENTS = CHANCE.normal(size=(300, 50)).astype(np.float32) * CHANCE.uniform(0.1, 9, size=(300, 1)).astype(np.float32)
QUERIES = CHANCE.normal(size=(7, 50)).astype(np.float32)


def search(form, count=300, parts=1, documents=DOCUMENTS):
    index = VectorIndex(form)
    for part in np.array_split(documents, parts):
        index.add(part)
    return index, *index.search(QUERIES, count)


def exact(dimensions=None):
    return unit(QUERIES[:, :dimensions]) @ unit(DOCUMENTS[:, :dimensions]).T


def by_signs(query, document):
    """Return the share of equal signs less that of different ones; 0 has no positive sign."""
    same = sum((a > 0) == (b > 0) for a, b in zip(query, document, strict=True))
    return (2 * same - len(query)) / len(query)


def test_int8_scores_are_products_with_vectors_made_of_the_codes_again():
    codes, scales = int8_codes(unit(DOCUMENTS))
    again = [
        [code * float(scale) for code in row] for row, scale in zip(codes.astype(float).tolist(), scales, strict=True)
    ]
    for document, (row, known) in enumerate(zip(unit(DOCUMENTS), again, strict=True)):
        step = float(max(abs(row))) / 127
        assert codes[document].min() >= -127
        assert np.abs(row - known).max() <= step / 2 * 1.0001
    _, places, scores = search(IndexForm(vectors="int8"))
    for query, (order, found) in enumerate(zip(places, scores, strict=True)):
        wanted = [sum(a * b for a, b in zip(unit(QUERIES)[query].tolist(), again[at], strict=True)) for at in order]
        assert found == pytest.approx(wanted, abs=1e-5)
        assert sorted(order.tolist()) == list(range(300))


def test_one_document_changes_no_code_of_another():
    alone, all_of_them = int8_codes(unit(DOCUMENTS[:1])), int8_codes(unit(DOCUMENTS))
    assert alone[0].tolist() == all_of_them[0][:1].tolist()
    codes, scales = int8_codes(np.zeros((1, 4), dtype=np.float32))
    assert (codes.tolist(), scales.tolist()) == ([[0, 0, 0, 0]], [1.0])


def test_binary_ranks_as_a_hand_made_hamming_ranking():
    scores = hamming(unit(QUERIES), sign_codes(unit(DOCUMENTS)))
    by_hand = [[by_signs(query, document) for document in DOCUMENTS.tolist()] for query in QUERIES.tolist()]
    assert scores == pytest.approx(np.array(by_hand), abs=1e-6)
    _, places, found = search(IndexForm(vectors="binary"), count=40)
    for query, order in enumerate(places):
        wanted = sorted(range(300), key=lambda document, query=query: (-by_hand[query][document], document))[:40]
        assert order.tolist() == wanted
        assert found[query] == pytest.approx([by_hand[query][document] for document in wanted], abs=1e-6)


def test_products_with_signs_by_hand():
    found = PRODUCTS["binary"](unit(QUERIES), sign_codes(unit(DOCUMENTS)))
    for query, row in zip(unit(QUERIES), found, strict=True):
        signs = [[1 if number > 0 else -1 for number in document] for document in DOCUMENTS.tolist()]
        wanted = [sum(a * b for a, b in zip(query.tolist(), one, strict=True)) / math.sqrt(50) for one in signs]
        assert row == pytest.approx(np.array(wanted), abs=1e-5)


@pytest.mark.parametrize("dimensions", [None, 20])
def test_all_documents_rescored_are_the_exact_ranking(dimensions):
    form = IndexForm(vectors="binary", rescore="float32", candidates=300, dimensions=dimensions)
    _, places, scores = search(form, count=25, parts=4)
    for query, row in enumerate(exact(dimensions)):
        wanted = largest(row, 25)
        assert places[query].tolist() == wanted.tolist()
        assert scores[query] == pytest.approx(row[wanted], abs=1e-6)


@pytest.mark.parametrize("rescore", ["float32", "int8", "binary"])
def test_candidates_of_the_first_stage_are_ranked_by_products(rescore):
    form = IndexForm(vectors="binary", rescore=rescore, candidates=30)
    _, places, scores = search(form, count=10, parts=7)
    codes = {"float32": (unit(DOCUMENTS),), "int8": int8_codes(unit(DOCUMENTS)), "binary": sign_codes(unit(DOCUMENTS))}
    products = PRODUCTS[rescore](unit(QUERIES), codes[rescore])
    first = hamming(unit(QUERIES), sign_codes(unit(DOCUMENTS)))
    for query in range(7):
        candidates = np.sort(largest(first[query], 30))
        wanted = candidates[largest(products[query][candidates], 10)]
        assert places[query].tolist() == wanted.tolist()
        assert scores[query] == pytest.approx(products[query][wanted], abs=1e-6)


@pytest.mark.parametrize("form", [{"vectors": "binary", "rescore": "float32"}, {"approximate": True}])
def test_no_more_than_the_candidates_are_ranked(form):
    if "approximate" in form:
        pytest.importorskip("usearch", reason="usearch is not installed: the extra approximate")
    _, places, scores = search(IndexForm(**form, candidates=6), count=25, parts=3)
    assert {len(row) for row in (*places, *scores)} == {6}


FORMS = [
    IndexForm(),
    IndexForm(dimensions=20),
    IndexForm(vectors="int8"),
    IndexForm(vectors="int8", dimensions=20),
    IndexForm(vectors="binary"),
    IndexForm(vectors="binary", dimensions=20, rescore="int8"),
    IndexForm(vectors="binary", rescore="binary"),
    IndexForm(vectors="binary", rescore="float32"),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.title)
def test_bytes_are_those_that_are_held_and_parts_make_no_difference(form):
    index, places, scores = search(form, count=50)
    other, again, others = search(form, count=50, parts=9)
    assert index.bytes == other.bytes == form.bytes_of(300, 50)
    assert [order.tolist() for order in places] == [order.tolist() for order in again]
    assert np.array(scores) == pytest.approx(np.array(others), abs=1e-6)


def test_truncated_vectors_have_length_1_again():
    _, places, scores = search(IndexForm(dimensions=20), count=300)
    row = exact(20)[0]
    assert scores[0] == pytest.approx(row[places[0]], abs=1e-6)
    assert places[0].tolist() == largest(row, 300).tolist()


def test_bytes_of_a_million_documents():
    found = {form.title: form.bytes_of(10**6, 384) / 1e6 for form in FORMS}
    assert found == {
        "float32": 1536,
        "float32 20": 80,
        "int8": 388,
        "int8 20": 24,
        "binary": 48,
        "binary 20, 400 rescored by int8": 27,
        "binary, 400 rescored by binary": 48,
        "binary, 400 rescored by float32": 1584,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"vectors": "int8", "rescore": "float32"}, "int8 vectors are ranked by their products at once"),
        ({"vectors": "binary", "candidates": 10}, "say how they are held: rescore"),
        ({"vectors": "int4"}, "'float32', 'int8' or 'binary'"),
        ({"dimensions": 0}, "greater than or equal to 1"),
    ],
)
def test_forms_that_say_nothing_are_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        IndexForm(**given)


def test_more_dimensions_than_there_are_is_refused():
    with pytest.raises(UserError, match="dimensions: 51 were asked for, the vectors have 50"):
        search(IndexForm(dimensions=51))


@pytest.mark.parametrize("form", [{}, {"vectors": "int8"}, {"vectors": "binary", "rescore": "int8"}])
def test_an_index_without_documents_finds_none(form):
    places, scores = VectorIndex(IndexForm(**form)).search(np.ones((2, 3)), count=3)
    assert [len(own) for own in (*places, *scores)] == [0] * 4
