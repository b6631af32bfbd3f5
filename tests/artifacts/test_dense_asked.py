"""An index laid out by queries: the same scores, fewer documents looked at for those queries."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from lightretriever.artifacts.dense.build import build_dense_index, check_factory, factory_for, write_dense_index
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dense.query_aware import asked_factory, asked_lists
from lightretriever.artifacts.errors import RecipeError

from tests.support.vectors import unit

Vectors = npt.NDArray[np.float32]
DIMENSION, COUNT = 32, 6000
FACTORY = "Queries,IVF32,PQ16x4fsr,Refine(SQ8)"


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    return unit(np.random.default_rng(1).standard_normal((COUNT, DIMENSION)))


@pytest.fixture(scope="module")
def queries() -> Vectors:
    """All lie near one direction and differ along three others: nothing else of a document matters to them."""
    random = np.random.default_rng(2)
    return unit(np.eye(DIMENSION)[0] + random.standard_normal((200, 4)) @ (0.5 * np.eye(DIMENSION)[1:5]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, vectors: Vectors, queries: Vectors) -> Path:
    file = tmp_path_factory.mktemp("asked") / "dense.faiss"
    write_dense_index(build_dense_index(vectors, FACTORY, queries[::2]), file)
    return file


def recall(index: DenseIndex, vectors: Vectors, queries: Vectors, k: int = 20) -> float:
    shared = 0
    for query in queries:
        exact = np.argsort(-(vectors @ query), kind="stable")[:k]
        shared += np.intersect1d(index.search(query, k)[0], exact).size
    return shared / (k * len(queries))


def test_few_lists_hold_what_such_queries_ask_for(
    path: Path, tmp_path: Path, vectors: Vectors, queries: Vectors
) -> None:
    plain = tmp_path / "plain.faiss"
    write_dense_index(build_dense_index(vectors, "IVF32,PQ16x4fsr,Refine(SQ8)"), plain)
    setting = {"nprobe": 4, "k_factor_rf": 4}
    known, unknown = (recall(DenseIndex.open(file, setting), vectors, queries[1::2]) for file in (path, plain))
    assert known > 0.9
    assert known > unknown + 0.2


def test_scores_are_those_of_the_vectors(path: Path, vectors: Vectors, queries: Vectors) -> None:
    index = DenseIndex.open(path, {"nprobe": 32, "k_factor_rf": 8})
    assert (index.count, index.dimension) == (COUNT, DIMENSION)
    found, scores = index.search(queries[1], 50)
    np.testing.assert_array_equal(scores, index.scores(queries[1], found))
    np.testing.assert_allclose(scores, vectors[found] @ queries[1], atol=0.01)
    np.testing.assert_allclose(index.vectors(np.array([5, 4000])), vectors[[5, 4000]], atol=0.01)


def test_the_first_pass_scores_alike(path: Path, vectors: Vectors, queries: Vectors) -> None:
    """Mapping both sides changes no score; what is lost is what 4-bit codes lose."""
    index: Any = faiss.read_index(str(path))
    mapped = faiss.downcast_index(index.base_index)
    faiss.extract_index_ivf(mapped).nprobe = 32
    scores, found = mapped.search(queries[:5], 10)
    exact = np.einsum("qd,qkd->qk", queries[:5], vectors[found])
    np.testing.assert_allclose(scores, exact, atol=0.1)


def test_filters_hold(path: Path, vectors: Vectors, queries: Vectors) -> None:
    allowed = np.arange(COUNT) % 2 == 0
    found, _ = DenseIndex.open(path, {"nprobe": 8}).search(queries[0], 30, np.packbits(allowed, bitorder="little"))
    assert found.size == 30
    assert allowed[found].all()


def test_the_same_input_gives_the_same_bytes(path: Path, tmp_path: Path, vectors: Vectors, queries: Vectors) -> None:
    for name in ("once", "again"):
        write_dense_index(build_dense_index(vectors, FACTORY, queries[::2]), tmp_path / name, tmp_path / f"{name}.npz")
        assert (tmp_path / name).read_bytes() == path.read_bytes()
    assert (tmp_path / "once.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_codes_are_as_many_as_the_scores_need(vectors: Vectors, queries: Vectors) -> None:
    assert asked_factory(vectors, queries, 32) == "Queries,IVF32,PQ16x4fsr,Refine(SQ8)"
    flat = vectors.copy()
    flat[:, 6:] *= 0.01
    assert asked_factory(unit(flat), queries, 32) == "Queries,IVF32,PQ4x4fsr,Refine(SQ8)"


def test_queries_decide_where_there_are_some_and_many_documents(vectors: Vectors, queries: Vectors) -> None:
    many = np.tile(vectors, (4, 1))
    assert factory_for(vectors, queries) == "Flat"
    assert factory_for(many, queries[:0]) == factory_for(many, None) == "IVF128,PQ16x4fsr,Refine(SQ8)"
    assert factory_for(many, queries) == "Queries,IVF256,PQ16x4fsr,Refine(SQ8)"
    assert factory_for(many[:, :8], queries[:, :8]) == "IVF128,PQ4x4fsr,Refine(SQ8)"


def test_what_can_not_be_built_is_named(vectors: Vectors, queries: Vectors) -> None:
    for factory in ("Queries,Flat", "Queries,IVF32,PQ17x4fsr,Refine(SQ8)", "Queries,IVF32,PQ16x4fs,Refine(SQ8)"):
        with pytest.raises(RecipeError, match="m at most 16") as caught:
            check_factory(factory, DIMENSION)
        assert f'"{factory}"' in str(caught.value) + str(caught.value.remedy)
    check_factory(FACTORY, DIMENSION)
    assert asked_lists(FACTORY, DIMENSION) == (32, 16)
    for none in (None, queries[:0]):
        with pytest.raises(RecipeError, match="needs a sample of queries"):
            build_dense_index(vectors, FACTORY, none)
    with pytest.raises(RecipeError, match="needs at least 39936 documents"):
        build_dense_index(vectors, "Queries,IVF1024,PQ16x4fsr,Refine(SQ8)", queries)
