"""The query encoder: a tokenizer and a table lookup, no model.

dense:   q = normalise(mean_i E[t_i])
sparse:  q[t] = count of t in the query, times IDF_t where the bundle has IDF weights
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from artifacts.table import TokenTable
from artifacts.text import TextTokenizer
from service.errors import FieldError, NoDirectionError, NoTokensError, shortened
from service.telemetry import StageClock

__all__ = ["EncodedQuery", "QueryEncoder"]

# A shorter vector is rounding noise; dividing by its length would make a direction out of it.
_SHORTEST = 1e-12
_FEW = 64


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """A query as the two legs need it.

    ids: (n,) int32, tokens in order. terms: (t,) int32, different tokens ascending. counts: (t,) int64.
    weights: (t,) float32, what each of them weighs in the sparse leg. dense: (D,) float32 of length 1, None where it
    was not asked for. parts: (t, D) float32, what each of the terms adds to it, None where it was not asked for.
    """

    ids: npt.NDArray[np.int32]
    terms: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    dense: npt.NDArray[np.float32] | None
    parts: npt.NDArray[np.float32] | None = None


class QueryEncoder:
    """Encodes queries with one tokenizer, the token table of each task, and the IDF weights (V,), if there are any."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        tables: Mapping[str, TokenTable],
        idf: npt.NDArray[np.float32] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.tables = tables
        self._idf = idf

    def encode(
        self, text: str, task: str, clock: StageClock, *, dense: bool = True, field: str = "query"
    ) -> EncodedQuery:
        """Encode a text for a task (KeyError if there is no such task), without the dense vector if `dense` is false.

        NoTokensError for a text without tokens; NoDirectionError where the mean of the tokens' rows is zero. Both name
        the `field` of the request that holds the text.
        """
        started = perf_counter()
        ids = self.tokenizer.encode(text)
        if ids.size == 0:
            reason = "the tokenizer finds no token in this text: use words, numbers or signs"
            raise NoTokensError.of(FieldError(field, reason, shortened(text)))
        terms, counts = _counted(ids)
        weights = counts.astype(np.float32)
        if self._idf is not None:
            weights *= self._idf[terms]
        started = clock.add("tokenize", started)
        if not dense:
            return EncodedQuery(ids, terms, counts, weights, None)
        mean = self.tables[task].mean(ids)
        length = math.sqrt(np.einsum("d,d->", mean, mean))  # not BLAS, which may wake its threads
        if length < _SHORTEST:
            reason = (
                "the mean of the tokens' vectors is zero, so no document is nearer than another: use other words, or "
                "search with mode 'sparse'"
            )
            raise NoDirectionError.of(FieldError(field, reason, shortened(text)))
        mean /= np.float32(length)
        clock.add("encode", started)
        return EncodedQuery(ids, terms, counts, weights, mean)

    def with_parts(self, query: EncodedQuery, task: str) -> EncodedQuery:
        """The same query with what each of its terms adds to its dense vector."""
        rows = self.tables[task].rows(query.terms) * query.counts[:, None].astype(np.float32)
        parts: npt.NDArray[np.float32] = rows / np.float32(np.linalg.norm(rows.sum(axis=0)))
        return replace(query, parts=parts)


def _counted(ids: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The different ids, ascending, and how often each occurs. For a few ids a dict is faster than `np.unique`."""
    if ids.size > _FEW:
        return np.unique(ids, return_counts=True)
    counts: dict[int, int] = {}
    for token_id in ids.tolist():
        counts[token_id] = counts.get(token_id, 0) + 1
    terms = sorted(counts)
    return np.array(terms, dtype=np.int32), np.array([counts[term] for term in terms], dtype=np.int64)
