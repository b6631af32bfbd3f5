"""An index in shards: what each leg finds in every shard, merged, is what it finds in one index, and so is the fused
answer. And the three cases in which it is not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightretriever.artifacts.dense.build import build_dense_index
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.service.schemas import Normalization
from lightretriever.service.search.fusion import align, fuse_linear, fuse_rrf
from tests.support.vectors import unit

Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
Scores = npt.NDArray[np.float32]

METHODS = ("range", "zscore", "dbsf", "paper", "rrf")
DOCUMENTS, DIMENSION, VOCABULARY = 90, 8, 12
SHARDS = 3


def best(ordinals: npt.NDArray[np.int64], scores: Scores, count: int) -> Found:
    """The best `count`, ties by ordinal."""
    order = np.lexsort((ordinals, -scores))[:count]
    return ordinals[order], scores[order]


def merge(parts: Sequence[Found], count: int) -> Found:
    """What the shards found, as one list."""
    ordinals, scores = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return best(ordinals, scores, count)


def fused(method: str, found: Sequence[Found], everything: Sequence[Scores]) -> tuple[list[int], list[float]]:
    """The answer of the service: candidates of all legs, each with the true score of every leg, fused."""
    table = align(found)
    for row, scores in enumerate(everything):
        table.fill(row, scores[table.missing(row)])
    weights = (0.7, 0.3)
    linear = cast(Normalization, method)
    answer = fuse_rrf(table, weights) if method == "rrf" else fuse_linear(table, weights, linear)
    return table.ordinals[answer.order].tolist(), answer.scores[answer.order].tolist()


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[Scores], npt.NDArray[np.int64], int]:
    """Two legs' scores of all documents, many of them equal; each document's shard; and the candidates per leg."""
    count = draw(st.integers(1, 60))
    score = st.floats(-100, 100, width=32) | st.sampled_from([0.0, 0.5, 1.0])
    lists = st.lists(score, min_size=count, max_size=count)
    shards = draw(st.lists(st.integers(0, 7), min_size=count, max_size=count))
    return [np.array(draw(lists), np.float32) for _ in range(2)], np.array(shards, np.int64), draw(st.integers(1, 30))


@pytest.mark.parametrize("method", METHODS)
@given(case=scored())
def test_merging_loses_nothing(method: str, case: tuple[list[Scores], npt.NDArray[np.int64], int]) -> None:
    legs, shard_of, count = case
    everything = np.arange(len(shard_of))
    shards = [np.flatnonzero(shard_of == shard) for shard in np.unique(shard_of)]
    whole = [best(everything, scores, count) for scores in legs]
    merged = [merge([best(shard, scores[shard], count) for shard in shards], count) for scores in legs]
    for one, other in zip(whole, merged, strict=True):
        assert one[0].tolist() == other[0].tolist()
        assert one[1].tolist() == other[1].tolist()
    assert fused(method, merged, legs) == fused(method, whole, legs)


def test_fusing_in_each_shard_is_another_ranking() -> None:
    """A normalised score depends on the other candidates, so it can't be compared between shards."""
    legs = [np.array(scores, np.float32) for scores in ([0.9, 0.8, 0.2, 0.1], [3.0, 0.0, 2.0, 1.0])]
    whole = fused("range", [best(np.arange(4), scores, 4) for scores in legs], legs)
    shards = [np.array([0, 1]), np.array([2, 3])]
    answers = [fused("range", [best(shard, scores[shard], 4) for scores in legs], legs) for shard in shards]
    hits = [hit for answer in answers for hit in zip(*answer, strict=True)]
    together = sorted(hits, key=lambda hit: -hit[1])
    assert whole[0] == [0, 1, 2, 3]
    assert [ordinal for ordinal, _ in together][:2] == [0, 2]


