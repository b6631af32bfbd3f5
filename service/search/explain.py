"""Explains scores exactly, because both legs are sums over the query's tokens.

dense   score(d) = sum_t share_t,   share_t = f_t * (E[t] . d) / |sum_s f_s E[s]|,   f_t the weighted count of t
sparse  score(d) = sum_t share_t,   share_t = weight_t * impact(t, d)
fused   score(d) = sum_l share_l,   share_l the leg's share

A head query's dense vector comes from a model, so its tokens have no shares of the dense score. If the legs have
different tokenizers, each has tokens of its own, which have no share of the other's score.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.errors import FieldError, InvalidRequestError
from lightretriever.service.schemas import LegName, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.hits import Plain

__all__ = ["check_explained", "explained", "list_tokens"]

Array = npt.NDArray[Any]


def check_explained(request: SearchRequest, query: EncodedQuery, most: int) -> None:
    """Raise InvalidRequestError if the hits have more than `most` tokens to explain together."""
    tokens = query.terms.size + (0 if query.dense_tokens is None else query.dense_tokens.ids.size)
    hits = request.k * (1 if request.group_by is None else request.group_size)
    if request.explain and hits * tokens > most:
        message = (
            f"{hits} hits times {tokens} different tokens are too many to explain, at most {most} "
            "are possible (max_explained, which the searches of a batch share): ask for fewer hits, or shorten "
            "the query"
        )
        raise InvalidRequestError.of(FieldError("explain", message, value=True))


def explained(
    hits: Sequence[Plain],
    query: EncodedQuery,
    encoder: QueryEncoder,
    fusion: npt.NDArray[np.float64],
    legs: Sequence[LegName],
    shares: Mapping[LegName, npt.NDArray[np.float32]],
    require_time: Callable[[], None],
) -> list[Plain]:
    """Give the hits with an explanation each, as `Explanation`. `require_time` is called before each and may raise.

    fusion: (legs, k), each leg's share of each hit's score. shares: by leg (k, t), each query term's share of the leg's
    score, or in the dense leg (k, u) of each of its dense tokens, if it has any; a leg may be absent.
    """
    facts = list_tokens(query, encoder)
    nothing: list[float | None] = [None] * len(hits)
    dense, sparse = (np.full((len(hits), len(facts)), np.nan) for _ in range(2))
    first = 0 if query.dense_tokens is None else query.terms.size
    if "sparse" in shares:
        sparse[:, : query.terms.size] = shares["sparse"]
    if "dense" in shares:
        dense[:, first:] = shares["dense"]
    added = {"dense": nothing, "sparse": nothing} | dict(zip(legs, fusion.tolist(), strict=True))
    found = []
    for row, hit in enumerate(hits):
        require_time()
        both = {leg: values[row] for leg, values in added.items()}
        tokens = _tokens(facts, dense[row].tolist(), sparse[row].tolist())
        found.append(hit | {"explanation": {"fusion": both, "tokens": tokens}})
    return found


def list_tokens(query: EncodedQuery, encoder: QueryEncoder) -> list[Plain]:
    """List the terms of a query, and its dense tokens, if it has any, as `TokenCount`."""
    terms = _listed(query.terms, query.counts, query.weights, encoder.tokenizer)
    if encoder.dense_tokenizer is None:
        return terms
    own = [] if query.dense_tokens is None else _listed(*query.dense_tokens, encoder.dense_tokenizer)
    return [fact | {"leg": leg} for leg, facts in (("sparse", terms), ("dense", own)) for fact in facts]


def _listed(ids: Array, counts: Array, weights: Array, tokenizer: TextTokenizer) -> list[Plain]:
    facts = zip(ids.tolist(), counts.tolist(), weights.tolist(), strict=True)
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
