"""The documents on an OpenSearch cluster."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.cluster.queries import Query, filter_query, listing, matching, of_ordinals
from lightretriever.artifacts.cluster.schema import MAX_FOUND, filter_field, read_features
from lightretriever.artifacts.documents.bounds import MAX_COUNTED
from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.errors import TooManyValuesError
from lightretriever.service.backends.base import DocumentFilter, DocumentsGoneError, Ordinals
from lightretriever.service.backends.opensearch_legs import ClusterLegs

__all__ = ["ClusterDocuments"]


class ClusterDocuments:
    """The documents of one index: a `DocumentStore`."""

    def __init__(self, group: ClusterLegs) -> None:
        self.count = group.count
        self._group = group

    def spread(self, count: int) -> Ordinals:
        """Return the ordinals of up to `count` documents of the bundle from all over it, ascending."""
        return np.linspace(0, self.count - 1, min(count, self.count)).astype(np.int64)

    def documents(self, ordinals: Ordinals) -> list[bytes]:
        """Return the JSON of documents (m,). ValueError for an unknown ordinal."""
        return [raw.encode() for raw in self.sources(ordinals, "raw")]

    def sources(self, ordinals: Ordinals, field: str) -> list[Any]:
        """Return a field of documents (m,), in the order given. ValueError for an unknown ordinal, DocumentsGoneError
        if some were deleted."""
        self._group.check(ordinals)
        found: dict[int, Any] = {}
        for start in range(0, ordinals.size, MAX_FOUND):
            part = ordinals[start : start + MAX_FOUND]
            query = {"constant_score": {"filter": of_ordinals(part)}}
            hits = self._hits({"size": part.size, "query": query, "_source": [field], "docvalue_fields": ["ordinal"]})
            found |= {hit["fields"]["ordinal"][0]: hit["_source"].get(field) for hit in hits}
        if gone := [ordinal for ordinal in ordinals.tolist() if ordinal not in found]:
            raise DocumentsGoneError(gone)
        return [found[ordinal] for ordinal in ordinals.tolist()]

    def ordinal(self, document_id: str) -> int | None:
        """Return the ordinal of the document with this id, None if there is none."""
        try:
            document_id.encode()
        except UnicodeEncodeError:
            return None  # an id that is no Unicode text can't have been indexed
        query = {"ids": {"values": [document_id]}}
        hits = self._hits({"size": 1, "query": query, "_source": False, "docvalue_fields": ["ordinal"]})
        return int(hits[0]["fields"]["ordinal"][0]) if hits else None

    def terms(self, ordinal: int) -> tuple[list[str], npt.NDArray[np.int32]]:
        """Return all terms (n,) of a document, in order, and their impacts (n,) int32."""
        found = sorted(read_features(self.sources(np.array([ordinal]), "impacts")[0]).items())
        return [term for term, _ in found], np.array([impact for _, impact in found], np.int32)

    def of(self, ordinals: Ordinals) -> DocumentFilter:
        """Return the query that documents (m,) match."""
        self._group.check(ordinals)
        return of_ordinals(ordinals)

    def counts(self, field: str, among: DocumentFilter | None) -> list[tuple[str, int]]:
        """Count the values of a keyword field in the documents `among`. TooManyValuesError for more than 10,000."""
        values = {"terms": {"field": filter_field(field), "size": MAX_COUNTED}}
        answer = self._group.ask_one({"size": 0, "query": matching(among), "aggs": {"values": values}})
        found = answer["aggregations"]["values"]
        if found["sum_other_doc_count"]:
            raise TooManyValuesError(field, MAX_COUNTED)
        return sorted(((one["key"], one["doc_count"]) for one in found["buckets"]), key=lambda one: (-one[1], one[0]))

    def where(self, condition: Sequence[str]) -> DocumentFilter:
        """Return the query that documents of a condition match."""
        return filter_query(condition)

    def totals(self, chosen: Sequence[DocumentFilter | None], among: DocumentFilter | None = None) -> list[int]:
        """Return the number of documents in each set, of those `among`, all in one trip; None: all documents."""
        searches = [{"size": 0, "track_total_hits": True, "query": matching(one, among)} for one in chosen]
        answers = self._group.ask(("documents", search) for search in searches)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [int(answer["hits"]["total"]["value"]) for answer in answers if not isinstance(answer, Exception)]

    def listed(
        self, among: DocumentFilter | None, order: Order | None, offset: int, count: int, seconds: float = inf
    ) -> Ordinals:
        """Return the documents (m,) from the one at `offset` on, up to `count`, in an order, or by ordinal. The trip
        ends by the time of `ClusterLegs.within`, so `seconds` ends nothing."""
        hits = self._hits(listing(among, order, offset, count))
        return np.array([hit["fields"]["ordinal"][0] for hit in hits], np.int64)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._group.close()

    def _hits(self, search: Query) -> list[Query]:
        hits: list[Query] = self._group.ask_one({**search, "track_total_hits": False})["hits"]["hits"]
        return hits