@dataclass
class Indexes:
    """Real indexes of some documents: their ordinals in the corpus, and both legs."""

    ordinals: npt.NDArray[np.int64]
    dense: DenseIndex
    sparse: ImpactIndex

    def search(self, vector: Scores, terms: npt.NDArray[np.int32], count: int) -> list[Found]:
        found = [
            self.dense.search(vector, count),
            self.sparse.search([str(term) for term in terms], np.ones(terms.size, np.float32), count),
        ]
        return [(self.ordinals[ordinals], scores) for ordinals, scores in found]

    def scores(self, vector: Scores, terms: npt.NDArray[np.int32]) -> list[Scores]:
        everything = np.arange(self.ordinals.size)
        weights = np.ones(terms.size, np.float32)
        return [
            self.dense.scores(vector, everything),
            self.sparse.scores([str(term) for term in terms], weights, everything),
        ]


def built(folder: Path, ordinals: npt.NDArray[np.int64], vectors: Scores, impacts: npt.NDArray[np.int64]) -> Indexes:
    rows = impacts[ordinals]
    names = [f"{ordinal}" for ordinal in ordinals]
    indptr = np.concatenate([[0], np.cumsum((rows > 0).sum(axis=1))])
    with ImpactIndexWriter(folder) as writer:
        writer.add(names, [b"{}" for _ in names], indptr, np.nonzero(rows)[1].astype(np.int32), rows[rows > 0])
    return Indexes(ordinals, DenseIndex(build_dense_index(vectors[ordinals])), ImpactIndex.open(folder))


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Indexes, list[Indexes]]]:
    """One index of all documents, and shards of the same."""
    folder, random = tmp_path_factory.mktemp("shards"), np.random.default_rng(7)
    vectors = unit(random.standard_normal((DOCUMENTS, DIMENSION)))
    impacts = random.integers(-6, 4, (DOCUMENTS, VOCABULARY)).clip(0)  # small, so that sums are often equal
    impacts[:, 0] = 1
    shard_of = random.integers(0, SHARDS, DOCUMENTS)
    whole = built(folder / "whole", np.arange(DOCUMENTS), vectors, impacts)
    parts = [built(folder / str(n), np.flatnonzero(shard_of == n), vectors, impacts) for n in range(SHARDS)]
    yield whole, parts
    for one in (whole, *parts):
        one.sparse.close()


@settings(max_examples=25)
@given(
    direction=st.lists(st.integers(-3, 3), min_size=DIMENSION, max_size=DIMENSION).filter(any),
    terms=st.sets(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5),
    count=st.integers(1, 40),
)
def test_faiss_and_lucene_in_shards_answer_as_one(
    indexes: tuple[Indexes, list[Indexes]], direction: list[int], terms: set[int], count: int
) -> None:
    whole, parts = indexes
    vector, ids = unit(np.array([direction], np.float64))[0], np.array(sorted(terms), np.int32)
    one = whole.search(vector, ids, count)
    lists = zip(*(part.search(vector, ids, count) for part in parts), strict=True)
    merged = [merge(found, count) for found in lists]
    for alone, together in zip(one, merged, strict=True):
        assert alone[0].tolist() == together[0].tolist()
        assert alone[1].tolist() == together[1].tolist()
    everything = whole.scores(vector, ids)
    for method in METHODS:
        assert fused(method, merged, everything) == fused(method, one, everything)


def test_inverted_lists_by_shard_are_other_lists() -> None:
    """An approximate index reads the lists next to the query, and shards have lists of their own."""
    random = np.random.default_rng(7)
    vectors, queries = unit(random.standard_normal((4000, 16))), unit(random.standard_normal((20, 16)))
    shard_of = random.integers(0, 2, len(vectors))
    groups = [np.arange(len(vectors)), np.flatnonzero(shard_of == 0), np.flatnonzero(shard_of == 1)]
    lists = [DenseIndex(build_dense_index(vectors[group], "IVF16,Flat")) for group in groups]
    differ = 0
    for query in queries:
        found = [
            (group[ordinals], scores)
            for group, index in zip(groups, lists, strict=True)
            for ordinals, scores in [index.search(query, 10)]
        ]
        ordinals, scores = merge(found[1:], 10)
        differ += ordinals.tolist() != found[0][0].tolist()
        assert scores == pytest.approx(vectors[ordinals] @ query, abs=1e-5)  # what is found is scored exactly
    assert differ
