"""The query encoder: a table lookup for one leg, the terms of a vocabulary for the other, no model.

dense:   q = normalise(mean_i E[t_i]) = normalise(sum_t count_t E[t])           over the tokens of the table's tokenizer
sparse:  q[t] = count of t in the query, times IDF_t where the bundle has IDF   over the terms of the bundle's
vocabulary

The token that stands for what the vocabulary lacks is no evidence: it is left out. A query is read behind a space where
the tokenizer has other tokens for the first word of a text (`TextTokenizer.query_ids`).
The query for documents like another is that one's own vector, and its heaviest terms with their impacts as weights.
An added text of weight w counts as if it stood behind the query w times; w may be a fraction.
A head query without added texts has the vector that the model gave it.
A leg for which a text has nothing finds no document.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Final, TypeVar

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, Int32Array, Int64Array
from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.sparse.index import weighted_ids
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.table import HeadQueries, TokenTable, count_each
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import NO_TOKENS, EncodedQuery, QueryTokens
from lightretriever.service.errors import UnsearchableError
from lightretriever.service.observability.metrics import StageClock

# A shorter vector is rounding noise without a direction.
_SHORTEST = 1e-12
_NO_TERMS: Final = (list[str](), NO_TOKENS.counts, NO_TOKENS.weights)
_MAX_LIKE = 16  # terms of a document that is a query
K = TypeVar("K")


class QueryEncoder:
    """Encodes queries: by the tokens of `tokenizer` and a token table per task for the dense leg, and by the terms of
    `vocabulary` (None: the same tokens) for the sparse leg, whose tokens have IDF weights (V,), if any. `heads` has
    the head queries by task."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        tables: Mapping[str, TokenTable],
        vocabulary: Vocabulary | None = None,
        idf: Float32Array | None = None,
        heads: Mapping[str, HeadQueries] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        """The tokenizer of the tables."""
        self.vocabulary = vocabulary or Vocabulary(tokenizer, None)
        self.tables = tables
        self.heads = heads or {}
        self._idf = idf

    def encode(
        self,
        text: str,
        task: str,
        clock: StageClock,
        *,
        dense: bool = True,
        sparse: bool = True,
        field: str = "query",
        added: Sequence[tuple[str, float]] = (),
        split: bool = True,
    ) -> EncodedQuery:
        """Encode a text for a task (KeyError if unknown), without the vector unless `dense`, without terms unless
        `sparse`.

        Unless `split`, a query whose terms are its own words alone has its `text` in place of them, for the search to
        split. `added`: texts that count beside it, with weights above 0. UnsearchableError, which names the request's
        `field` with the text, if it has neither tokens nor terms for the legs that are asked for, or if the mean of the
        tokens' rows is zero.
        """
        started = perf_counter()
        texts, factors = [text, *(other for other, _ in added)], [1.0, *(weight for _, weight in added)]
        ids = self._ids(self.tokenizer, texts, field) if dense else [list[int]()] * len(texts)
        unsplit = not (split or added or self.vocabulary.tokenizer or task in self.heads) and ids[0] and sparse
        terms = (
            self._terms(texts, ids if dense else None, field) if sparse and not unsplit else [list[str]()] * len(texts)
        )
        if not (ids[0] or terms[0]):
            raise no_terms(field, text)
        started = clock.add("tokenize", started)
        head = self.heads[task].find(text) if dense and not added and task in self.heads else None
        if head is not None:
            clock.add("encode", started)
            return EncodedQuery(*self._weighed([terms[0]], [1.0]), NO_TOKENS, head, head=True)
        names, counts, weights = self._weighed(terms, factors) if sparse and not unsplit else _NO_TERMS
        tokens, vector, length = NO_TOKENS, None, 1.0
        if any(ids):
            tokens = _joined(ids, factors)
            vector, length = self.tables[task].direction(tokens.ids, tokens.weights)
        if not _SHORTEST <= length < np.inf:
            reason = "the mean of the tokens' vectors is zero, near to nothing: use other words, or mode 'sparse'"
            raise UnsearchableError.at(field, reason, text)
        if dense:
            clock.add("encode", started)
        return EncodedQuery(names, counts, weights, tokens, vector, text=text if unsplit else None)

    def of_document(self, terms: Sequence[str], impacts: Int32Array, vector: Float32Array | None) -> EncodedQuery:
        """Return the query for documents like one that has these terms (n,) with impacts (n,), and this vector (D,), if
        any. Its heaviest term weighs as much as a word of a text, the others by their impacts beside it."""
        names, _, weights = self._weighed([[term] for term in terms], (impacts / impacts.max(initial=1)).tolist())
        heaviest = np.lexsort((np.array(names), -weights))[:_MAX_LIKE]
        kept, no_counts = [names[index] for index in heaviest.tolist()], np.zeros(heaviest.size, np.int64)
        length = 0.0 if vector is None else float(np.linalg.norm(vector))
        dense = vector / np.float32(length) if vector is not None and length >= _SHORTEST else None
        return EncodedQuery(kept, no_counts, weights[heaviest], NO_TOKENS, dense, head=True)

    def can_encode(self, text: str, task: str) -> bool:
        """Return whether `encode` makes a query of a text for a task: the one place that says which texts are *without
        terms*, or without direction. Documents may be such texts, so whoever makes queries of documents asks first."""
        try:
            self.encode(text, task, StageClock(), dense=bool(self.tables))
        except UnsearchableError:
            return False
        return True

    def vectors(self, texts: Sequence[str], task: str) -> Float32Array:
        """Return the dense vectors of texts (n, D), of length 1; 0 for a text without tokens or direction. KeyError for
        a task without a table, TokenizerError for a text that the tokenizer fails on."""
        ids, lengths = self.tokenizer.query_ids_of(texts)
        bounds, distinct, counts = count_each(ids, lengths)
        vectors, norms = self.tables[task].directions(bounds, distinct, counts.astype(np.float32))
        vectors[~((norms >= _SHORTEST) & (norms < np.inf)) | (lengths == 0)] = 0
        return vectors

    def token_shares(self, query: EncodedQuery, task: str, vectors: Float32Array) -> Float32Array:
        """Return each token's share of the dense scores of documents of these vectors (m, D): its part of the query's
        vector times the document's, (m, u) float32."""
        rows = self.tables[task].rows(query.tokens.ids) * query.tokens.weights[:, None]
        parts = rows / np.float32(np.linalg.norm(rows.sum(axis=0)))
        shares: Float32Array = np.einsum("md,td->mt", vectors, parts)
        return shares

    def _terms(self, texts: list[str], ids: Sequence[list[int]] | None, field: str) -> list[list[str]]:
        """Return the terms of each text. `ids` are those of the dense leg, if they are known."""
        tokenizer = self.vocabulary.tokenizer
        if tokenizer is None:
            return self.vocabulary.terms_of(texts)
        if ids is None or tokenizer is not self.tokenizer:
            ids = self._ids(tokenizer, texts, field)
        return [[f"{token}" for token in bag] for bag in ids]

    def _weighed(
        self, bags: Sequence[list[str]], factors: Sequence[float]
    ) -> tuple[list[str], Int64Array, Float32Array]:
        """Return distinct terms, their counts and their weights, whose sums of weight times impact are exact."""
        counts, sums = _summed(bags, factors)
        kept, weights = [*sums], np.array([*sums.values()], dtype=np.float32)
        if self._idf is not None:
            tokens = map(self.vocabulary.token_of, kept)
            weights *= np.array([1.0 if token is None else self._idf[token] for token in tokens], np.float32)
        if len(factors) > 1 or self._idf is not None:  # whole numbers are exact as they are
            ids, weights = weighted_ids(np.arange(len(kept)), weights)
            kept = [kept[index] for index in ids.tolist()]
        return kept, np.array([counts[term] for term in kept], dtype=np.int64), weights

    @staticmethod
    def _ids(tokenizer: TextTokenizer, texts: Sequence[str], field: str) -> list[list[int]]:
        """Return the token ids of a query and of added texts. UnsearchableError if the tokenizer fails on one."""
        try:
            return [tokenizer.query_ids(text, appended=index > 0) for index, text in enumerate(texts)]
        except TokenizerError as error:
            reason = "the tokenizer fails on this text"
            raise UnsearchableError.at(field, reason, texts[0]) from error


def _summed(bags: Sequence[Sequence[K]], factors: Sequence[float]) -> tuple[dict[K, int], dict[K, float]]:
    counts, sums = dict[K, int](), dict[K, float]()
    for bag, factor in zip(bags, factors, strict=True):
        for key in bag:
            counts[key] = counts.get(key, 0) + 1
            sums[key] = sums.get(key, 0.0) + factor
    return counts, sums


def _joined(bags: Sequence[list[int]], factors: Sequence[float]) -> QueryTokens:
    counts, weights = _summed(bags, factors)
    kept = sorted(weights)
    return QueryTokens(
        np.array(kept, np.int32),
        np.fromiter(map(counts.__getitem__, kept), np.int64),
        np.fromiter(map(weights.__getitem__, kept), np.float32),
    )


def no_terms(field: str, text: str) -> UnsearchableError:
    """Return the error of a text, in this field of the request, for which no leg has anything."""
    reason = "nothing in this text can be searched for, no word and no known token: use other words, numbers or signs"
    return UnsearchableError.at(field, reason, text)
