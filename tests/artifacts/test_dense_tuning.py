"""Search parameters: the cheapest that find enough, with queries that the documents make."""

from dataclasses import replace
from pathlib import Path
from typing import Any

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
from lightretriever.artifacts.tokens.table import TokenTable, write_table
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.vectors import Layout, laid_out, random_unit, recall, unit

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
