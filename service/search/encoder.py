"""The query encoder: a tokenizer and a table lookup, no model.

dense:   q = normalise(mean_i E[t_i]) = normalise(sum_t count_t E[t])
sparse:  q[t] = count of t in the query, times IDF_t where the bundle has IDF weights

The token that stands for what the vocabulary lacks is no evidence: it is left out. A query is read behind a space where
the tokenizer has other tokens for the first word of a text (`TextTokenizer.query_ids`).
A extra_terms text of weight w counts as if it stood behind the query w times; w may be a fraction, and below 0.
A head query without extra terms has the vector, and the sparse weights if there are any, that the model gave it.
Where the legs have a tokenizer each, each counts the tokens of its own, and one that finds none finds no document.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import pairwise, repeat
from time import perf_counter

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.tokens.head_queries import HeadQueries
from lightretriever.artifacts.tokens.table import TokenTable
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import DenseTokens, EncodedQuery
from lightretriever.service.errors import UNSEARCHABLE, FieldError, NoDirectionError, NoTokensError, shortened
from lightretriever.service.observability.metrics import StageClock

__all__ = ["QueryEncoder", "require_tokens"]

# A shorter vector is rounding noise without a direction.
_SHORTEST = 1e-12
_NOTHING = 1e-6  # rounding noise of weights that cancel a token

_Counted = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]


class QueryEncoder:
    """Encodes queries with one tokenizer, a token table per task, and IDF weights (V,) and head queries by task, if
    any; with a tokenizer for each leg if the sparse leg has a `sparse_tokenizer`."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        tables: Mapping[str, TokenTable],
        idf: npt.NDArray[np.float32] | None = None,
        heads: Mapping[str, HeadQueries] | None = None,
        sparse_tokenizer: TextTokenizer | None = None,
    ) -> None:
        self.tokenizer = sparse_tokenizer or tokenizer
        """That of the terms."""
        self.dense_tokenizer = None if sparse_tokenizer is None else tokenizer
        """That of the tables; None if it is the same."""
        self.words_tokenizer = tokenizer
        """The tokenizer of the tables, which knows words as a whole."""
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
        field: str = "query",
        extra_terms: Sequence[tuple[str, float]] = (),
    ) -> EncodedQuery:
        """Encode a text for a task (KeyError if unknown), without the dense vector if `dense` is false.

        `extra_terms`: texts with their weights. NoTokensError for a text without tokens, or if negative weights cancel
        every token; NoDirectionError if the mean of the tokens' rows is zero. Both name the request's `field` with the
        text. With two tokenizers, a text needs a token of one of them.
        """
        if dense and self.dense_tokenizer is not None:
            return self._encode_apart(text, task, clock, field, extra_terms)
        started = perf_counter()
        ids = self._token_ids(text, field)
        if dense:
            started = clock.add("tokenize", started)
        sums = self.tables[task].sums if dense else None
        vector, length = None, 1.0
        head = None if extra_terms or task not in self.heads else self._head(text, task, ids, dense=dense)
        if head is not None:
            clock.add("encode" if dense else "tokenize", started)
            return head
        if extra_terms:
            bags = [ids, *(self._token_ids(*one, appended=True) for one in _extra_texts(extra_terms))]
            terms, counts, term_weights, weights = _joined(bags, extra_terms, self._idf)
            _require_terms(terms.size)
            if sums is not None:
                vector, length = sums.direction(terms, term_weights)
        elif sums is None:
            terms, counts, term_weights, weights = kernels.count(ids, self._idf)
        else:
            terms, counts, term_weights, weights, vector, length = sums.encode(ids, self._idf)
        if length < _SHORTEST:
            raise _no_direction(field, text)
        clock.add("encode" if dense else "tokenize", started)
        return EncodedQuery(terms, counts, term_weights, weights, vector, text=text)

    def can_encode(self, text: str, task: str) -> bool:
        """Tell whether `encode` makes a query of a text for a task: the one place that says which texts are *without
        terms*, or without direction. Documents may be such texts, so whoever makes queries of documents asks first."""
        try:
            self.encode(text, task, StageClock())
        except UNSEARCHABLE:
            return False
        return True

    def encode_batch(
        self, texts: Sequence[str], task: str, clock: StageClock, *, dense: bool = True
    ) -> Iterator[EncodedQuery]:
        """Encode many texts at once, each as `encode` does but none as a head query, to views of common arrays. An
        error names the first bad text, as `queries.N`."""
        if dense and self.dense_tokenizer is not None:
            fields = (f"queries.{number}" for number in range(len(texts)))
            pairs = zip(texts, fields, strict=True)
            return iter([self._encode_apart(text, task, clock, field, head=False) for text, field in pairs])
        started = perf_counter()
        ids, lengths = self.tokenizer.query_ids_of(texts)
        if (empty := np.flatnonzero(lengths == 0)).size:
            require_tokens([], f"queries.{empty[0]}", texts[empty[0]])
        if dense:
            started = clock.add("tokenize", started)
        bounds, terms, counts = kernels.count_each(ids, lengths)
        term_weights = counts.astype(np.float32)
        weights = term_weights if self._idf is None else term_weights * self._idf.take(terms)
        vectors: Iterable[npt.NDArray[np.float32] | None] = repeat(None, len(texts))
        if dense:
            vectors, norms = self.tables[task].sums.directions(bounds, terms, term_weights)
            if (short := np.flatnonzero(norms < _SHORTEST)).size:
                raise _no_direction(f"queries.{short[0]}", texts[short[0]])
        clock.add("encode" if dense else "tokenize", started)
        parts = [slice(*ends) for ends in pairwise(bounds.tolist())]
        arrays = ([array[part] for part in parts] for array in (terms, counts, term_weights, weights))
        return map(EncodedQuery, *arrays, vectors)

    def with_parts(self, query: EncodedQuery, task: str) -> EncodedQuery:
        """Add each term's part of the dense vector to a query, or that of each of its dense tokens, if it has any."""
        own = query.dense_tokens
        ids, weights = (query.terms, query.term_weights) if own is None else (own.ids, own.weights)
        rows = self.tables[task].rows(ids) * weights[:, None]
        parts: npt.NDArray[np.float32] = rows / np.float32(np.linalg.norm(rows.sum(axis=0)))
        return replace(query, parts=parts)

    def _head(self, text: str, task: str, ids: list[int], *, dense: bool) -> EncodedQuery | None:
        """Look up what the model made of a text with these token ids; None if it made nothing that is asked for.

        A term that the model added has count 0.
        """
        found = self.heads[task].find(text)
        if found is None or not (dense or found.sparse):
            return None
        terms, counts, term_weights, weights = kernels.count(ids, self._idf)
        if found.sparse is not None:
            occurrences = dict(zip(terms.tolist(), counts.tolist(), strict=True))
            terms, term_weights = found.sparse
            counts = np.array([occurrences.get(term, 0) for term in terms.tolist()], dtype=np.int64)
            weights = term_weights if self._idf is None else term_weights * self._idf.take(terms)
        vector = found.dense if dense else None
        return EncodedQuery(terms, counts, term_weights, weights, vector, text=text, head=True)

    def _encode_apart(
        self,
        text: str,
        task: str,
        clock: StageClock,
        field: str,
        extra_terms: Sequence[tuple[str, float]] = (),
        *,
        head: bool = True,
    ) -> EncodedQuery:
        """Encode a text by both tokenizers, each for its leg."""
        started = perf_counter()
        sparse, dense = list[list[int]](), list[list[int]]()
        for one, name in [(text, field), *_extra_texts(extra_terms)]:
            for bags, tokenizer in ((sparse, self.tokenizer), (dense, self.dense_tokenizer)):
                bags.append(_ids(tokenizer or self.tokenizer, one, name, appended=name != field))
            require_tokens(sparse[-1] + dense[-1], name, one)
        started = clock.add("tokenize", started)
        found = (
            self._head(text, task, sparse[0], dense=True) if head and not extra_terms and task in self.heads else None
        )
        if found is None:
            terms, counts, term_weights, weights = _joined(sparse, extra_terms, self._idf)
            own = DenseTokens(*_joined(dense, extra_terms, None)[:3])
            _require_terms(terms.size + own.ids.size)
            vector, length = self.tables[task].sums.direction(own.ids, own.weights) if own.ids.size else (None, 1.0)
            if length < _SHORTEST:
                raise _no_direction(field, text)
            found = EncodedQuery(terms, counts, term_weights, weights, vector, text=text, dense_tokens=own)
        clock.add("encode", started)
        return found

    def _token_ids(self, text: str, field: str, *, appended: bool = False) -> list[int]:
        """Give the token ids of a text, at least one. NoTokensError names the request's `field` with the text."""
        ids = _ids(self.tokenizer, text, field, appended=appended)
        require_tokens(ids, field, text)
        return ids


