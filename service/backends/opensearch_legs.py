"""The legs and the documents of one index on an OpenSearch cluster. The legs are asked in one trip."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import inf
from threading import Lock
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.cluster.aliases import indexes_of
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.queries import (
    Query,
    dense_search,
    filter_query,
    listing,
    matching,
    of_ordinals,
    read_hits,
    sparse_search,
)
from lightretriever.artifacts.cluster.schema import FIRST_LIVE, MAX_FOUND, IndexMeta, filter_field, read_features
from lightretriever.artifacts.documents.bounds import MAX_COUNTED
from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.errors import ClusterError, ClusterTimeoutError, TooManyValuesError
from lightretriever.service.backends.base import (
    DocumentFilter,
    DocumentsGoneError,
    EncodedQuery,
    Ordinals,
    ScoredDocuments,
    Scores,
    UnavailableError,
    check_count,
)
from lightretriever.service.schemas import ClusterFacts, LegName

__all__ = ["ClusterDocuments", "ClusterLegs", "result_of"]

T = TypeVar("T")

_PROBE_S: Final = 0.5  # time for a probe
_BETWEEN_PROBES_S: Final = 1.0
_MAX_NAMED: Final = 10  # documents, as in Java's DocumentFilter
_DEADLINE: Final = ContextVar[float]("deadline", default=inf)


class ClusterLegs:
    """The legs of one index, asked in one trip. Thread-safe.

    A leg that fails has an exception in place of its result, TimeoutError if it is late; if all fail, it is raised.
    """

    name: Final = "opensearch"

    def __init__(self, cluster: Cluster, alias: str, index: str, meta: IndexMeta, timeout_s: float) -> None:
        """`timeout_s` is the time for a trip without a deadline. `close` closes the connections."""
        version = ".".join(map(str, cluster.version))
        self.facts = ClusterFacts(address=cluster.name, version=version, alias=alias, index=index, engine=meta.engine)
        """Where the legs are searched: by the index that the alias stood for when they were opened."""
        self.meta = meta
        self.live = LiveIndex(cluster, alias, index, meta)
        self._unreachable: str | None = None
        self._lost: str | None = None
        self._probing = Lock()
        self._probed = -_BETWEEN_PROBES_S
        self._cluster = cluster
        self._timeout_s = timeout_s

    def search(
        self,
        names: Sequence[LegName],
        query: EncodedQuery,
        count: int,
        allowed: DocumentFilter | None = None,
        deadline: float = inf,
    ) -> tuple[dict[LegName, ScoredDocuments | Exception], Ordinals]:
        """Find the best `count` documents of each leg, and those that the query names. ValueError if `count` is below
        1."""
        check_count(count)
        searches: list[tuple[str, Query]] = [(name, self._search(name, query, count, allowed)) for name in names]
        for condition in query.named:
            searches.append(("named", listing(matching(filter_query(condition), allowed), None, 0, _MAX_NAMED + 1)))
        legs, named = dict[LegName, ScoredDocuments | Exception](), list[int]()
        for name, answer in zip([*names, *query.named], self.ask(searches, deadline), strict=True):
            if not isinstance(name, tuple):
                legs[name] = answer if isinstance(answer, Exception) else ScoredDocuments(*read_hits(name, answer))
            elif not isinstance(answer, Exception) and len(hits := answer["hits"]["hits"]) <= _MAX_NAMED:
                named += [hit["fields"]["ordinal"][0] for hit in hits]
        return legs, np.array(list(dict.fromkeys(named)), np.int64)

    def scores(self, name: LegName, ordinals: Ordinals, query: EncodedQuery) -> Scores:
        """Score given documents in a leg. ValueError for an unknown ordinal, DocumentsGoneError for a deleted one."""
        self.check(ordinals)
        allowed = of_ordinals(ordinals)
        hits = read_hits(name, self.ask_one(self._search(name, query, max(1, ordinals.size), allowed, every=True)))
        scores = dict(zip(*(part.tolist() for part in hits), strict=True))
        missing = [ordinal for ordinal in ordinals.tolist() if ordinal not in scores]
        if missing:
            raise DocumentsGoneError(missing)
        return np.array([scores[ordinal] for ordinal in ordinals.tolist()], np.float32)

    def ask_one(self, search: Query) -> Query:
        """Send one search, and give its answer."""
        return result_of(self.ask([("documents", search)])[0])

    def ask(self, searches: Iterable[tuple[str, Query]], deadline: float = inf) -> list[Query | Exception]:
        """Send searches, each with its leg, in one trip. Give each one's answer or exception; raise the first if all
        fail."""
        deadline = min(deadline, _DEADLINE.get())
        left = self._timeout_s if deadline == inf else deadline - perf_counter()
        if left <= 0:
            raise TimeoutError("There was no time left to ask the cluster.")
        # Partial results would lack a lost shard without an error.
        header = {"index": self.facts.index, "allow_partial_search_results": False}
        body = [line for _, search in searches for line in (header, search)]
        params = {"cancel_after_time_interval": f"{max(1, round(left * 1e3))}ms"}
        try:
            with self._cluster.translated():
                answer = self._cluster.client.msearch(body=body, params=params, request_timeout=left)
        except ClusterTimeoutError as error:  # its deadline may have been short, so this is no problem of the cluster's
            raise TimeoutError(str(error)) from error
        except ClusterError as error:
            self._unreachable = str(error)
            raise UnavailableError(str(error)) from error
        self._unreachable = None
        answers = [self._failure(entry) if "error" in entry else entry for entry in answer["responses"]]
        failed = [failure for failure in answers if isinstance(failure, Exception)]
        lost = [failure for failure in failed if isinstance(failure, UnavailableError)]
        if len(failed) < len(answers):
            self._lost = None
        elif len(lost) == len(answers):
            self._lost = str(lost[0])
        if failed and len(failed) == len(answers):
            raise failed[0]
        return answers

    @contextmanager
    def within(self, deadline: float) -> Iterator[None]:
        """End the trips that this thread makes in the block, and that have no time of their own, by `deadline`."""
        before = _DEADLINE.set(deadline)
        try:
            yield
        finally:
            _DEADLINE.reset(before)

    def check(self, ordinals: Ordinals) -> None:
        """ValueError for an ordinal that no document can have."""
        outside = ordinals[(ordinals < 0) | ((ordinals >= self.meta.documents) & (ordinals < FIRST_LIVE))]
        if outside.size:
            raise ValueError(f"document {outside[0]} is outside 0..{self.meta.documents - 1}")

    @property
    def count(self) -> int:
        """Number of documents of the bundle."""
        return self.meta.documents

    @property
    def problem(self) -> str | None:
        """Why the cluster did not answer the last trip, or what of the index was lost at the last search."""
        return self._unreachable or self._lost

    def probe(self) -> None:
        """Search for nothing, so that `problem` is of now; not if another probe has begun within the last second."""
        if not self._probing.acquire(blocking=False):
            return
        try:
            now = perf_counter()
            if now >= self._probed + _BETWEEN_PROBES_S:
                self._probed = now
                with suppress(ClusterError, UnavailableError, TimeoutError):  # it is a problem then, or only late
                    self.ask([("documents", {"size": 0, "track_total_hits": False})], now + _PROBE_S)
        finally:
            self._probing.release()

    def present_index(self) -> str:
        """Name the index that the alias stands for now; the one that is searched if the cluster can't be asked, or if
        the alias does not stand for one index."""
        try:
            indexes = indexes_of(self._cluster, self.facts.alias)
        except ClusterError as error:
            self._unreachable = str(error)
            return self.facts.index
        self._unreachable = None
        return indexes[0] if len(indexes) == 1 else self.facts.index

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._cluster.close()

    def _search(
        self, name: LegName, query: EncodedQuery, count: int, allowed: Query | None, *, every: bool = False
    ) -> Query:
        if name == "dense":
            if query.dense is None:
                raise ValueError("the query was encoded without its dense vector")
            return dense_search(query.dense, count, allowed)
        return sparse_search(query.terms, query.weights, count, allowed, large=self.meta.large, every=every)

    def _failure(self, entry: Query) -> Exception:
        error, status = entry["error"], int(entry["status"])
        cause = (error.get("root_cause") or [error])[0] if isinstance(error, dict) else {"reason": error}
        reason = f"{cause.get('type')}: {cause.get('reason')}"
        message = f"The cluster {self.facts.address} answered {status} for {self.facts.index}: {reason:.300}"
        if "cancel" in reason:  # by `cancel_after_time_interval`
            return TimeoutError(message)
        return UnavailableError(message) if status in (404, 429) or status >= 500 else ClusterError(message)


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
        values: dict[int, Any] = {}
        for start in range(0, ordinals.size, MAX_FOUND):
            part = ordinals[start : start + MAX_FOUND]
            query = {"constant_score": {"filter": of_ordinals(part)}}
            hits = self._hits({"size": part.size, "query": query, "_source": [field], "docvalue_fields": ["ordinal"]})
            values |= {hit["fields"]["ordinal"][0]: hit["_source"].get(field) for hit in hits}
        if gone := [ordinal for ordinal in ordinals.tolist() if ordinal not in values]:
            raise DocumentsGoneError(gone)
        return [values[ordinal] for ordinal in ordinals.tolist()]

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
        features = sorted(read_features(self.sources(np.array([ordinal]), "impacts")[0]).items())
        return [term for term, _ in features], np.array([impact for _, impact in features], np.int32)

    def of(self, ordinals: Ordinals) -> DocumentFilter:
        """Return the query that documents (m,) match."""
        self._group.check(ordinals)
        return of_ordinals(ordinals)

    def counts(self, field: str, allowed: DocumentFilter | None) -> list[tuple[str, int]]:
        """Count the values of a keyword field in the documents `allowed`. TooManyValuesError for more than 10,000."""
        values = {"terms": {"field": filter_field(field), "size": MAX_COUNTED}}
        answer = self._group.ask_one({"size": 0, "query": matching(allowed), "aggs": {"values": values}})
        counted = answer["aggregations"]["values"]
        if counted["sum_other_doc_count"]:
            raise TooManyValuesError(field, MAX_COUNTED)
        counts = [(bucket["key"], bucket["doc_count"]) for bucket in counted["buckets"]]
        return sorted(counts, key=lambda pair: (-pair[1], pair[0]))

    def where(self, condition: Sequence[str]) -> DocumentFilter:
        """Return the query that documents of a condition match."""
        return filter_query(condition)

    def totals(self, chosen: Sequence[DocumentFilter | None], allowed: DocumentFilter | None = None) -> list[int]:
        """Return the number of documents in each set, of those `allowed`, all in one trip; None: all documents."""
        searches = [{"size": 0, "track_total_hits": True, "query": matching(part, allowed)} for part in chosen]
        answers = self._group.ask(("documents", search) for search in searches)
        return [int(result_of(answer)["hits"]["total"]["value"]) for answer in answers]

    def listed(
        self, allowed: DocumentFilter | None, order: Order | None, offset: int, count: int, seconds: float = inf
    ) -> Ordinals:
        """Return the documents (m,) from the one at `offset` on, up to `count`, in an order, or by ordinal. The trip
        ends by the time of `ClusterLegs.within`, so `seconds` ends nothing."""
        hits = self._hits(listing(allowed, order, offset, count))
        return np.array([hit["fields"]["ordinal"][0] for hit in hits], np.int64)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._group.close()

    def _hits(self, search: Query) -> list[Query]:
        hits: list[Query] = self._group.ask_one({**search, "track_total_hits": False})["hits"]["hits"]
        return hits


def result_of(outcome: T | Exception) -> T:
    """Return a result, or raise the exception in its place."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
