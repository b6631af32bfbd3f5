"""Lucene gives exactly what numpy gives, to the last bit."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.index import ImpactIndex, scores_of, weighted_ids, weighted_query
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from tests.lucene.support import Collection, named, named_query, opened, query, random_collection, rows, search
from tests.support.wordings import raises


def exactly_best(
    index: ImpactIndex, collection: Collection, terms: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Search, and give what is found, which is what numpy finds, to the last bit."""
    ordinals, scores = search(index, named(terms), weights, k)
    wanted, true_scores = collection.best(terms, weights, k)
    np.testing.assert_array_equal(ordinals, wanted)
    np.testing.assert_array_equal(scores, true_scores)
    for array, kind in ((ordinals, "int64"), (scores, "float32")):
        assert (array.dtype.name, array.flags.writeable) == (kind, True)
    return ordinals, scores


@pytest.mark.parametrize("scale", [1.0, 0.1, None])
def test_documents_all_over_a_large_index(tmp_path: Path, scale: float | None) -> None:
    """More documents than a search visits at once: common terms and rare ones, some of which most documents lack, large
    impacts, more ties than hits, and sums of the same products that differ by rounding alone."""
    random, count = np.random.default_rng(5), 70_000
    share = np.linspace(0.8, 0.02, 24) ** 2
    impacts = np.where(random.random((count, 24)) < share, random.integers(1, 4, (count, 24)), 0)
    impacts[:, 12:] *= random.choice([1, 6, 20_000], (count, 12), p=[0.8, 0.15, 0.05])
    impacts[:, 0] = 0
    impacts[[0, 4095, 4096, 65_535, 65_536, 69_999], 0] = [7, 1, 7, 7, 2, 7]
    impacts[20_000:66_000, 16:] = 0
    collection = Collection(impacts)
    with collection.opened(tmp_path / "index") as index:
        for chosen in ([0], [0, 1], [3], [2, 5, 7, 11], range(8), range(0, 24, 3), range(12, 24), range(24)):
            weigh = -(np.log(share) ** 3) if scale is None else scale * (1 + np.arange(24) % 3)
            terms, weights = query({term: float(abs(weigh[term])) for term in chosen})
            for k in (1, 5, 6, 100, 3000):
                ordinals, scores = exactly_best(index, collection, terms, weights, k)
                np.testing.assert_array_equal(scores, index.scores(named(terms), weights, ordinals))
                shares = index.impacts(named(terms), ordinals).astype(np.float32) * weighted_ids(terms, weights)[1]
                np.testing.assert_array_equal(scores, scores_of(shares))


def test_sums_that_round_to_the_same_score_are_ties(tmp_path: Path) -> None:
    """The second document has more than the first one in double, and the same as a float32."""
    documents = [{0: 2**15}, {0: 2**15, 1: 1}, {0: 2**15, 1: 600}, {2: 65_535}]
    with opened(tmp_path / "index", *documents) as index:
        assert search(index, *named_query({2: 1.0}), 4)[1].tolist() == [65_535.0]  # the largest impact
        terms, weights = named_query({0: 512.0, 1: 2.0**-9})
        assert search(index, terms, weights, 1)[0].tolist() == [2]
        ordinals, scores = search(index, terms, weights, 2)
        assert ordinals.tolist() == [2, 0]
        assert scores.tolist() == [2.0**24 + 2, 2.0**24]


def test_texts_weigh_as_ids_do() -> None:
    """In the order in which they come first; of twice the same the sum, and none whose sum is 0."""
    weights = np.array([0, 1e-6, 3, 0, 2], np.float32)
    names, sums = weighted_query(["wifi", "c", "日本", "wifi", "c"], weights)
    assert names == ["c", "日本"]
    np.testing.assert_array_equal(sums, weighted_ids(np.array([0, 1, 2, 0, 1]), weights)[1])
    assert [len(part) for part in weighted_query([], np.empty(0, np.float32))] == [0, 0]


WEIGHTS = st.floats(2**-20, 40, width=32)
COUNTS = st.integers(1, 20).map(float)


@settings(max_examples=100)
@given(
    weights=st.one_of([st.dictionaries(st.integers(0, 250), each, max_size=40) for each in (COUNTS, WEIGHTS)]),
    k=st.integers(1, 1600),
)
def test_any_weights_and_any_k(index: ImpactIndex, collection: Collection, weights: dict[int, float], k: int) -> None:
    """To the last bit, by search and by scores of given documents; and next to the true sum. Terms from 200 on are in
    no document."""
    terms, values = query(weights)
    ordinals, scores = exactly_best(index, collection, terms, values, k)
    np.testing.assert_array_equal(index.scores(named(terms), values, ordinals[::-1]), scores[::-1])
    known = terms < 200
    true_scores = collection.matrix[ordinals][:, terms[known]] @ values[known].astype(np.float64)
    # Two roundings, and what is cut off the smallest weights: below 2^-25 of each, times 40 impacts of up to 301.
    np.testing.assert_allclose(scores, true_scores, rtol=2**-23, atol=2**-25 * 40 * 301)


def test_query_of_ten_thousand_tokens(tmp_path: Path) -> None:
    wide = random_collection(count=30, vocabulary=10_000, seed=3)
    terms = np.random.default_rng(0).permutation(10_000).astype(np.int32)
    weights = np.ones(10_000, np.float32)
    with wide.opened(tmp_path / "wide") as index:
        ordinals, scores = exactly_best(index, wide, terms, weights, 10)
        np.testing.assert_array_equal(index.scores(named(terms), weights, ordinals), scores)


