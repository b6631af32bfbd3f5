"""The legs and the documents on an OpenSearch cluster, in an index that `lightretriever push` wrote.

An engine searches one index by its own name, never by the alias, so that all of an answer comes from the same documents
while the alias is switched. `EngineHolder` then opens another engine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster import schema
from lightretriever.artifacts.cluster.client import Cluster, ClusterAddress, connect, indexes_of, only_index, read_meta
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.schema import FIRST_LIVE, MAX_FOUND, IndexMeta, Query, filter_field, read_features
from lightretriever.artifacts.documents.bounds import MAX_COUNTED
from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.dtypes import Float32Array, Int32Array
from lightretriever.artifacts.errors import BundleError, ClusterError, ClusterTimeoutError, TooManyValuesError
from lightretriever.artifacts.sparse.jvm import SEARCH_HEAP_MB, start_jvm
from lightretriever.service.backends.base import (
    Backends,
    DocumentFilter,
    DocumentsGoneError,
    EncodedQuery,
    LegNames,
    LegResults,
    Ordinals,
    ScoredDocuments,
    Scores,
    UnavailableError,
)
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.executor import Outcome, call_here
from lightretriever.service.schemas import ClusterFacts, LegName
from lightretriever.service.settings import Settings

T = TypeVar("T")
_NAME: Final = "opensearch"
_OPEN_S: Final = 10.0
_PROBE_S: Final = 0.5  # time for a probe
_BETWEEN_PROBES_S: Final = 1.0
_MAX_NAMED: Final = 10  # documents, as in Java's DocumentFilter
_DEADLINE: Final = ContextVar[float]("deadline", default=inf)


class ClusterBackends(Backends):
    """One index of a cluster. All legs are asked in one trip."""

    name = _NAME
    documents: "ClusterDocuments"
    cluster: ClusterFacts

    def __init__(
        self, cluster: Cluster, meta: IndexMeta, facts: ClusterFacts, legs: LegNames, timeout_s: float
    ) -> None:
        """`timeout_s` is the time for a trip without a deadline. `close` closes the connections."""
        self.meta, self.cluster = meta, facts
        self.live = LiveIndex(cluster, facts.alias, facts.index, meta)
        self.documents = ClusterDocuments(self)
        self.legs = dict.fromkeys(legs, _NAME)
        self._connections, self._timeout_s = cluster, timeout_s
        self._problem: str | None = None
        self._probed = -_BETWEEN_PROBES_S

    def search(
        self, query: EncodedQuery, legs: LegNames, count: int, allowed: DocumentFilter | None, deadline: float
    ) -> LegResults:
        """Search these legs, as `Backends.search`."""
        searches = [self._asked(name, query, count, allowed) for name in legs]
        for condition in query.named:
            matching = schema.matching(schema.filter_query(condition), allowed)
            searches.append(schema.listing(matching, None, 0, _MAX_NAMED + 1))
        trip = call_here(partial(self.ask, searches, deadline), deadline)
        if trip.value is None:
            return LegResults({name: Outcome(reason=trip.reason, error=trip.error) for name in legs}, query)
        outcomes, named = dict[LegName, Outcome[ScoredDocuments]](), list[int]()
        for name, answer in zip([*legs, *query.named], trip.value, strict=True):
            if not isinstance(name, tuple):
                outcome = call_here(partial(_found, name, answer), inf)
                outcomes[name] = replace(outcome, started=trip.started, ended=trip.ended)
            elif not isinstance(answer, Exception) and len(hits := answer["hits"]["hits"]) <= _MAX_NAMED:
                named += [hit["fields"]["ordinal"][0] for hit in hits]
        return LegResults(outcomes, query, named=np.array(list(dict.fromkeys(named)), np.int64))

    def _asked(self, leg: LegName, query: EncodedQuery, count: int, allowed: DocumentFilter | None) -> Query:
        if leg == "dense":
            return schema.dense_search(query.vector, count, allowed)
        return schema.sparse_search(query.terms, query.weights, count, allowed, large=self.meta.large)

    def scores(self, vector: Float32Array, ordinals: Ordinals) -> Scores:
        """Return the dense scores of given documents. DocumentsGoneError for a deleted one."""
        self.check(ordinals)
        search = schema.dense_search(vector, max(1, ordinals.size), schema.of_ordinals(ordinals))
        hits = schema.read_hits("dense", self.ask_one(search))
        return np.array(_each(ordinals, dict(zip(*(part.tolist() for part in hits), strict=True))), np.float32)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> Float32Array:
        """Return each term's share of the sparse scores of given documents. DocumentsGoneError for a deleted one."""
        features = [read_features(source) for source in self.documents.sources(ordinals, "impacts")]
        impacts = [[row.get(term, 0) for term in query.terms] for row in features]
        rows = np.array(impacts, np.int32).reshape(ordinals.size, len(query.terms))
        shares: Float32Array = (rows * query.weights).astype(np.float32)
        return shares

    def vectors(self, ordinals: Ordinals) -> Float32Array:
        """Return the vectors of documents (m, D), as the bundle has them."""
        rows = np.array(self.documents.sources(ordinals, "vector"), np.float32)
        return rows.reshape(-1, self.meta.dimension or 1)

    def ask_one(self, search: Query) -> Query:
        """Send one search, and give its answer."""
        return result_of(self.ask([search])[0])

    def ask(self, searches: Iterable[Query], deadline: float = inf) -> list[Query | Exception]:
        """Send searches in one trip. Return each one's answer or exception; raise the first if all fail."""
        deadline = min(deadline, _DEADLINE.get())
        left = self._timeout_s if deadline == inf else deadline - perf_counter()
        if left <= 0:
            raise TimeoutError("There was no time left to ask the cluster.")
        # Partial results would lack a lost shard without an error.
        header = {"index": self.cluster.index, "allow_partial_search_results": False}
        body = [line for search in searches for line in (header, search)]
        params = {"cancel_after_time_interval": f"{max(1, round(left * 1e3))}ms"}
        try:
            with self._connections.translated():
                answer = self._connections.client.msearch(body=body, params=params, request_timeout=left)
        except ClusterTimeoutError as error:  # its deadline may have been short, so this is no problem of the cluster's
            raise TimeoutError(str(error)) from error
        except ClusterError as error:
            self._problem = str(error)
            raise UnavailableError(str(error)) from error
        answers = [self._failure(entry) if "error" in entry else entry for entry in answer["responses"]]
        failed = [failure for failure in answers if isinstance(failure, Exception)]
        lost = [failure for failure in failed if isinstance(failure, UnavailableError)]
        self._problem = str(lost[0]) if len(lost) == len(answers) else None
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
    def problem(self) -> str | None:
        """Why the cluster did not answer the last trip, or what of the index was lost at the last search."""
        return self._problem

    def probe(self) -> str | None:
        """Search for nothing, unless another probe has begun within the last second, and return the `problem`."""
        now = perf_counter()
        if now >= self._probed + _BETWEEN_PROBES_S:
            self._probed = now
            with suppress(ClusterError, UnavailableError, TimeoutError):  # it is a problem then, or only late
                self.ask([{"size": 0, "track_total_hits": False}], now + _PROBE_S)
        return self.problem

    def present_index(self) -> str:
        """Name the index that the alias stands for now; the one that is searched if the cluster can't be asked, or if
        the alias does not stand for one index."""
        try:
            indexes = indexes_of(self._connections, self.cluster.alias)
        except ClusterError as error:
            self._problem = str(error)
            return self.cluster.index
        return indexes[0] if len(indexes) == 1 else self.cluster.index

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._connections.close()

    def _failure(self, entry: Query) -> Exception:
        error, status = entry["error"], int(entry["status"])
        cause = (error.get("root_cause") or [error])[0] if isinstance(error, dict) else {"reason": error}
        reason = f"{cause.get('type')}: {cause.get('reason')}"
        message = f"The cluster {self.cluster.address} answered {status} for {self.cluster.index}: {reason:.300}"
        if "cancel" in reason:  # by `cancel_after_time_interval`
            return TimeoutError(message)
        return UnavailableError(message) if status in (404, 429) or status >= 500 else ClusterError(message)


