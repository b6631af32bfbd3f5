"""An index laid out by queries: the same scores, fewer documents looked at for those queries."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.dense.build import (
    build_dense_index,
    check_factory,
    factory_for,
    write_dense_index,
)
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dense.query_aware import parse_query_aware, query_aware_factory
from lightretriever.artifacts.errors import BundleError, RecipeError
from tests.support.vectors import random_unit, recall, unit
from tests.support.wordings import raises

Vectors = npt.NDArray[np.float32]
DIMENSION, COUNT = 32, 6000
FACTORY = "Queries,IVF32,PQ16x4fsr,Refine(SQ8)"


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
    write_dense_index(build_dense_index(vectors, FACTORY, queries[::2]), file)
    return file


def test_few_lists_hold_what_such_queries_ask_for(
    path: Path, tmp_path: Path, vectors: Vectors, queries: Vectors
) -> None:
    plain = tmp_path / "plain.faiss"
    write_dense_index(build_dense_index(vectors, "IVF32,PQ16x4fsr,Refine(SQ8)"), plain)
    setting = {"nprobe": 4, "k_factor_rf": 4}
    known, unknown = (recall(DenseIndex.open(file, setting), vectors, queries[1::2], 20) for file in (path, plain))
    assert known > 0.9
    assert known > unknown + 0.2


def test_fewer_codes_than_documents(vectors: Vectors, queries: Vectors) -> None:
    index = build_dense_index(vectors, FACTORY, queries[::2])
    short: Any = faiss.downcast_index(index.refine_index)
    short.remove_ids(np.arange(5))
    with raises(BundleError, naming="6000"):
        DenseIndex(index)


def test_codes_are_as_many_as_the_scores_need(vectors: Vectors, queries: Vectors) -> None:
    assert query_aware_factory(vectors, queries, 32) == "Queries,IVF32,PQ16x4fsr,Refine(SQ8)"
    flat = vectors.copy()
    flat[:, 6:] *= 0.01
    assert query_aware_factory(unit(flat), queries, 32) == "Queries,IVF32,PQ4x4fsr,Refine(SQ8)"


def test_queries_decide_where_there_are_some_and_many_documents(vectors: Vectors, queries: Vectors) -> None:
    many = np.tile(vectors, (4, 1))
    assert factory_for(vectors[:5_000], queries) == "Flat"
    assert factory_for(vectors, queries) == "PQ16x4fs,Refine(SQ8)"
    assert factory_for(many, queries[:0]) == factory_for(many, None) == "IVF128,PQ16x4fsr,Refine(SQ8)"
    assert factory_for(many, queries) == "Queries,IVF128,PQ16x4fsr,Refine(SQ8)"
    assert factory_for(many[:, :8], queries[:, :8]) == "IVF128,PQ4x4fsr,Refine(SQ8)"


def test_what_can_not_be_built_is_named(vectors: Vectors, queries: Vectors) -> None:
    for factory in ("Queries,Flat", "Queries,IVF32,PQ17x4fsr,Refine(SQ8)", "Queries,IVF32,PQ16x4fs,Refine(SQ8)"):
        with raises(RecipeError) as caught:
            check_factory(factory, DIMENSION)
        assert f'"{factory}"' in str(caught.value) + str(caught.value.remedy)
    check_factory(FACTORY, DIMENSION)
    assert parse_query_aware(FACTORY, DIMENSION) == (32, 16)
    for none in (None, queries[:0]):
        with raises(RecipeError):
            build_dense_index(vectors, FACTORY, none)
    with raises(RecipeError):
        build_dense_index(vectors, "Queries,IVF1024,PQ16x4fsr,Refine(SQ8)", queries)