@pytest.mark.parametrize(
    ("terms", "weights"),
    [("1", [np.nan]), ("12", [1.0, 1e36]), ("12", [1.0, -1.0]), ("1", [1.0, 2.0]), ("1", [1]), ("\udc00", [1.0])],
)
def test_bad_queries_are_refused_by_lucene(index: ImpactIndex, terms: str, weights: list[float]) -> None:
    with raises(ValueError):
        search(index, [*terms], np.array(weights), 1)
    with raises(ValueError):
        index.scores([*terms], np.array(weights), np.array([0]))


def test_impacts_of_given_terms_in_given_documents(index: ImpactIndex, collection: Collection) -> None:
    random = np.random.default_rng(4)
    terms = np.append(random.permutation(200)[:50], 5000)  # the last one has no document
    ordinals = np.array([1499, 0, 7, 7, 3, 0])
    expected = np.zeros((6, 51), np.int64)
    expected[:, :50] = collection.matrix[np.ix_(ordinals, terms[:50])]
    found = index.impacts(named(terms), ordinals)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    assert index.impacts([], ordinals).shape == (6, 0)
    assert index.impacts(named(terms), np.array([], np.int64)).shape == (0, 51)
    twice = index.impacts(["3", "3"], ordinals)
    np.testing.assert_array_equal(twice[:, 0], twice[:, 1])


def test_all_terms_of_many_documents(index: ImpactIndex, collection: Collection) -> None:
    for row, impacts in enumerate(index.rows(700, 1500), start=700):
        assert list(impacts) == sorted(impacts)
        assert impacts == {f"{term}": impact for term, impact in enumerate(collection.matrix[row].tolist()) if impact}


def test_a_document_without_terms(tmp_path: Path) -> None:
    with opened(tmp_path / "index", {1: 5}, {}) as index:
        assert [list(part) for part in index.terms(1)] == [[], []]
    with opened(tmp_path / "bare", {}) as index:
        assert [list(part) for part in index.terms(0)] == [[], []]
        assert index.impacts(["1"], np.array([0])).tolist() == [[0]]


def test_closing_while_others_search_harms_nobody(written: Path, collection: Collection) -> None:
    terms, weights = query({1: 1.0, 2: 1.0, 3: 1.0})
    wanted, _ = collection.best(terms, weights, 10)
    closing = ImpactIndex.open(written)
    running = threading.Barrier(5)

    def search_until_closed() -> None:
        running.wait()
        while True:
            np.testing.assert_array_equal(search(closing, named(terms), weights, 10)[0], wanted)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(search_until_closed) for _ in range(4)]
        running.wait()
        for _ in range(50):
            search(closing, named(terms), weights, 10)
        closing.close()
        for answer in answers:
            with raises(JavaError):
                answer.result()


def test_a_closed_index_says_so(written: Path) -> None:
    closed = ImpactIndex.open(written)
    closed.close()
    closed.close()
    for call in (
        lambda: search(closed, *named_query({1: 1.0}), 1),
        lambda: closed.scores(*named_query({1: 1.0}), np.array([0])),
        lambda: closed.documents(np.array([0])),
        lambda: closed.ordinal("doc-00000"),
        closed.ids,
        closed.check,
    ):
        with raises(JavaError):
            call()


COUNT = 3_000
DATED = [number for number in range(COUNT) if number % 5]


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactIndex]:
    """Of five documents one has no year."""
    path, ids = tmp_path_factory.mktemp("where") / "lucene", [str(number) for number in range(COUNT)]
    records = [{"_id": name, "text": "text", "year": [1900 + i] if i % 5 else []} for i, name in enumerate(ids)]
    with ImpactIndexWriter(path, {"year": "number"}) as writer:
        writer.add(ids, [b"{}"] * COUNT, *rows(*[{1: 1}] * COUNT), records=records)
    with ImpactIndex.open(path) as opened:
        yield opened


@pytest.mark.parametrize(
    "condition", [["nix"], ["and", "2", "exists", "a"], ["exists", "a", "more"], [], ["number", "year", "x", "1"]]
)
def test_a_condition_that_makes_no_sense_is_refused(dated: ImpactIndex, condition: list[str]) -> None:
    with pytest.raises((ValueError, JavaError)):
        dated.where(condition)


def test_a_condition_of_thousands_of_parts(dated: ImpactIndex) -> None:
    parts = [text for year in range(3000) for text in ("number", "year", f"{year}.0", f"{year}.0")]
    found = dated.where(["or", "3000", *parts])
    assert np.flatnonzero(np.unpackbits(found.bits, bitorder="little")).tolist() == [i for i in DATED if i < 1100]
    assert found.count == dated.where(["number", "year", "0.0", "2999.0"]).count


def test_without_an_order_they_come_as_they_were_written(dated: ImpactIndex) -> None:
    for among, expected in ((None, list(range(COUNT))), (dated.where(["exists", "year"]), DATED)):
        assert dated.listed(among, None, 0, 20).tolist() == expected[:20]
        assert dated.listed(among, None, len(expected) - 3, 20).tolist() == expected[-3:]
        assert dated.listed(among, None, COUNT, 20).tolist() == []


def test_an_order_ends_when_it_is_late(dated: ImpactIndex) -> None:
    with pytest.raises(TimeoutError):
        dated.listed(None, Order("year", "number", descending=False), 0, 5, seconds=0.0)
    with raises(ValueError):
        dated.listed(None, None, -1, 5)
