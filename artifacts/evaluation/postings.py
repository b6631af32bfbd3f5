"""How much work a sparse query is for the inverted index."""

from collections.abc import Iterable

import numpy as np
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.service.search.encoder import EncodedQuery

__all__ = ["postings_per_query"]


def postings_per_query(index: ImpactIndex, queries: Iterable[EncodedQuery]) -> float:
    """Mean over the queries of Σ df(t), over the different tokens t of the query that have a weight.

    df(t), the length of the token's posting list, is the number of documents that a search for it alone finds. It is
    what an exhaustive search scores; Lucene skips some of it.
    """
    lengths: dict[int, int] = {}
    totals = []
    for query in queries:
        total = 0
        for term in query.terms[query.weights > 0].tolist():
            if term not in lengths:
                found, _ = index.search(np.array([term]), np.ones(1, np.float32), index.count)
                lengths[term] = len(found)
            total += lengths[term]
        totals.append(total)
    return float(np.mean(totals)) if totals else 0.0
