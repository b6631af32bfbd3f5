"""Lucene gives exactly what numpy gives, to the last bit."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.weights import scores_of, weighted_ids, weighted_query
from tests.lucene.support import Collection, Numbered, named, named_query, opened, query, random_collection
from tests.support.wordings import raises

NONE = np.array([], np.int64)


def exactly_best(
    index: Numbered,
    collection: Collection,
    terms: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    k: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Search, and give what is found, which is what numpy finds, to the last bit."""
    ordinals, scores = index.search(terms, weights, k)
    wanted, true_scores = collection.best(terms, weights, k)
    np.testing.assert_array_equal(ordinals, wanted)
    np.testing.assert_array_equal(scores, true_scores)
    for array, kind in ((ordinals, "int64"), (scores, "float32")):
        assert (array.dtype.name, array.flags.writeable) == (kind, True)
    return ordinals, scores


def test_documents_all_over_a_large_index(tmp_path: Path) -> None:
    """Many windows of documents, of which some terms visit few, and more ties than hits."""
    random = np.random.default_rng(5)
    matrix = np.where(random.random((13_000, 24)) < 0.05, random.integers(1, 4, (13_000, 24)), 0)
    matrix[:, 0] = 0
    matrix[[0, 4095, 4096, 8191, 8192, 12_999], 0] = [7, 1, 7, 7, 2, 7]
    matrix[5000:9500, 1:] = 0
    collection = Collection(matrix)
    with collection.opened(tmp_path / "index") as index:
        for terms in ([0], [0, 1], [3], [2, 5, 7, 11], list(range(24))):
            for k in (1, 5, 6, 100, 2000, 13_000):
                given = query({term: 1.0 + term % 3 for term in terms})
                exactly_best(index, collection, *given, k)


def test_sizes_all_over_a_large_index(tmp_path: Path) -> None:
    """Sums that rise above the last of the best and fall again, of impacts common and rare, in many windows."""
    random = np.random.default_rng(6)
    impacts = np.where(random.random((13_000, 16)) < 0.5, random.integers(1, 90, (13_000, 16)), 0)
    impacts *= random.choice([1, 6, 700], (13_000, 16), p=[0.8, 0.15, 0.05])
    impacts[:, 3] = np.where(impacts[:, 3] > 0, random.integers(505, 520, 13_000), 0)
    collection = Collection(impacts)
    with collection.opened(tmp_path / "index") as index:
        for weights in ({0: 2.0, 9: 3.0, 12: 1.0}, {2: 0.5, 3: 2.0, 5: 1.0, 15: 1.0}, {3: 1.0}, {1: 1.0, 14: 40.0}):
            for k in (1, 10, 1000):
                exactly_best(index, collection, *query(weights), k)


@pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
def test_rare_terms_that_weigh_much_and_frequent_ones_that_weigh_little(tmp_path: Path, power: float) -> None:
    """Frequent terms are asked for few documents, or many, or added up: what is found, and its bits, are the same."""
    random = np.random.default_rng(7)
    share = np.linspace(0.9, 0.001, 20) ** 2
    impacts = np.where(random.random((20_000, 20)) < share, random.integers(1, 400, (20_000, 20)), 0)
    impacts[6000:11_000, 12:] = 0  # windows in which the rare ones are missing
    collection = Collection(impacts)
    with collection.opened(tmp_path / "index") as index:
        for terms in (range(20), range(0, 20, 3), range(8), range(12, 20), (0, 19)):
            terms_, weights = query({term: float(-np.log(share[term])) ** power + 0.01 for term in terms})
            for k in (1, 10, 100, 3000):
                ordinals, scores = exactly_best(index, collection, terms_, weights, k)
                np.testing.assert_array_equal(scores, index.scores(terms_, weights, ordinals))
                shares = index.impacts(terms_, ordinals).astype(np.float32) * weighted_ids(terms_, weights)[1]
                np.testing.assert_array_equal(scores, scores_of(shares))


def test_scores_that_differ_by_rounding_alone(tmp_path: Path) -> None:
    """Sums of the same products in other documents' terms: bounds must not leave out what is larger by the last bit."""
    random = np.random.default_rng(11)
    collection = Collection(np.where(random.random((30_000, 30)) < 0.4, random.integers(1, 4, (30_000, 30)), 0))
    with collection.opened(tmp_path / "index") as index:
        for size in (5, 12, 30):
            terms, weights = query({term: 0.1 * (1 + term % 3) for term in range(size)})
            for k in (1, 10, 100, 1000):
                exactly_best(index, collection, terms, weights, k)


