"""8-bit codes by error-feedback quantisation: queries see less of the error."""

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.dense.query_aware import build_query_aware_index, error_feedback_codes
from lightretriever.artifacts.sparse.jvm import start_jvm
from tests.support.vectors import unit

Floats = npt.NDArray[np.float32]
DIMENSION = 48


@pytest.fixture(scope="module")
def queries() -> Floats:
    """They have much in common, and differ in some directions more than in others."""
    random = np.random.default_rng(1)
    axes = np.linalg.qr(random.standard_normal((DIMENSION, DIMENSION)))[0]
    found = 3 * axes[0] + (random.standard_normal((2000, DIMENSION)) * 0.8 ** np.arange(DIMENSION)) @ axes
    return unit(found)


@pytest.fixture(scope="module")
def vectors() -> Floats:
    found = np.random.default_rng(2).standard_normal((20_000, DIMENSION)) * np.linspace(0.5, 2, DIMENSION)
    return unit(found)


def moment_of(queries: Floats) -> npt.NDArray[np.float64]:
    moment = queries.T.astype(np.float64) @ queries / len(queries)
    even: npt.NDArray[np.float64] = moment + 0.1 * np.trace(moment) / DIMENSION * np.eye(DIMENSION)
    return even


def steps_of(vectors: Floats) -> tuple[Floats, Floats]:
    low = vectors.min(axis=0)
    return low, (vectors.max(axis=0) - low) / np.float32(255)


def test_what_queries_have_nothing_to_do_with_is_rounded_to_the_nearest(vectors: Floats) -> None:
    low, step = steps_of(vectors)
    codes = error_feedback_codes(vectors, low, step, np.eye(DIMENSION))
    assert np.abs(codes + 0.5 - (vectors - low) / step).max() < 0.501


def test_a_dimension_may_have_one_value_alone(vectors: Floats, queries: Floats) -> None:
    flat = vectors.copy()
    flat[:, 7] = 0.25
    low, step = steps_of(flat)
    codes = error_feedback_codes(flat, low, step, moment_of(queries))
    assert not codes[:, 7].any()
    others = np.arange(DIMENSION) != 7
    moment = moment_of(queries)[np.ix_(others, others)]
    expected = error_feedback_codes(flat[:, others], low[others], step[others], moment)
    np.testing.assert_array_equal(codes[:, others], expected)


def test_it_works_where_java_runs(vectors: Floats, queries: Floats) -> None:
    """Java leaves the main thread less of its stack, which some of LAPACK's routines overflow."""
    start_jvm()
    wide = np.concatenate([vectors[:500]] * 8, axis=1)
    moment: npt.NDArray[np.float64] = np.kron(np.eye(8), moment_of(queries)).astype(np.float64)
    low, step = steps_of(vectors)
    codes = error_feedback_codes(wide, np.tile(low, 8), np.tile(step, 8), moment)
    assert (codes[:, :DIMENSION] == error_feedback_codes(vectors[:500], low, step, moment_of(queries))).mean() > 0.99


def test_the_index_has_such_codes(vectors: Floats, queries: Floats) -> None:
    index, _ = build_query_aware_index(vectors, queries[::2], lists=16)
    scored = faiss.downcast_index(index.refine_index)
    held = scored.reconstruct_n(0, scored.ntotal)
    plain = faiss.IndexScalarQuantizer(DIMENSION, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    plain.train(vectors)
    plain.add(vectors)
    exact = vectors @ queries[1::2].T
    seen, nearest = (
        np.square(found @ queries[1::2].T - exact).mean() for found in (held, plain.reconstruct_n(0, scored.ntotal))
    )
    assert seen < 0.3 * nearest