class ClusterDocuments:
    """The documents of one index, with what searches ask of an `ImpactIndex`."""

    def __init__(self, backends: ClusterBackends) -> None:
        self.count = backends.meta.documents
        self._backends = backends

    def spread(self, count: int) -> Ordinals:
        """Return the ordinals of up to `count` documents of the bundle from all over it, ascending."""
        return np.linspace(0, self.count - 1, min(count, self.count)).astype(np.int64)

    def documents(self, ordinals: Ordinals) -> list[bytes]:
        """Return the JSON of documents (m,). ValueError for an unknown ordinal."""
        return [raw.encode() for raw in self.sources(ordinals, "raw")]

    def sources(self, ordinals: Ordinals, field: str) -> list[Any]:
        """Return a field of documents (m,), in the order given. ValueError for an unknown ordinal, DocumentsGoneError
        if some were deleted."""
        self._backends.check(ordinals)
        values: dict[int, Any] = {}
        for start in range(0, ordinals.size, MAX_FOUND):
            part = ordinals[start : start + MAX_FOUND]
            query = {"constant_score": {"filter": schema.of_ordinals(part)}}
            hits = self._hits({"size": part.size, "query": query, "_source": [field], "docvalue_fields": ["ordinal"]})
            values |= {hit["fields"]["ordinal"][0]: hit["_source"].get(field) for hit in hits}
        return _each(ordinals, values)

    def ordinal(self, document_id: str) -> int | None:
        """Return the ordinal of the document with this id, None if there is none."""
        try:
            document_id.encode()
        except UnicodeEncodeError:
            return None  # an id that is no Unicode text can't have been indexed
        query = {"ids": {"values": [document_id]}}
        hits = self._hits({"size": 1, "query": query, "_source": False, "docvalue_fields": ["ordinal"]})
        return int(hits[0]["fields"]["ordinal"][0]) if hits else None

    def terms(self, ordinal: int) -> tuple[list[str], Int32Array]:
        """Return all terms (n,) of a document, in order, and their impacts (n,) int32."""
        features = sorted(read_features(self.sources(np.array([ordinal]), "impacts")[0]).items())
        return [term for term, _ in features], np.array([impact for _, impact in features], np.int32)

    def of(self, ordinals: Ordinals) -> DocumentFilter:
        """Return the query that documents (m,) match."""
        self._backends.check(ordinals)
        return schema.of_ordinals(ordinals)

    def counts(self, field: str, allowed: DocumentFilter | None) -> list[tuple[str, int]]:
        """Count the values of a keyword field in the documents `allowed`. TooManyValuesError for more than 10,000."""
        values = {"terms": {"field": filter_field(field), "size": MAX_COUNTED}}
        answer = self._backends.ask_one({"size": 0, "query": schema.matching(allowed), "aggs": {"values": values}})
        counted = answer["aggregations"]["values"]
        if counted["sum_other_doc_count"]:
            raise TooManyValuesError(field, MAX_COUNTED)
        counts = [(bucket["key"], bucket["doc_count"]) for bucket in counted["buckets"]]
        return sorted(counts, key=lambda pair: (-pair[1], pair[0]))

    def where(self, condition: Sequence[str]) -> DocumentFilter:
        """Return the query that documents of a condition match."""
        return schema.filter_query(condition)

    def totals(self, chosen: Sequence[DocumentFilter | None], allowed: DocumentFilter | None = None) -> list[int]:
        """Return the number of documents in each set, of those `allowed`, all in one trip; None: all documents."""
        searches = [{"size": 0, "track_total_hits": True, "query": schema.matching(part, allowed)} for part in chosen]
        answers = self._backends.ask(searches)
        return [int(result_of(answer)["hits"]["total"]["value"]) for answer in answers]

    def listed(
        self, allowed: DocumentFilter | None, order: Order | None, offset: int, count: int, seconds: float = inf
    ) -> Ordinals:
        """Return the documents (m,) from the one at `offset` on, up to `count`, in an order, or by ordinal. The trip
        ends by the time of `ClusterBackends.within`, so `seconds` ends nothing."""
        hits = self._hits(schema.listing(allowed, order, offset, count))
        return np.array([hit["fields"]["ordinal"][0] for hit in hits], np.int64)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._backends.close()

    def _hits(self, search: Query) -> list[Query]:
        hits: list[Query] = self._backends.ask_one({**search, "track_total_hits": False})["hits"]["hits"]
        return hits