def test_sums_that_round_to_the_same_score_are_ties(tmp_path: Path) -> None:
    """The second document has more than the first one in double, and the same as a float32."""
    documents = [{0: 2**15}, {0: 2**15, 1: 1}, {0: 2**15, 1: 600}]
    with opened(tmp_path / "index", *documents) as index:
        terms, weights = query({0: 512.0, 1: 2.0**-9})
        assert index.search(terms, weights, 1)[0].tolist() == [2]
        ordinals, scores = index.search(terms, weights, 2)
        assert ordinals.tolist() == [2, 0]
        assert scores.tolist() == [2.0**24 + 2, 2.0**24]


def test_idf_weights_keep_their_bits() -> None:
    """Of 32 terms, weights of at least a 256th of the largest one stay as they are; a tiny one loses its last bits."""
    random = np.random.default_rng(2)
    weights = random.uniform(0.04, 10, 32).astype(np.float32)
    terms = np.arange(32, dtype=np.int32)
    ids, kept = weighted_ids(terms, weights)
    np.testing.assert_array_equal(ids, terms)
    np.testing.assert_array_equal(kept, weights)
    weights[3] = np.float32(1e-6)
    changed = weighted_ids(terms, weights)[1]
    assert 0 < changed[3] < weights[3]
    assert weights[3] - changed[3] < 2.0 ** (4 + 16 + 5 - 53)


def test_texts_weigh_as_ids_do() -> None:
    """In the order in which they come first; of twice the same the sum, and none whose sum is 0."""
    weights = np.array([0, 1e-6, 3, 0, 2], np.float32)
    names, sums = weighted_query(["wifi", "c", "日本", "wifi", "c"], weights)
    assert names == ["c", "日本"]
    np.testing.assert_array_equal(sums, weighted_ids(np.array([0, 1, 2, 0, 1]), weights)[1])
    assert [len(part) for part in weighted_query([], np.empty(0, np.float32))] == [0, 0]


@settings(max_examples=60)
@given(counts=st.dictionaries(st.integers(0, 250), st.integers(1, 20), max_size=40), k=st.integers(1, 1600))
def test_any_counts_and_any_k(numbered: Numbered, collection: Collection, counts: dict[int, int], k: int) -> None:
    """Terms from 200 on are in no document."""
    exactly_best(numbered, collection, *query({term: float(count) for term, count in counts.items()}), k)


@settings(max_examples=60)
@given(
    weights=st.dictionaries(st.integers(0, 199), st.floats(2**-20, 40, width=32), min_size=1, max_size=40),
    k=st.integers(1, 1600),
)
def test_fractional_weights(numbered: Numbered, collection: Collection, weights: dict[int, float], k: int) -> None:
    """To the last bit, by search and by scores of given documents; and next to the true sum."""
    terms, values = query(weights)
    ordinals, scores = exactly_best(numbered, collection, terms, values, k)
    np.testing.assert_array_equal(numbered.scores(terms, values, ordinals[::-1]), scores[::-1])
    true_scores = collection.matrix[ordinals][:, terms] @ values.astype(np.float64)
    # Two roundings, and what is cut off the smallest weights: below 2^-25 of each, times 40 impacts of up to 301.
    np.testing.assert_allclose(scores, true_scores, rtol=2**-23, atol=2**-25 * 40 * 301)


def test_largest_impact_and_weight(tmp_path: Path) -> None:
    with opened(tmp_path / "large", {0: 65_535, 16_777_215: 1}, {0: 1}) as large:
        assert large.search(*query({0: 1.0}), k=2)[1].tolist() == [65_535.0, 1.0]
        assert large.search(*query({16_777_215: 3.0}), k=2)[1].tolist() == [3.0]


def test_query_of_ten_thousand_tokens(tmp_path: Path) -> None:
    wide = random_collection(count=30, vocabulary=10_000, seed=3)
    terms = np.random.default_rng(0).permutation(10_000).astype(np.int32)
    weights = np.ones(10_000, np.float32)
    with wide.opened(tmp_path / "wide") as index:
        ordinals, scores = exactly_best(index, wide, terms, weights, 10)
        np.testing.assert_array_equal(index.scores(terms, weights, ordinals), scores)


