"""An index laid out by queries: fewer documents looked at for those queries, which see less of the codes' error."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.dense.build import build_dense_index, write_dense_index
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dense.query_aware import build_query_aware_index, code_parts, error_feedback_codes
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.jvm import start_jvm
from tests.support.vectors import Layout, laid_out, random_unit, recall, unit
from tests.support.wordings import raises

Vectors = npt.NDArray[np.float32]
DIMENSION, COUNT = 32, 6000


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    return random_unit(COUNT, DIMENSION, seed=1)


@pytest.fixture(scope="module")
def queries() -> Vectors:
    """All lie near one direction and differ along three others: nothing else of a document matters to them."""
    random = np.random.default_rng(2)
    return unit(np.eye(DIMENSION)[0] + random.standard_normal((200, 4)) @ (0.5 * np.eye(DIMENSION)[1:5]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, vectors: Vectors, queries: Vectors) -> Path:
    file = tmp_path_factory.mktemp("query_aware") / "dense.faiss"
    write_dense_index(build_query_aware_index(vectors, queries[::2], lists=64)[0], file)
    return file


def test_few_lists_hold_what_such_queries_ask_for(
    path: Path, tmp_path: Path, vectors: Vectors, queries: Vectors
) -> None:
    plain = tmp_path / "plain.faiss"
    with laid_out("lists"):
        write_dense_index(build_dense_index(vectors)[0], plain)
    setting = {"nprobe": 8, "k_factor_rf": 4}
    known, unknown = (recall(DenseIndex.open(file, setting), vectors, queries[1::2], 20) for file in (path, plain))
    assert known > 0.9
    assert known > unknown + 0.2


def test_fewer_codes_than_documents(vectors: Vectors, queries: Vectors) -> None:
    index, _ = build_query_aware_index(vectors, queries[::2], lists=32)
    short: Any = faiss.downcast_index(index.refine_index)
    short.remove_ids(np.arange(5))
    with raises(BundleError, naming="6000"):
        DenseIndex(index)


def test_codes_are_as_many_as_the_scores_need(vectors: Vectors, queries: Vectors) -> None:
    assert code_parts(vectors, queries) == 16
    flat = vectors.copy()
    flat[:, 6:] *= 0.01
    assert code_parts(unit(flat), queries) == 4


@pytest.mark.parametrize(
    ("layout", "dimension", "asked", "name"),
    [
        ("flat", 32, 50, "Flat"),
        ("codes", 32, 50, "PQ16x4fs,Refine(SQ8)"),
        ("lists", 32, 0, "IVF64,PQ16x4fsr,Refine(SQ8)"),
        ("lists", 32, 50, "Queries,IVF64,PQ16x4fsr,Refine(SQ8)"),
        ("lists", 8, 50, "IVF64,PQ4x4fsr,Refine(SQ8)"),
    ],
)
def test_queries_decide_where_there_are_some_and_many_documents(
    vectors: Vectors, queries: Vectors, layout: Layout, dimension: int, asked: int, name: str
) -> None:
    with laid_out(layout):
        index, found = build_dense_index(unit(vectors[:, :dimension]), unit(queries[:asked, :dimension]))
    assert (found, index.ntotal) == (name, COUNT)


# ---- codes by error-feedback quantisation ----

WIDE = 48


@pytest.fixture(scope="module")
def skewed() -> Vectors:
    """Queries that have much in common, and differ in some directions more than in others."""
    random = np.random.default_rng(1)
    axes = np.linalg.qr(random.standard_normal((WIDE, WIDE)))[0]
    return unit(3 * axes[0] + (random.standard_normal((2000, WIDE)) * 0.8 ** np.arange(WIDE)) @ axes)


@pytest.fixture(scope="module")
def stretched() -> Vectors:
    return unit(np.random.default_rng(2).standard_normal((20_000, WIDE)) * np.linspace(0.5, 2, WIDE))


def moment_of(queries: Vectors) -> Any:
    moment = queries.T.astype(np.float64) @ queries / len(queries)
    return moment + 0.1 * np.trace(moment) / WIDE * np.eye(WIDE)


def coded(vectors: Vectors, moment: Any) -> tuple[Any, Any]:
    """The codes, and the numbers of steps that they stand for."""
    low = vectors.min(axis=0)
    step = (vectors.max(axis=0) - low) / np.float32(255)
    return error_feedback_codes(vectors, low, step, moment), (vectors - low) / np.maximum(step, 1e-9)


def test_what_queries_have_nothing_to_do_with_is_rounded_to_the_nearest(stretched: Vectors) -> None:
    codes, steps = coded(stretched, np.eye(WIDE))
    assert np.abs(codes + 0.5 - steps).max() < 0.501


def test_a_dimension_may_have_one_value_alone(stretched: Vectors, skewed: Vectors) -> None:
    flat, moment, others = stretched.copy(), moment_of(skewed), np.arange(WIDE) != 7
    flat[:, 7] = 0.25
    codes, _ = coded(flat, moment)
    assert not codes[:, 7].any()
    np.testing.assert_array_equal(codes[:, others], coded(flat[:, others], moment[np.ix_(others, others)])[0])


def test_codes_are_made_where_java_runs(stretched: Vectors, skewed: Vectors) -> None:
    """Java leaves the main thread less of its stack, which some of LAPACK's routines overflow."""
    start_jvm()
    few, moment = stretched[:500], moment_of(skewed)
    codes, _ = coded(np.concatenate([few] * 8, axis=1), np.kron(np.eye(8), moment))
    assert (codes[:, :WIDE] == coded(few, moment)[0]).mean() > 0.99


def test_the_index_has_such_codes(stretched: Vectors, skewed: Vectors) -> None:
    index, _ = build_query_aware_index(stretched, skewed[::2], lists=16)
    plain = faiss.IndexScalarQuantizer(WIDE, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    plain.train(stretched)
    plain.add(stretched)
    seen, nearest = (
        np.square((one.reconstruct_n(0, one.ntotal) - stretched) @ skewed[1::2].T).mean()
        for one in (faiss.downcast_index(index.refine_index), plain)
    )
    assert seen < 0.3 * nearest