def result_of(outcome: T | Exception) -> T:
    """Return a result, or raise the exception in its place."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _found(name: LegName, answer: Query | Exception) -> ScoredDocuments:
    return ScoredDocuments(*schema.read_hits(name, result_of(answer)))


def _each(ordinals: Ordinals, values: Mapping[int, T]) -> list[T]:
    """Return the value of each document. DocumentsGoneError for those that have none."""
    if gone := [ordinal for ordinal in ordinals.tolist() if ordinal not in values]:
        raise DocumentsGoneError(gone)
    return [values[ordinal] for ordinal in ordinals.tolist()]


def open_cluster(bundle: Bundle, settings: Settings) -> ClusterBackends:
    """Open the index that the settings name. ClusterError if it can't be used, BundleError if it has another bundle,
    SettingsError if a cluster can't find `max_candidates`."""
    if settings.max_candidates > MAX_FOUND:
        raise SettingsError(
            f"Setting 'max_candidates' is {settings.max_candidates}; a cluster finds at most {MAX_FOUND}.",
            remedy="Lower max_candidates.",
        )
    alias = settings.opensearch_index or ""
    address = ClusterAddress(
        settings.opensearch_url or "",
        settings.opensearch_user,
        settings.opensearch_password,
        settings.opensearch_api_key,
        settings.opensearch_ca_file,
    )
    deadline_s = settings.deadline_ms / 1e3
    cluster = connect(
        address, timeout_s=_OPEN_S, connections=settings.threads(), patience_s=min(_OPEN_S, deadline_s / 2)
    )
    try:
        index = only_index(cluster, alias)
        meta = read_meta(cluster, index)
        manifest = bundle.manifest
        if meta.version != manifest.digest:
            raise BundleError(
                f"{alias} is {index}, which has version {meta.version[:12]} of {meta.bundle!r}; {bundle.path} is "
                f"version {manifest.digest[:12]} of {manifest.name!r}.",
                remedy="Push this bundle, or serve the one that the index was written from.",
            )
        if meta.vocabulary != "tokens":
            start_jvm(SEARCH_HEAP_MB)  # splits queries into words
    except BaseException:
        cluster.close()
        raise
    names: list[LegName] = ["sparse"] if manifest.dense is None else ["dense", "sparse"]
    version = ".".join(map(str, cluster.version))
    facts = ClusterFacts(address=cluster.name, version=version, alias=alias, index=index, engine=meta.engine)
    return ClusterBackends(cluster, meta, facts, names, deadline_s)
