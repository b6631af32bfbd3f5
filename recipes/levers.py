"""What could make hybrid search better without a model in the query path: each lever alone, on judged queries.

    python -m recipes.levers BUNDLE COLLECTION --split dev --dense 0.6 --other OTHER_BUNDLE

searches a bundle that has words, dense and by BM25, with every query of COLLECTION/qrels/SPLIT.tsv, and prints how much
each lever changes the nDCG@10 of hybrid search, with the 95 % interval of a bootstrap over the queries. The levers:

- other normalisations of the scores than "range", and other k1 and b of BM25;
- Rocchio: the query's vector moved towards the mean of the first documents of hybrid search;
- RM3: the heaviest words of these documents added to the query's;
- with OTHER_BUNDLE of the same corpus, the weighted mean of both bundles' cosines. A bundle of both vectors, each times
  the root of its weight and concatenated, would give that.

All scores are exact. Nothing is written.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.query_sample import query_vectors
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.runs import JudgedQueries, ndcg_per_query, ranking, read_judged
from lightretriever.artifacts.evaluation.tune import Difference
from lightretriever.artifacts.sparse.bm25 import BM25_B, BM25_K1, indexed_words, words_of
from lightretriever.service.schemas import Normalization
from lightretriever.service.search.fusion import align, fuse_linear
from scipy.sparse import csr_array

__all__ = ["Legs", "Words", "levers", "main"]

Floats: TypeAlias = npt.NDArray[np.float32]
Values: TypeAlias = npt.NDArray[np.float64]

_CANDIDATES: Final = 100
_K: Final = 10
_NORMALIZATIONS: Final[tuple[Normalization, ...]] = ("zscore", "dbsf")
_SATURATIONS: Final = ((0.6, 0.4), (0.3, 0.2), (0.9, 0.2), (0.9, 0.6), (1.2, 0.75))  # k1, b
_MOVES: Final = ((3, 0.2), (3, 0.5), (5, 0.3), (10, 0.3))  # documents, weight of their mean
_EXPANSIONS: Final = ((5, 10, 0.2), (10, 10, 0.3), (10, 20, 0.2))  # documents, words, their share of the query
_SHARES: Final = (0.2, 0.3, 0.5)  # of the other bundle


class Words:
    """BM25 over the words of documents: `counts` (N, W) of each word in each document, and of queries (q, W)."""

    def __init__(self, documents: Sequence[str], queries: Sequence[str]) -> None:
        """Analysed texts, with a space between two words."""
        self._numbers: dict[str, int] = {}
        for word in (word for text in documents for word in text.split()):
            self._numbers.setdefault(word, len(self._numbers))
        self.counts = self._counted(documents)
        self.queries = self._counted(queries)
        found = np.bincount(self.counts.indices, minlength=len(self._numbers))
        self._idf = np.log(1 + (len(documents) - found + 0.5) / (found + 0.5))

    def weights(self, k1: float = BM25_K1, b: float = BM25_B) -> Any:
        """The BM25 of each word in each document, (N, W)."""
        lengths = np.asarray(self.counts.sum(axis=1)).ravel()
        places = np.repeat(np.arange(len(lengths)), np.diff(self.counts.indptr))
        long = 1 - b + b * lengths[places] / max(float(lengths.mean()), 1e-12)
        values = self._idf[self.counts.indices] * self.counts.data / (self.counts.data + k1 * long)
        return csr_array((values, self.counts.indices, self.counts.indptr), shape=self.counts.shape)

    def _counted(self, texts: Sequence[str]) -> Any:
        known = [[self._numbers[word] for word in text.split() if word in self._numbers] for text in texts]
        terms = np.array([term for row in known for term in row], dtype=np.int64)
        bounds = np.cumsum([0, *(len(row) for row in known)])
        counted = csr_array((np.ones(len(terms)), terms, bounds), shape=(len(texts), len(self._numbers)))
        counted.sum_duplicates()
        return counted


@dataclass(frozen=True)
class Legs:
    """Both legs of hybrid search for q queries and N documents: scores (q, N), 0 in `bm25` where no word is shared."""

    ids: list[str]
    judged: JudgedQueries
    dense: Floats
    bm25: Floats
    weight: float
    """Of the dense leg; that of BM25 is 1 less it."""

    def fused(self, query: int, normalization: Normalization = "range") -> tuple[npt.NDArray[np.int64], Values]:
        """The documents of a query, best first, and their scores."""
        scores, legs = (self.dense[query], self.bm25[query]), []
        for values, least in zip(scores, (-np.inf, 0.0), strict=True):
            best = np.argsort(-values, kind="stable")[:_CANDIDATES]
            best = best[values[best] > least]
            legs.append((best, values[best]))
        table = align(legs)
        for leg, values in enumerate(scores):
            table.fill(leg, values[table.missing(leg)])
        found = fuse_linear(table, [self.weight, 1 - self.weight], normalization)
        return table.ordinals[found.order], found.scores[found.order]

    def ndcg(self, normalization: Normalization = "range") -> Values:
        """nDCG@10 of each query (q,)."""
        run = {}
        for query, name in enumerate(self.judged.queries):
            places, scores = self.fused(query, normalization)
            hits = zip(places[:_K].tolist(), scores[:_K].tolist(), strict=True)
            run[name] = ranking([(self.ids[place], score) for place, score in hits])
        found = ndcg_per_query(self.judged.qrels, run)
        return np.array([found[name] for name in self.judged.queries])


def levers(
    legs: Legs, queries: Floats, vectors: Floats, words: Words, other: Floats | None = None
) -> Iterator[tuple[str, Values]]:
    """The name of each lever with the nDCG@10 of the queries (q,), first of hybrid search as it is.

    `queries` (q, D) and `vectors` (N, D) are those of the dense leg, `other` (q, N) the cosines of another bundle.
    """
    yield "as it is", legs.ndcg()
    for normalization in _NORMALIZATIONS:
        yield f"normalisation {normalization}", legs.ndcg(normalization)
    for k1, b in _SATURATIONS:
        yield f"BM25 with k1 {k1}, b {b}", replace(legs, bm25=_products(words.queries, words.weights(k1, b))).ndcg()
    ranked = [legs.fused(query)[0] for query in range(len(queries))]
    for count, weight in _MOVES:
        means = np.stack([vectors[places[:count]].mean(axis=0) for places in ranked])
        moved = queries + weight * means
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        dense = (moved @ vectors.T).astype(np.float32)
        yield f"Rocchio: {count} documents, weight {weight}", replace(legs, dense=dense).ndcg()
    weights = words.weights()
    for count, most, share in _EXPANSIONS:
        more = csr_array([_expanded(weights[places[:count]], most) for places in ranked])
        asked = (1 - share) * _shares(words.queries) + share * more
        bm25 = _products(asked, weights)
        yield f"RM3: {count} documents, {most} words, share {share}", replace(legs, bm25=bm25).ndcg()
    if other is not None:
        for share in _SHARES:
            dense = (1 - share) * legs.dense + share * other
            yield f"other bundle, share {share}", replace(legs, dense=dense).ndcg()


def _expanded(documents: Any, most: int) -> Values:
    """The `most` heaviest words of documents (n, W), as shares (W,)."""
    sums = np.asarray(documents.sum(axis=0)).ravel()
    sums[np.argsort(-sums, kind="stable")[most:]] = 0
    shares: Values = sums / max(sums.sum(), 1e-12)
    return shares


def _shares(counts: Any) -> Any:
    """Each row (W,) divided by its sum."""
    sums = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1)
    return counts.multiply(1 / sums[:, None]).tocsr()


def _products(queries: Any, weights: Any) -> Floats:
    scores: Floats = (queries @ weights.T).toarray().astype(np.float32)
    return scores


def _vectors(bundle: Bundle, texts: Sequence[str]) -> tuple[Floats, Floats]:
    """The vectors of texts (q, D) and of all documents (N, D). ValueError for a text without a vector."""
    index, table = bundle.dense(), bundle.table(bundle.manifest.default_task)
    queries = query_vectors(table, list(bundle.tokenizer().as_queries(texts)))
    if len(queries) < len(texts):
        raise ValueError(f"{len(texts) - len(queries)} of {len(texts)} queries have no vector")
    return queries, index.vectors(np.arange(index.count))


def _texts(bundle: Bundle) -> tuple[list[str], list[str]]:
    """The ids of a bundle's documents, and their words. ValueError for one without words."""
    if not bundle.manifest.sparse.words:
        raise ValueError("the bundle has no words: set index.words in its recipe and run `index`")
    with bundle.sparse() as index:
        return list(index.ids()), indexed_words(index, 0, index.count)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description="What could make hybrid search better.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("collection", type=Path, help="folder with queries.jsonl and qrels")
    parser.add_argument("--split", default="dev", help="qrels/SPLIT.tsv (default dev)")
    parser.add_argument("--dense", type=float, default=0.5, help="weight of the dense leg (default 0.5)")
    parser.add_argument("--other", type=Path, help="another bundle of the same corpus")
    given = parser.parse_args(arguments)
    try:
        judged = read_judged(given.collection, given.split)
        texts, bundle = list(judged.queries.values()), Bundle.open(given.bundle)
        ids, documents = _texts(bundle)
        queries, vectors = _vectors(bundle, texts)
        words = Words(documents, words_of(texts))
        legs = Legs(ids, judged, queries @ vectors.T, _products(words.queries, words.weights()), given.dense)
        other = None
        if given.other is not None:
            other_queries, other_vectors = _vectors(Bundle.open(given.other), texts)
            other = other_queries @ other_vectors.T
            if other.shape != legs.dense.shape:
                raise ValueError(f"{given.other} has {len(other_vectors)} documents, {given.bundle} {len(ids)}")
        found = levers(legs, queries, vectors, words, other)
        _, base = next(found)
        print(f"{'as it is':40} {base.mean():.4f} ({len(base)} queries)")
        for name, values in found:
            print(f"{name:40} {values.mean():.4f} {Difference.of(values - base, 0)}")
    except (LightRetrieverError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
