"""Explains scores exactly, because both legs are sums over the query's tokens.

dense   score(d) = sum_t share_t,   share_t = f_t * (E[t] . d) / |sum_s f_s E[s]|,   f_t the weighted count of t
sparse  score(d) = sum_t share_t,   share_t = weight_t * impact(t, d)
fused   score(d) = sum_l share_l,   share_l the leg's share

A head query's dense vector comes from a model, so its tokens have no shares of the dense score.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.schemas import LegName
from lightretriever.service.search.hits import Plain

__all__ = ["explained", "list_tokens"]


def explained(
    hits: Sequence[Plain],
    query: EncodedQuery,
    tokenizer: TextTokenizer,
    fusion: npt.NDArray[np.float64],
    legs: Sequence[LegName],
    shares: Mapping[LegName, npt.NDArray[np.float32]],
    require_time: Callable[[], None],
) -> list[Plain]:
    """Give the hits with an explanation each, as `Explanation`. `require_time` is called before each and may raise.

    fusion: (legs, k), each leg's share of each hit's score. shares: by leg (k, t), each query term's share of the leg's
    score; a leg may be absent.
    """
    facts = list_tokens(query, tokenizer)
    nothing: list[float | None] = [None] * len(hits)
    unknown = np.full((len(hits), len(facts)), np.nan)
    dense, sparse = (shares.get(leg, unknown) for leg in ("dense", "sparse"))
    added = {"dense": nothing, "sparse": nothing} | dict(zip(legs, fusion.tolist(), strict=True))
    found = []
    for row, hit in enumerate(hits):
        require_time()
        both = {leg: values[row] for leg, values in added.items()}
        tokens = _tokens(facts, dense[row].tolist(), sparse[row].tolist())
        found.append(hit | {"explanation": {"fusion": both, "tokens": tokens}})
    return found


def list_tokens(query: EncodedQuery, tokenizer: TextTokenizer) -> list[Plain]:
    """List the terms of a query, as `TokenCount`."""
    ids = query.terms.tolist()
    facts = zip(ids, query.counts.tolist(), query.weights.tolist(), strict=True)
    return [{"id": term, "token": tokenizer.token(term), "count": count, "weight": w} for term, count, w in facts]


def _tokens(facts: Sequence[Plain], dense: Sequence[float], sparse: Sequence[float]) -> list[Plain]:
    return [
        fact
        | {
            "impact": None if math.isnan(in_sparse) else round(in_sparse / fact["weight"]),
            "dense": _known(in_dense),
            "sparse": _known(in_sparse),
        }
        for fact, in_dense, in_sparse in zip(facts, dense, sparse, strict=True)
    ]


def _known(share: float) -> float | None:
    return None if math.isnan(share) else share
