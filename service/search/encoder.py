"""The query encoder: a table lookup for one leg, the terms of a vocabulary for the other, no model. Documents that are
written as fields alone are encoded by a model, which only `DocumentEncoder` loads.

dense:   q = normalise(mean_i E[t_i]) = normalise(sum_t count_t E[t])           over the tokens of the table's tokenizer
sparse:  q[t] = count of t in the query, times IDF_t where the bundle has IDF   over the terms of the bundle's
vocabulary

The token that stands for what the vocabulary lacks is no evidence: it is left out. A query is read behind a space where
the tokenizer has other tokens for the first word of a text (`TextTokenizer.query_ids`).
The query for documents like another is that one's own vector, and its heaviest terms with their impacts as weights.
An extra_terms text of weight w counts as if it stood behind the query w times; w may be a fraction, and below 0.
A head query without extra terms has the vector, and the sparse weights if there are any, that the model gave it.
A leg for which a text has nothing finds no document.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import chain, pairwise, repeat
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import TokenizerError, importing
from lightretriever.artifacts.live.documents import Encoded
from lightretriever.artifacts.sparse.arguments import weighted_ids
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.head_queries import HeadQueries, HeadQuery
from lightretriever.artifacts.tokens.table import TokenTable, count_each
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import NO_TOKENS, EncodedQuery, QueryTokens
from lightretriever.service.errors import FieldError, UnsearchableError, shortened
from lightretriever.service.observability.metrics import StageClock

__all__ = ["ENCODE_DOCUMENT", "DocumentEncoder", "QueryEncoder", "require_terms"]


if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.later import LaterDocuments

ENCODE_DOCUMENT: Final = "encode_document"
"""The lane of the model. It has one thread, so the model reads one document at a time."""

# A shorter vector is rounding noise without a direction.
_SHORTEST = 1e-12
_NO_TERMS: Final = (list[str](), NO_TOKENS.counts, NO_TOKENS.weights)
_MAX_LIKE = 16  # terms of a document that is a query
_NOTHING = 1e-6  # rounding noise of weights that cancel a token


class QueryEncoder:
    """Encodes queries: by the tokens of `tokenizer` and a token table per task for the dense leg, and by the terms of
    `vocabulary` (None: the same tokens) for the sparse leg, whose tokens have IDF weights (V,), if any. `heads` has
    the head queries by task."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        tables: Mapping[str, TokenTable],
        vocabulary: Vocabulary | None = None,
        idf: npt.NDArray[np.float32] | None = None,
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
        extra_terms: Sequence[tuple[str, float]] = (),
        split: bool = True,
    ) -> EncodedQuery:
        """Encode a text for a task (KeyError if unknown), without the vector unless `dense`, without terms unless
        `sparse`.

        Unless `split`, a query whose terms are its own words alone has its `text` in place of them, for the search to
        split. `extra_terms`: texts with their weights. UnsearchableError, which names the request's `field` with the
        text, if a text has neither tokens nor terms for the legs that are asked for, if negative weights cancel all of
        them, or if the mean of the tokens' rows is zero.
        """
        started = perf_counter()
        texts = [(text, field), *((one.strip(), f"terms.{place}.text") for place, (one, _) in enumerate(extra_terms))]
        factors = [1.0, *(weight for _, weight in extra_terms)]
        ids = [self._ids(self.tokenizer, *one, field) for one in texts] if dense else [[] for _ in texts]
        unsplit = not (split or extra_terms or self.vocabulary.tokenizer or task in self.heads) and ids[0] and sparse
        terms = self._terms(texts, ids if dense else None, field) if sparse and not unsplit else [[] for _ in texts]
        for found, known, (one, name) in zip(ids, terms, texts, strict=True):
            require_terms([*found, *known], name, one)
        started = clock.add("tokenize", started)
        head = None if extra_terms or task not in self.heads else self._head(text, task, terms[0], dense=dense)
        if head is not None:
            if dense:
                clock.add("encode", started)
            return head
        names, counts, weights = self._weighed(terms, factors) if sparse and not unsplit else _NO_TERMS
        tokens, vector, length = NO_TOKENS, None, 1.0
        if dense and any(ids):
            tokens = _joined(ids, factors)
            if tokens.ids.size:
                vector, length = self.tables[task].direction(tokens.ids, tokens.weights)
        if not names and not tokens.ids.size:
            reason = "they take away every token of the query: leave one of them out, or change a weight"
            raise UnsearchableError.of(FieldError("terms", reason))
        if not _SHORTEST <= length < np.inf:
            raise _no_direction(field, text)
        if dense:
            clock.add("encode", started)
        return EncodedQuery(names, counts, weights, tokens, vector, text=text if unsplit else None)

    def of_document(
        self, terms: Sequence[str], impacts: npt.NDArray[np.int32], vector: npt.NDArray[np.float32] | None
    ) -> EncodedQuery:
        """Return the query for documents like one that has these terms (n,) with impacts (n,), and this vector (D,), if
        any. Its heaviest term weighs as much as a word of a text, the others by their impacts beside it.
        """
        names, _, weights = self._weighed([[term] for term in terms], (impacts / impacts.max(initial=1)).tolist())
        heaviest = np.lexsort((np.array(names), -weights))[:_MAX_LIKE]
        query = EncodedQuery.of_model([names[place] for place in heaviest.tolist()], weights[heaviest], None)
        length = 0.0 if vector is None else float(np.linalg.norm(vector))
        dense = vector / np.float32(length) if vector is not None and length >= _SHORTEST else None
        return replace(query, counts=np.zeros(len(query.terms), np.int64), dense=dense, head=True)

    def can_encode(self, text: str, task: str) -> bool:
        """Return whether `encode` makes a query of a text for a task: the one place that says which texts are *without
        terms*, or without direction. Documents may be such texts, so whoever makes queries of documents asks first."""
        try:
            self.encode(text, task, StageClock(), dense=bool(self.tables))
        except UnsearchableError:
            return False
        return True

    def encode_batch(
        self, texts: Sequence[str], task: str, clock: StageClock, *, dense: bool = True
    ) -> Iterator[EncodedQuery]:
        """Encode many texts at once, each as `encode` does but none as a head query, to views of common arrays. An
        error names the first bad text, as `queries.N`."""
        started = perf_counter()
        terms = self.vocabulary.terms_of(texts)
        ids, lengths = self.tokenizer.query_ids_of(texts) if dense else (NO_TOKENS.ids, np.zeros(len(texts), np.int64))
        for number, (known, length) in enumerate(zip(terms, lengths.tolist(), strict=True)):
            require_terms(known if not length else texts[number], f"queries.{number}", texts[number])
        started = clock.add("tokenize", started)
        tokens: Iterable[QueryTokens] = repeat(NO_TOKENS, len(texts))
        vectors: Iterable[npt.NDArray[np.float32] | None] = repeat(None, len(texts))
        if dense:
            bounds, distinct, counts = count_each(ids, lengths)
            weights = counts.astype(np.float32)
            vectors, norms = self.tables[task].directions(bounds, distinct, weights)
            if (short := np.flatnonzero(~((norms >= _SHORTEST) & (norms < np.inf)) & (lengths > 0))).size:
                raise _no_direction(f"queries.{short[0]}", texts[short[0]])
            vectors = [vector if length else None for vector, length in zip(vectors, lengths.tolist(), strict=True)]
            parts = [slice(*ends) for ends in pairwise(bounds.tolist())]
            tokens = [QueryTokens(distinct[part], counts[part], weights[part]) for part in parts]
        weighed = [self._weighed([known], [1.0]) for known in terms]
        clock.add("encode" if dense else "tokenize", started)
        return (EncodedQuery(*one, bag, vector) for one, bag, vector in zip(weighed, tokens, vectors, strict=True))

    def vectors(self, texts: Sequence[str], task: str) -> npt.NDArray[np.float32]:
        """Return the dense vectors of texts (n, D), of length 1; 0 for a text without tokens or direction. KeyError for
        a task without a table, TokenizerError for a text that the tokenizer fails on."""
        ids, lengths = self.tokenizer.query_ids_of(texts)
        bounds, distinct, counts = count_each(ids, lengths)
        vectors, norms = self.tables[task].directions(bounds, distinct, counts.astype(np.float32))
        vectors[~((norms >= _SHORTEST) & (norms < np.inf)) | (lengths == 0)] = 0
        return vectors

    def with_parts(self, query: EncodedQuery, task: str) -> EncodedQuery:
        """Add each token's part of the dense vector to a query."""
        rows = self.tables[task].rows(query.tokens.ids) * query.tokens.weights[:, None]
        parts: npt.NDArray[np.float32] = rows / np.float32(np.linalg.norm(rows.sum(axis=0)))
        return replace(query, parts=parts)

    def _head(self, text: str, task: str, terms: list[str], *, dense: bool) -> EncodedQuery | None:
        """Look up what the model made of a text with these terms; None if it made nothing that is asked for.

        A term that the model added has count 0.
        """
        found = self.heads[task].find(text)
        if found is None or not (dense or self._has_terms(found)):
            return None
        names, counts, weights = self._weighed([terms], [1.0])
        if self._has_terms(found) and found.sparse is not None:
            ids, own = found.sparse
            occurrences = dict(zip(names, counts.tolist(), strict=True))
            names = [f"{token}" for token in ids.tolist()]
            counts = np.array([occurrences.get(name, 0) for name in names], dtype=np.int64)
            weights = own if self._idf is None else own * self._idf.take(ids)
        return EncodedQuery(names, counts, weights, NO_TOKENS, found.dense if dense else None, head=True)

    def _has_terms(self, found: HeadQuery) -> bool:
        return found.sparse is not None and self.vocabulary.tokenizer is not None

    def _terms(self, texts: Sequence[tuple[str, str]], ids: Sequence[list[int]] | None, field: str) -> list[list[str]]:
        """The terms of each text. `ids` are those of the dense leg, if they are known."""
        own = self.vocabulary.tokenizer
        if own is None:
            return self.vocabulary.terms_of([text for text, _ in texts])
        if ids is None or own is not self.tokenizer:
            ids = [self._ids(own, *one, field) for one in texts]
        return [[f"{token}" for token in bag] for bag in ids]

    def _weighed(
        self, bags: Sequence[list[str]], factors: Sequence[float]
    ) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The distinct terms of a query and of its extra terms, their counts and their weights in the sparse leg,
        without the terms that they cancel. Sums of weight times impact are exact, as `weighted_ids` says."""
        counts, sums = dict[str, int](), dict[str, float]()
        for bag, factor in zip(bags, factors, strict=True):
            for term in bag:
                counts[term] = counts.get(term, 0) + 1
                sums[term] = sums.get(term, 0.0) + factor
        kept = [term for term, factor in sums.items() if abs(factor) > _NOTHING]
        weights = np.array([sums[term] for term in kept], dtype=np.float32)
        if self._idf is not None:
            tokens = map(self.vocabulary.token_of, kept)
            weights *= np.array([1.0 if one is None else self._idf[one] for one in tokens], np.float32)
        if len(factors) > 1 or self._idf is not None:  # whole numbers are exact as they are
            places, weights = weighted_ids(np.arange(len(kept)), weights)
            kept = [kept[place] for place in places.tolist()]
        return kept, np.array([counts[term] for term in kept], dtype=np.int64), weights

    @staticmethod
    def _ids(tokenizer: TextTokenizer, text: str, name: str, field: str) -> list[int]:
        """Return the token ids of a text. UnsearchableError names the request's field `name` if the tokenizer fails on
        it."""
        try:
            return tokenizer.query_ids(text, appended=name != field)
        except TokenizerError as error:
            raise UnsearchableError.of(FieldError(name, "the tokenizer fails on this text", shortened(text))) from error


def _joined(bags: Sequence[list[int]], factors: Sequence[float]) -> QueryTokens:
    """The tokens of a query and of its extra terms, without those that they cancel."""
    counts = Counter(chain.from_iterable(bags))
    weights = dict[int, float](counts)
    if len(bags) > 1:
        weights = dict.fromkeys(counts, 0.0)
        for bag, factor in zip(bags, factors, strict=True):
            for token in bag:
                weights[token] += factor
    kept = sorted([token for token, weight in weights.items() if abs(weight) > _NOTHING])
    return QueryTokens(
        np.array(kept, np.int32),
        np.array([counts[token] for token in kept], np.int64),
        np.array([weights[token] for token in kept], np.float32),
    )


def require_terms(found: Sized, field: str, text: str) -> None:
    """Raise UnsearchableError, which names the request's `field` with the text, if nothing was found."""
    if not found:
        reason = (
            "nothing in this text can be searched for, no word and no known token: use other words, numbers or signs"
        )
        raise UnsearchableError.of(FieldError(field, reason, shortened(text)))