def _extra_texts(extra_terms: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """The texts of extra terms, and the request's fields with them."""
    return [(text.strip(), f"terms.{place}.text") for place, (text, _) in enumerate(extra_terms)]


def _ids(tokenizer: TextTokenizer, text: str, field: str, *, appended: bool) -> list[int]:
    """Give the token ids of a text. NoTokensError if the tokenizer fails on it."""
    try:
        return tokenizer.query_ids(text, appended=appended)
    except TokenizerError as error:
        raise NoTokensError.of(FieldError(field, "the tokenizer fails on this text", shortened(text))) from error


def _joined(
    bags: Sequence[list[int]], extra_terms: Sequence[tuple[str, float]], idf: npt.NDArray[np.float32] | None
) -> _Counted:
    """Do `kernels.count` for the token ids of a query and of its extra terms, without the tokens that they cancel."""
    counts = Counter[int]()
    term_weights: dict[int, float] = {}
    for found, weight in zip(bags, [1.0, *(weight for _, weight in extra_terms)], strict=True):
        counts.update(found)
        for token_id in found:
            term_weights[token_id] = term_weights.get(token_id, 0.0) + weight
    kept = sorted(token_id for token_id, factor in term_weights.items() if abs(factor) > _NOTHING)
    terms, factor = np.array(kept, dtype=np.int32), np.array([term_weights[term] for term in kept], dtype=np.float32)
    return (
        terms,
        np.array([counts[term] for term in kept], dtype=np.int64),
        factor,
        factor if idf is None else factor * idf.take(terms),
    )


def _require_terms(count: int) -> None:
    if not count:
        reason = "they take away every token of the query: leave one of them out, or change a weight"
        raise NoTokensError.of(FieldError("terms", reason))


def require_tokens(found: Sized, field: str, text: str) -> None:
    """Raise NoTokensError, which names the request's `field` with the text, if nothing was found."""
    if not found:
        reason = "the tokenizer finds no token in this text that it knows: use other words, numbers or signs"
        raise NoTokensError.of(FieldError(field, reason, shortened(text)))


def _no_direction(field: str, text: str) -> NoDirectionError:
    reason = (
        "the mean of the tokens' vectors is zero, so no document is nearer than another: use other words, or "
        "search with mode 'sparse'"
    )
    return NoDirectionError.of(FieldError(field, reason, shortened(text)))
