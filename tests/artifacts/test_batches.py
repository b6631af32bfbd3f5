"""Encoded documents are checked, cut and normalised before they become part of a bundle."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.bundle.batches import EncodedBatch, check_batch, dense_prefix, keep_top_terms
from lightretriever.artifacts.errors import CorpusError
from tests.support import tiny
from tests.support.wordings import raises


def batch_of(rows: list[dict[int, int]]) -> EncodedBatch:
    dense = np.random.default_rng(0).standard_normal((len(rows), 8)).astype(np.float32)
    return tiny.batch_of([f"d{i}" for i in range(len(rows))], [b"{}"] * len(rows), dense, rows)


def rows_of(batch: EncodedBatch) -> list[list[tuple[int, int]]]:
    pairs = list(zip(batch.terms.tolist(), batch.impacts.tolist(), strict=True))
    return [pairs[batch.indptr[i] : batch.indptr[i + 1]] for i in range(len(batch.indptr) - 1)]


@given(
    st.lists(st.dictionaries(st.integers(0, 30), st.integers(1, 65_535) | st.integers(1, 3), max_size=12), max_size=8),
    st.none() | st.integers(1, 14),
)
def test_top_terms_are_those_of_highest_impact_then_lowest_id(rows: list[dict[int, int]], top_k: int | None) -> None:
    expected = [sorted(sorted(row.items(), key=lambda pair: (-pair[1], pair[0]))[:top_k]) for row in rows]
    kept = keep_top_terms(batch_of(rows), top_k)
    assert rows_of(kept) == expected
    assert kept.indptr.dtype == np.int64
    assert kept.terms.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_prefix_is_normalised_again_in_single_precision(dtype: type[np.floating[Any]]) -> None:
    batch = batch_of([{1: 1}] * 5)
    batch = dataclasses.replace(batch, dense=batch.dense.astype(dtype))
    prefix = dense_prefix(batch, 3, first=0)
    assert prefix.shape == (5, 3)
    assert prefix.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(prefix, axis=1), 1, atol=1e-6)
    cut = batch.dense[:, :3].astype(np.float32)
    np.testing.assert_allclose(prefix, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_vectors_without_a_direction_are_refused(value: float) -> None:
    batch = batch_of([{1: 1}] * 5)
    batch.dense[3, :4] = value
    with raises(CorpusError, naming="d3"):
        dense_prefix(batch, 4, first=100)


@pytest.mark.parametrize(
    "change",
    [
        {"terms": np.array([1, 2, 50])},
        {"terms": np.array([-1, 2, 3])},
        {"terms": np.array([2, 2, 3])},
        {"impacts": np.array([1, 0, 5])},
        {"impacts": np.array([1, 65_536, 5])},
    ],
)
def test_terms_and_impacts_out_of_bounds_are_refused(change: dict[str, Any]) -> None:
    batch = batch_of([{1: 1, 2: 2}, {1: 3}])
    check_batch(batch, 50)
    with raises(CorpusError, naming="d"):
        check_batch(dataclasses.replace(batch, **change), 50)