@pytest.mark.parametrize(
    ("terms", "weights"), [([1], [np.nan]), ([1, 2], [1.0, 1e36]), ([1, 2], [1.0, -1.0]), ([1], [1.0, 2.0]), ([1], [1])]
)
def test_bad_queries_are_refused_by_lucene(index: ImpactIndex, terms: list[int], weights: list[float]) -> None:
    with raises(ValueError):
        index.search([str(term) for term in terms], np.array(weights), 1)
    with raises(ValueError):
        index.scores([str(term) for term in terms], np.array(weights), np.array([0]))


def test_a_term_that_is_no_unicode_is_refused(index: ImpactIndex) -> None:
    with raises(ValueError):
        index.search(["\udc00"], np.ones(1, np.float32), 1)
    with raises(ValueError):
        index.impacts(["\udc00"], np.array([0]))


def test_impacts_of_given_terms_in_given_documents(numbered: Numbered, collection: Collection) -> None:
    random = np.random.default_rng(4)
    terms = np.append(random.permutation(200)[:50], 5000)  # the last one has no document
    ordinals = np.array([1499, 0, 7, 7, 3, 0])
    expected = np.zeros((6, 51), np.int64)
    expected[:, :50] = collection.matrix[np.ix_(ordinals, terms[:50])]
    found = numbered.impacts(terms, ordinals)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    assert numbered.impacts(NONE, ordinals).shape == (6, 0)
    assert numbered.impacts(terms, NONE).shape == (0, 51)
    twice = numbered.impacts(np.array([3, 3]), ordinals)
    np.testing.assert_array_equal(twice[:, 0], twice[:, 1])


def test_all_terms_of_many_documents(index: ImpactIndex, collection: Collection) -> None:
    for row, impacts in enumerate(index.rows(700, 1500), start=700):
        assert list(impacts) == sorted(impacts)
        assert impacts == {f"{term}": impact for term, impact in enumerate(collection.matrix[row].tolist()) if impact}


def test_a_document_without_terms(tmp_path: Path) -> None:
    with opened(tmp_path / "index", {1: 5}, {}) as index:
        assert [list(part) for part in index.lucene.terms(1)] == [[], []]
    with opened(tmp_path / "bare", {}) as index:
        assert [list(part) for part in index.lucene.terms(0)] == [[], []]
        assert index.impacts(np.array([1]), np.array([0])).tolist() == [[0]]


def test_many_threads_on_two_indexes(numbered: Numbered, collection: Collection, tmp_path: Path) -> None:
    other = random_collection(count=400, vocabulary=200, seed=2)
    random = np.random.default_rng(0)
    queries = [query({int(term): 1.0 for term in random.integers(0, 200, 6)}) for _ in range(300)]
    with other.opened(tmp_path / "other") as second, ThreadPoolExecutor(8) as pool:

        def search(number: int) -> None:
            place, truth = [(numbered, collection), (second, other)][number % 2]
            ordinals, _ = exactly_best(place, truth, *queries[number], 20)
            assert place.lucene.documents(ordinals[:3]) == [truth.documents[i] for i in ordinals[:3]]

        list(pool.map(search, range(300)))


def test_closing_while_others_search_harms_nobody(written: Path, collection: Collection) -> None:
    terms, weights = query({1: 1.0, 2: 1.0, 3: 1.0})
    wanted, _ = collection.best(terms, weights, 10)
    closing = ImpactIndex.open(written)
    running = threading.Barrier(5)

    def search_until_closed() -> None:
        running.wait()
        while True:
            np.testing.assert_array_equal(closing.search(named(terms), weights, 10)[0], wanted)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(search_until_closed) for _ in range(4)]
        running.wait()
        for _ in range(50):
            closing.search(named(terms), weights, 10)
        closing.close()
        for answer in answers:
            with raises(JavaError):
                answer.result()


def test_a_closed_index_says_so(written: Path) -> None:
    closed = ImpactIndex.open(written)
    closed.close()
    closed.close()
    for call in (
        lambda: closed.search(*named_query({1: 1.0}), 1),
        lambda: closed.scores(*named_query({1: 1.0}), np.array([0])),
        lambda: closed.documents(np.array([0])),
        lambda: closed.ordinal("doc-00000"),
        closed.ids,
        closed.check,
    ):
        with raises(JavaError):
            call()
