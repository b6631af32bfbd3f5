"""The stored documents: JSON objects, read by ordinal or id, and chosen by conditions."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import numpy as np
import orjson

from lightretriever.artifacts.dtypes import Int64Array
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import text_of
from lightretriever.service.backends.base import DocumentFilter, DocumentsGoneError, DocumentStore, UnavailableError
from lightretriever.service.errors import UNAVAILABLE, DeadlineError, NotReadyError, SearchFailedError, ServiceError
from lightretriever.service.schemas import DocumentTerm, DocumentTerms

_log = logging.getLogger(__name__)
_ID_FIELD: Final = "_id"
_KEPT_SETS: Final = 16  # of documents, each with two bits a document
_PROBE_WORDS: Final = 8
_PROBE_CHARACTERS: Final = 200
_MORE: Final = 10  # times as many documents, as few make an example
_TITLE_CHARACTERS: Final = 60


@contextmanager
def reading() -> Iterator[None]:
    """Log an error of the store, and raise SearchFailedError in its place, DeadlineError if it was late, or
    NotReadyError if its cluster is not available; DocumentsGoneError and the service's own errors pass."""
    try:
        yield
    except (DocumentsGoneError, ServiceError):
        raise
    except TimeoutError as error:
        raise DeadlineError("The documents did not come in time. Allow more time, or ask for less.") from error
    except UnavailableError as error:
        _log.error("documents failed", exc_info=error)
        raise NotReadyError(UNAVAILABLE) from error
    except Exception as error:
        _log.error("documents failed", exc_info=error)
        raise SearchFailedError("The documents could not be read. The reason is in the log.") from error


class Documents:
    """Reads documents. Thread-safe. A document's fields are the keys of its JSON object without `_id`. Every method
    raises errors as `reading`, and those that read by ordinal DocumentsGoneError if some were deleted."""

    def __init__(self, store: DocumentStore, names: Sequence[str]) -> None:
        """`names` are those of all fields, as the manifest has them."""
        self._where = lru_cache(_KEPT_SETS)(lambda condition: store.where(condition))
        self.store = store
        self.fields: list[str] = sorted({"title", "text", *names} - {_ID_FIELD})
        """Names of the fields."""

    def fetch(self, ordinals: Int64Array, fields: Sequence[str] | None) -> list[tuple[str, dict[str, Any]]]:
        """Return id and fields of documents (m,), in the order given; `fields` None: all."""
        documents = []
        for document in self._read(ordinals):
            document_id = document.pop(_ID_FIELD)
            if fields is not None:
                document = {name: document[name] for name in fields if name in document}
            documents.append((document_id, document))
        return documents

    def get(self, document_id: str) -> dict[str, Any] | None:
        """Return the fields of one document, or None if no document has this id."""
        with reading():
            ordinal = self.store.ordinal(document_id)
        return None if ordinal is None else self.fetch(np.array([ordinal], np.int64), None)[0][1]

    def where(self, condition: tuple[str, ...]) -> DocumentFilter:
        """Return the documents for which a condition holds, see `service.search.filters`. The last 16 sets are kept
        until a document changes."""
        with reading():
            return self._where(condition)

    def terms(self, document_id: str, vocabulary: Vocabulary) -> DocumentTerms | None:
        """Return one document's terms by descending impact, and mark those in its title and text; None if no document
        has this id."""
        try:
            with reading():
                ordinal = self.store.ordinal(document_id)
                if ordinal is None:
                    return None
                terms, impacts = self.store.terms(ordinal)
            fields = self.fetch(np.array([ordinal], np.int64), None)[0][1]
        except DocumentsGoneError:  # since its ordinal was read
            return None
        spelt = set(vocabulary.terms_of([text_of(fields)])[0])
        pairs = sorted(zip(terms, impacts.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
        listed = [
            DocumentTerm(term=term, text=vocabulary.spelt(term), impact=impact, in_text=term in spelt)
            for term, impact in pairs
        ]
        return DocumentTerms(id=document_id, terms=listed)

    def probes(self, count: int) -> list[str]:
        """Return up to `count` query-like texts: the first words of documents spread over the index."""
        texts = [" ".join(text_of(fields).split()[:_PROBE_WORDS]) for fields in self._sample(count)]
        return [text[:_PROBE_CHARACTERS].strip() for text in texts if text]

    def examples(self, count: int, accept: Callable[[str], bool]) -> list[str]:
        """Return up to `count` queries to try which are accepted: short titles of documents spread over the index,
        those of several words first."""
        sample = self._sample(_MORE * count)
        inner = sample[1:-1] or sample  # the first and the last of a corpus are often odd
        titles = dict.fromkeys(" ".join(str(fields.get("title") or "").split()) for fields in inner)
        queries = [title for title in titles if 0 < len(title) <= _TITLE_CHARACTERS and accept(title)]
        return sorted(queries, key=lambda title: " " not in title)[:count]

    def _sample(self, count: int) -> list[dict[str, Any]]:
        ordinals = self.store.spread(count)
        while True:
            try:
                return self._read(ordinals)
            except DocumentsGoneError as error:
                ordinals = ordinals[~np.isin(ordinals, list(error.ordinals))]

    def _read(self, ordinals: Int64Array) -> list[dict[str, Any]]:
        if not ordinals.size:
            return []
        with reading():
            return [*map(orjson.loads, self.store.documents(ordinals))]
