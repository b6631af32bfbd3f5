"""Search parameters, the cheapest that find enough; and an index laid out by queries, whose codes lose less of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.writer import QuerySample
from lightretriever.artifacts.dense.build import (
    MIN_RECALL,
    MIN_RECALL_OF_A_SCAN,
    build_dense_index,
    choose_parameters,
    write_dense_index,
)
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dense.query_aware import build_query_aware_index, code_parts, error_feedback_codes
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.tokens.table import TokenTable, write_table
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.vectors import Layout, laid_out, random_unit, recall, unit
from tests.support.wordings import raises

Vectors = npt.NDArray[np.float32]


def clustered(count: int, dimension: int = 32, seed: int = 3, spread: float = 0.6) -> Vectors:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((40, dimension))
    vectors = centres[random.integers(0, 40, count)] + spread * random.standard_normal((count, dimension))
    return unit(vectors)


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    return clustered(6_000)


@pytest.fixture(scope="module")
def queries() -> Vectors:
    return clustered(100, seed=9)


@pytest.fixture(scope="module", params=["codes", "lists"])
def built(
    request: pytest.FixtureRequest, vectors: Vectors, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """An index of each kind that has parameters, and its file."""
    file = tmp_path_factory.mktemp("tuned") / "dense.faiss"
    with laid_out(request.param):
        index, _ = build_dense_index(vectors)
    write_dense_index(index, file)
    return index, file


def test_the_setting_finds_enough_and_a_cheaper_one_does_not(
    built: tuple[Any, Path], vectors: Vectors, queries: Vectors
) -> None:
    index, file = built
    parameters, found = choose_parameters(index, vectors, queries)
    assert found is not None
    wanted = MIN_RECALL if "nprobe" in parameters else MIN_RECALL_OF_A_SCAN
    assert found >= wanted
    assert recall(DenseIndex.open(file, parameters), vectors, queries, 100) == pytest.approx(found, abs=0.01)
    name = "nprobe" if "nprobe" in parameters else "k_factor_rf"
    assert parameters[name] > 1
    # Of lists the next narrower width was tried.
    narrower = {**parameters, name: min(parameters[name] - 1, round(parameters[name] * 2 ** (-1 / 8)))}
    assert recall(DenseIndex.open(file, narrower), vectors, queries, 100) < wanted
    assert choose_parameters(index, vectors, queries) == (parameters, found)


def test_where_nothing_finds_enough_the_best_is_nearly_reached(tmp_path: Path) -> None:
    """Documents without clusters: half of the lists, the most that is probed, hold too few of the best."""
    vectors, queries = random_unit(6_000, 32), random_unit(50, 32, seed=9)
    with laid_out("lists"):
        index, _ = build_dense_index(vectors)
    write_dense_index(index, tmp_path / "dense.faiss")
    parameters, found = choose_parameters(index, vectors, queries)
    assert found is not None
    assert found < MIN_RECALL
    widest = DenseIndex.open(tmp_path / "dense.faiss", {"nprobe": 32, "k_factor_rf": 32})
    assert found >= recall(widest, vectors, queries, 100) - 0.02
    assert parameters["nprobe"] <= 32


@pytest.mark.parametrize(
    ("layout", "count", "asked", "setting"),
    [
        ("flat", 500, 100, ({}, None)),  # an exact search needs no parameters
        ("codes", 60, 100, ({"k_factor_rf": 2}, 1.0)),  # fewer documents than are searched for
        ("lists", 1000, 0, ({"nprobe": 1, "k_factor_rf": 2}, None)),  # without queries the cheapest is taken
    ],
)
def test_where_nothing_is_to_be_chosen(
    vectors: Vectors, queries: Vectors, layout: Layout, count: int, asked: int, setting: object
) -> None:
    few = vectors[:count]
    with laid_out(layout):
        index, _ = build_dense_index(few)
    assert choose_parameters(index, few, queries[:asked]) == setting


def batch(first: int, count: int) -> EncodedBatch:
    """Documents whose terms are their number and the next nine, the first of the largest impact."""
    return EncodedBatch(
        ids=[str(first + row) for row in range(count)],
        documents=[b"{}"] * count,
        dense=clustered(count),
        indptr=np.arange(0, 10 * count + 1, 10, dtype=np.int64),
        terms=np.concatenate([np.arange(first + row, first + row + 10) for row in range(count)]).astype(np.int32),
        impacts=np.tile(np.arange(10, 0, -1), count).astype(np.uint16),
    )


def numbers(count: int) -> TextTokenizer:
    """A tokenizer of numbers, each of which is its token."""
    vocabulary = {str(number): number for number in range(count)} | {"[UNK]": count}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer.from_bytes(tokenizer.to_str().encode(), name="numbers")


@pytest.mark.parametrize("count", [1, 300, 511, 512, 513, 5000])
def test_queries_come_from_all_over_the_corpus(tmp_path: Path, count: int) -> None:
    sample = QuerySample()
    for first in range(0, count, 100):
        sample.add(batch(first, min(100, count - first)))
    rows = np.random.default_rng(1).standard_normal((count + 10, 8)).astype(np.float32)
    write_table(tmp_path / "t.npy", rows, "float32")
    queries = sample.queries(TokenTable.open(tmp_path / "t.npy"), numbers(count + 10), str)
    stride = 1
    while -(-count // stride) >= 512:
        stride *= 2
    expected = np.stack([rows[number : number + 8].mean(axis=0) for number in range(0, count, stride)])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(queries, expected, atol=1e-5)


def test_documents_without_terms_or_direction_make_no_query(tmp_path: Path) -> None:
    sample = QuerySample()
    one = batch(0, 1)
    sample.add(replace(one, ids=["0", "1"], indptr=np.array([0, 0, 10])))
    write_table(tmp_path / "t.npy", np.zeros((20, 4), np.float32), "float32")
    assert sample.queries(TokenTable.open(tmp_path / "t.npy"), numbers(20), str).shape == (0, 4)


def test_queries_of_words_are_read_by_the_tables_tokenizer(tmp_path: Path) -> None:
    sample, words = QuerySample(), ["3", "5", "nothing", "7"]
    named = replace(batch(0, 1), indptr=np.array([0, 4]), terms=np.array([3, 0, 2, 1]), names=words)
    sample.add(replace(named, impacts=np.array([9, 8, 7, 6])))
    rows = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)
    write_table(tmp_path / "t.npy", rows, "float32")
    expected = rows[[7, 3, 5]].sum(axis=0)
    found = sample.queries(TokenTable.open(tmp_path / "t.npy"), numbers(20), str)
    np.testing.assert_allclose(found, [expected / np.linalg.norm(expected)], atol=1e-5)


DIMENSION, COUNT = 32, 6000


@pytest.fixture(scope="module")
def spread() -> Vectors:
    return random_unit(COUNT, DIMENSION, seed=1)


@pytest.fixture(scope="module")
def alike() -> Vectors:
    """All lie near one direction and differ along three others: nothing else of a document matters to them."""
    random = np.random.default_rng(2)
    return unit(np.eye(DIMENSION)[0] + random.standard_normal((200, 4)) @ (0.5 * np.eye(DIMENSION)[1:5]))


def test_few_lists_hold_what_such_queries_ask_for(tmp_path: Path, spread: Vectors, alike: Vectors) -> None:
    files, setting = [tmp_path / "by-queries.faiss", tmp_path / "plain.faiss"], {"nprobe": 8, "k_factor_rf": 4}
    write_dense_index(build_query_aware_index(spread, alike[::2], lists=64)[0], files[0])
    with laid_out("lists"):
        write_dense_index(build_dense_index(spread)[0], files[1])
    known, unknown = (recall(DenseIndex.open(file, setting), spread, alike[1::2], 20) for file in files)
    assert known > 0.9
    assert known > unknown + 0.2


def test_fewer_codes_than_documents(spread: Vectors, alike: Vectors) -> None:
    index, _ = build_query_aware_index(spread, alike[::2], lists=32)
    short: Any = faiss.downcast_index(index.refine_index)
    short.remove_ids(np.arange(5))
    with raises(BundleError, naming="6000"):
        DenseIndex(index)


def test_codes_are_as_many_as_the_scores_need(spread: Vectors, alike: Vectors) -> None:
    assert code_parts(spread, alike) == 16
    flat = spread.copy()
    flat[:, 6:] *= 0.01
    assert code_parts(unit(flat), alike) == 4


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
    spread: Vectors, alike: Vectors, layout: Layout, dimension: int, asked: int, name: str
) -> None:
    with laid_out(layout):
        index, found = build_dense_index(unit(spread[:, :dimension]), unit(alike[:asked, :dimension]))
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


def moment_of(alike: Vectors) -> Any:
    moment = alike.T.astype(np.float64) @ alike / len(alike)
    return moment + 0.1 * np.trace(moment) / WIDE * np.eye(WIDE)


def coded(spread: Vectors, moment: Any) -> tuple[Any, Any]:
    """The codes, and the numbers of steps that they stand for."""
    low = spread.min(axis=0)
    step = (spread.max(axis=0) - low) / np.float32(255)
    return error_feedback_codes(spread, low, step, moment), (spread - low) / np.maximum(step, 1e-9)


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
