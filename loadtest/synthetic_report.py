"""How well a synthetic corpus agrees with the one that it was fitted to, at the same number of documents."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.loadtest.synthetic import Sample, SyntheticCorpus

__all__ = ["compare", "describe"]

_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_RANKS = (1, 10, 100, 1_000, 10_000)
_NEIGHBOURS = 2_000


def compare(sample: Sample, corpus: SyntheticCorpus, queries: Sequence[npt.NDArray[np.integer]] = ()) -> dict[str, Any]:
    """`describe` of both, as `real` and `synthetic`. `queries`: token ids (n,) of each query."""
    dimension = sample.dense.shape[1]
    drawn = Sample.of(list(corpus.draw(len(sample.documents))), dimension)
    return {
        "documents": len(sample.documents),
        "neighbours": corpus.neighbours,
        "queries": len(queries),
        "real": describe(sample, queries),
        "synthetic": describe(drawn, queries),
    }


def describe(sample: Sample, queries: Sequence[npt.NDArray[np.integer]]) -> dict[str, Any]:
    """Distributions that decide what a search costs.

    Quantiles 1, 10, 50, 90, 99 % of terms per document, of impacts, and of the cosine of 2,000 documents to their
    nearest other; the share of documents that have the 1st, 10th, … most frequent term; and, over the queries, postings
    of a query (quantiles) and the sparse score of its 100th best document (quantiles, counts as query weights).
    """
    count = len(sample.documents)
    frequencies = np.sort(np.bincount(sample.terms))[::-1] / count
    probes = np.linspace(0, count - 1, min(_NEIGHBOURS, count)).astype(np.int64)
    cosines = sample.dense[probes] @ sample.dense.T
    cosines[np.arange(len(probes)), probes] = -1
    postings, hundredth = _sparse(sample, queries)
    return {
        "terms_per_document": _quantiles(np.diff(sample.indptr)),
        "impacts": _quantiles(sample.impacts),
        "share_of_documents_by_rank": {
            str(rank): round(float(frequencies[rank - 1]), 5) for rank in _RANKS if rank <= frequencies.size
        },
        "nearest_cosine": _quantiles(cosines.max(axis=1)),
        "postings_per_query": _quantiles(postings),
        "score_of_100th": _quantiles(hundredth),
    }


def _sparse(sample: Sample, queries: Sequence[npt.NDArray[np.integer]]) -> tuple[list[int], list[float]]:
    """Postings of each query, and the sparse score of its 100th best document (the last, where there are fewer)."""
    order = np.argsort(sample.terms, kind="stable")
    rows = np.repeat(np.arange(len(sample.documents)), np.diff(sample.indptr))[order]
    terms, impacts = sample.terms[order], sample.impacts[order].astype(np.float64)
    postings, hundredth = [], []
    for query in queries:
        scores, met = np.zeros(len(sample.documents)), 0
        for term, weight in zip(*np.unique(query, return_counts=True), strict=True):
            begin, end = np.searchsorted(terms, [term, term + 1])
            scores[rows[begin:end]] += weight * impacts[begin:end]
            met += int(end - begin)
        postings.append(met)
        hundredth.append(float(np.sort(scores)[-min(100, scores.size)]))
    return postings, hundredth


def _quantiles(values: npt.ArrayLike) -> list[float]:
    array = np.asarray(values, dtype=np.float64)
    return [round(float(value), 4) for value in np.quantile(array, _QUANTILES)] if array.size else []