def _no_direction(field: str, text: str) -> UnsearchableError:
    reason = (
        "the mean of the tokens' vectors is zero, so no document is nearer than another: use other words, or "
        "search with mode 'sparse'"
    )
    return UnsearchableError.of(FieldError(field, reason, shortened(text)))


class DocumentEncoder:
    """Encodes documents as `lightretriever upsert` does, to the same vectors and impacts. Not thread-safe.

    There is none unless the settings name a recipe. Searches never ask its model, which is in the process's own memory.
    """

    def __init__(self, later: "LaterDocuments") -> None:
        self._later = later

    @classmethod
    def open(cls, recipe: Path, manifest: Manifest, most_impact: int) -> Self:
        """Load the model of a recipe, for an index whose impacts are 1 to `most_impact`, beside the bundle with this
        manifest or written from it.

        MissingExtraError without the pipeline, RecipeError and ModelError if there is no such model, ResumeError if the
        bundle was made with another one.
        """
        with importing("pipeline"):
            from lightretriever.artifacts.pipeline.later import LaterDocuments
            from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
        return cls(LaterDocuments.open(read_recipe(recipe, Recipe), manifest, most_impact))

    @property
    def model(self) -> str:
        """The model's name."""
        return self._later.encoders.name

    def encode(self, documents: Sequence[Document]) -> Sequence[Encoded]:
        """Encode documents. ModelError and TokenizerError for a text that the model can't read, DocumentError for an
        impact that the index can't have."""
        return self._later.encode(documents)
