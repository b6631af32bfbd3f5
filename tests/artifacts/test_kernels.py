"""The compiled arithmetic against the same written with NumPy and plain Python."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts import kernels
from lightretriever.artifacts.tokens.table import TableDtype, TokenTable, write_table
from tests.support.wordings import raises

V, D = 300, 43  # no multiple of any register's size
DTYPES: list[TableDtype] = ["float16", "float32", "int8"]
IDS = st.lists(st.integers(0, V - 1), min_size=1, max_size=50)
ROWS = np.random.default_rng(0).normal(size=(V, D)).astype(np.float32)
IDF = np.linspace(0.5, 9.0, V).astype(np.float32)


@pytest.fixture(scope="module", params=DTYPES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TokenTable:
    path = tmp_path_factory.mktemp("table") / "t.npy"
    write_table(path, ROWS, request.param)
    return TokenTable.open(path)


@given(ids=IDS)
def test_tokens_are_counted_and_weighed(ids: list[int]) -> None:
    expected = sorted(Counter(ids).items())
    terms, counts, factors, weights = kernels.count(ids, IDF)
    types = [array.dtype.name for array in (terms, counts, factors, weights)]
    assert types == ["int32", "int64", "float32", "float32"]
    assert list(zip(terms.tolist(), counts.tolist(), strict=True)) == expected
    assert factors.tolist() == counts.tolist()
    np.testing.assert_array_equal(weights, factors * IDF[terms])
    np.testing.assert_array_equal(kernels.count(ids, None)[3], factors)


def test_what_can_not_be_counted() -> None:
    with raises(ValueError):
        kernels.count([5, -3], None)
    with raises(ValueError, naming="4294967296"):
        kernels.count([2**32], None)
    with raises(ValueError):
        kernels.count([V], IDF)
    wrong: list[Any] = ["7"]
    with raises(TypeError):
        kernels.count(wrong, None)

    class Sly:
        """Changes the list while it is read."""

        def __index__(self) -> int:
            ids.clear()
            return 1

    ids: list[Any] = [Sly(), 2, 3]
    with raises(TypeError):
        kernels.count(ids, None)
    assert len(ids) == 3
    assert [array.size for array in kernels.count([], IDF)] == [0, 0, 0, 0]


@given(ids=IDS)
def test_a_direction_is_that_of_the_weighted_sum(table: TokenTable, ids: list[int]) -> None:
    terms, counts, factors, weights, vector, length = table.sums.encode(ids, IDF)
    expected = table.rows(terms).astype(np.float64).T @ counts
    assert (vector.shape, vector.dtype.name) == ((D,), "float32")
    assert length == pytest.approx(np.linalg.norm(expected), rel=1e-5)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)
    for one, same in zip(kernels.count(ids, IDF), (terms, counts, factors, weights), strict=True):
        np.testing.assert_array_equal(one, same)
    again, its_length = table.sums.direction(terms, factors)
    assert (again.tobytes(), its_length) == (vector.tobytes(), length)


@given(queries=st.lists(st.lists(st.integers(0, V - 1), max_size=9), max_size=7))
def test_many_directions_have_the_bits_of_each(table: TokenTable, queries: list[list[int]]) -> None:
    ids = np.array([number for query in queries for number in query], np.int32)
    bounds, terms, counts = kernels.count_each(ids, np.array([len(query) for query in queries], np.int64))
    vectors, lengths = table.sums.directions(bounds, terms, counts.astype(np.float32))
    assert vectors.shape == (len(queries), D)
    for number, query in enumerate(queries):
        own = slice(bounds[number], bounds[number + 1])
        assert list(zip(terms[own].tolist(), counts[own].tolist(), strict=True)) == sorted(Counter(query).items())
        vector, length = table.sums.direction(terms[own], counts[own].astype(np.float32))
        assert (vectors[number].tobytes(), lengths[number]) == (vector.tobytes(), length)


def test_a_sum_of_length_0_stays_as_it_is(table: TokenTable) -> None:
    vector, length = table.sums.direction(np.array([5, 5], np.int32), np.array([1.0, -1.0], np.float32))
    assert length == 0.0
    assert not vector.any()


def test_factors_may_be_large(table: TokenTable) -> None:
    terms = np.array([3, 7], np.int32)
    vector, length = table.sums.direction(terms, np.array([1e6, -2e6], np.float32))
    expected, whole = table.sums.direction(terms, np.array([1.0, -2.0], np.float32))
    np.testing.assert_allclose(vector, expected, atol=1e-6)
    assert length == pytest.approx(1e6 * whole)


@pytest.mark.parametrize("outside", [-1, V, 2**31 - 1])
def test_ids_outside_the_table_are_refused(table: TokenTable, outside: int) -> None:
    terms, factors = np.array([3, outside], np.int32), np.ones(2, np.float32)
    with raises(ValueError, naming="0..299"):
        table.sums.direction(terms, factors)
    with raises(ValueError, naming="0..299"):
        table.sums.directions(np.array([0, 2]), terms, factors)


def test_arrays_that_do_not_fit_are_refused(table: TokenTable) -> None:
    terms, factors = np.arange(3, dtype=np.int32), np.ones(3, np.float32)
    with raises(ValueError):
        table.sums.direction(terms, factors[:2])
    for bounds in ([0, 2], [1, 3], [0, 2, 1, 3], []):
        with raises(ValueError):
            table.sums.directions(np.array(bounds, np.int64), terms, factors)
    for lengths in ([2], [4], [-1, 4]):
        with raises(ValueError):
            kernels.count_each(terms, np.array(lengths, np.int64))
    other: Any = factors.astype(np.float64)
    with pytest.raises(TypeError):
        table.sums.direction(terms, other)


@pytest.mark.parametrize(
    ("rows", "scales"),
    [
        (np.zeros((3, 4), np.float64), None),
        (np.zeros((4, 3), np.float32).T, None),
        (np.zeros(4, np.float32), None),
        (np.zeros((3, 4), ">f4"), None),
        (np.zeros((3, 4), np.int8), None),
        (np.zeros((3, 4), np.float32), np.ones(3, np.float32)),
        (np.zeros((3, 4), np.int8), np.ones(2, np.float32)),
    ],
)
def test_what_is_no_table(rows: npt.NDArray[Any], scales: npt.NDArray[np.float32] | None) -> None:
    with raises(ValueError):
        kernels.Table(rows, scales)


def test_every_float16_is_summed_as_it_is(tmp_path: Path) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    rows = every[np.isfinite(every)].astype(np.float32).reshape(-1, 64)
    write_table(tmp_path / "t.npy", rows, "float16")
    sums = TokenTable.open(tmp_path / "t.npy").sums
    for number, row in enumerate(rows.astype(np.float64)):
        vector, length = sums.direction(np.array([number], np.int32), np.ones(1, np.float32))
        np.testing.assert_allclose(vector * length, row, rtol=2e-7, atol=0)


@given(scores=st.lists(st.sampled_from([-1.5, 0.0, 0.25, 3.0]), max_size=40), count=st.integers(0, 50))
def test_the_best_come_first(scores: list[float], count: int) -> None:
    ordinals = np.random.default_rng(2).permutation(len(scores))
    best, their = kernels.best_first(ordinals, np.array(scores, np.float32), count)
    expected = sorted(zip(scores, ordinals.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))[:count]
    assert list(zip(their.tolist(), best.tolist(), strict=True)) == expected


def test_a_score_that_is_no_number_is_refused() -> None:
    with raises(ValueError):
        kernels.best_first(np.array([4, 9]), np.array([1.0, np.nan], np.float32), 2)


def test_unknown_scores_are_found_and_filled() -> None:
    scores = np.array([[1.0, np.nan, 2.0, np.nan], [np.nan, 3.0, np.nan, 4.0]])
    ordinals = np.array([3, 5, 8, 9])
    assert kernels.unknown(ordinals, scores[1]).tolist() == [3, 8]
    for wrong in ([1.0, np.inf], [np.nan, 1.0]):
        assert not kernels.fill(scores[1], np.array(wrong))
    for wrong in ([1.0], [1.0, 2.0, 3.0]):
        with raises(ValueError):
            kernels.fill(scores[1], np.array(wrong))
    assert np.isnan(scores[1]).tolist() == [True, False, True, False]
    assert kernels.fill(scores[1], np.array([7.0, 6.0], np.float32))
    assert scores[1].tolist() == [7.0, 3.0, 6.0, 4.0]
    assert kernels.unknown(ordinals, scores[0]).tolist() == [5, 9]
    with raises(ValueError):
        kernels.unknown(ordinals, scores[0][:3])


@pytest.mark.parametrize(
    ("numbers", "sum_of_sizes"),
    [([], 0.0), ([1.5, -2.5], 4.0), ([3e38] * 4, 1.2e39), ([1.0, np.inf], np.inf), ([-np.inf], np.inf)],
)
def test_magnitude_is_the_sum_without_signs(numbers: list[float], sum_of_sizes: float) -> None:
    assert kernels.magnitude(np.array(numbers, np.float32)) == pytest.approx(sum_of_sizes, rel=1e-6)
    assert np.isnan(kernels.magnitude(np.array([*numbers, np.nan], np.float32)))
