"""The search engine: encode, search both legs at once, fuse, fetch. Knows nothing of HTTP; use it in any process.

with SearchEngine.open(Bundle.open(path)) as engine:
    engine.search(SearchRequest(query="play music"))
"""

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

from artifacts.bundle import Bundle
from artifacts.lucene.search import ImpactIndex
from service.documents import Documents
from service.encoder import QueryEncoder
from service.errors import DeadlineError, DocumentNotFoundError, NotReadyError
from service.lanes import Lane, LateError
from service.legs import DenseLeg, SparseLeg
from service.limits import RequestLimits
from service.schemas import (
    Document,
    EncodeRequest,
    EncodeResponse,
    EncodeTimings,
    SearchRequest,
    SearchResponse,
    TokenCount,
)
from service.search import Parts, Plan, Search
from service.settings import Settings
from service.telemetry import Metrics, StageClock

__all__ = ["SearchEngine"]

_WARM_UP_DEADLINE_MS: Final = 10_000.0


class SearchEngine:
    """Searches one bundle. Any number of threads may use it at once."""

    def __init__(self, bundle: Bundle, settings: Settings, index: ImpactIndex) -> None:
        """Use `open` instead: it closes the index when another part can't be opened."""
        self.bundle = bundle
        self.settings = settings
        self.metrics = Metrics()
        self.parts = Parts(
            encoder=QueryEncoder(bundle.tokenizer(), {task: bundle.table(task) for task in bundle.manifest.tasks}),
            legs={"dense": DenseLeg(bundle.dense()), "sparse": SparseLeg(index)},
            documents=Documents(index),
            lanes={name: Lane(name, settings.search_threads) for name in ("dense", "sparse", "documents")},
        )
        self._index = index
        self._limits = RequestLimits(settings, tasks=bundle.manifest.tasks, fields=self.parts.documents.fields)
        self._warm = False
        self._closed = False
        self.metrics.describe(bundle.manifest)
        for name, lane in self.parts.lanes.items():
            self.metrics.abandoned.labels(name).set_function(partial(getattr, lane, "abandoned"))

    @classmethod
    def open(cls, bundle: Bundle, settings: Settings | None = None) -> Self:
        """Open all parts of a bundle. BundleError if one is damaged or doesn't fit, JavaError if Java can't start."""
        index = bundle.sparse()
        try:
            return cls(bundle, settings or Settings(), index)
        except BaseException:
            index.close()
            raise

    @property
    def fields(self) -> list[str]:
        """Names of the document fields that a request may ask for."""
        return self.parts.documents.fields

    def search(self, request: SearchRequest, *, arrived: float | None = None) -> SearchResponse:
        """Answer one search. `arrived` is the `perf_counter` time its deadline counts from, default now.

        InvalidRequestError for a request out of limits, NoTokensError and NoDirectionError for a query that can't be
        encoded, DeadlineError and SearchFailedError where there is no answer to give.
        """
        self._limits.check_search(request)
        return self._run([request], StageClock(arrived).arrived)[0]

    def search_batch(self, requests: Sequence[SearchRequest], *, arrived: float | None = None) -> list[SearchResponse]:
        """Answer several searches, in their order; the legs of all are set going first. Errors as in `search`.

        The batch is answered as a whole: an error of one search is the error of all.
        """
        self._limits.check_batch(requests)
        return self._run(requests, StageClock(arrived).arrived)

    def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Encode a text as a query. Errors as in `search`."""
        self._limits.check_encode(request)
        clock = StageClock()
        encoder = self.parts.encoder
        task = request.task or self.bundle.manifest.default_task
        query = encoder.encode(request.text, task, clock)
        dense = [] if query.dense is None else query.dense.tolist()
        tokens = [
            TokenCount(id=term, token=encoder.tokenizer.token(term), count=int(count))
            for term, count in zip(query.terms.tolist(), query.counts.tolist(), strict=True)
        ]
        timings = EncodeTimings(**clock.milliseconds())
        return EncodeResponse(task=task, dimension=len(dense), dense=dense, tokens=tokens, timings_ms=timings)

    def document(self, document_id: str) -> Document:
        """Read a document. DocumentNotFoundError, DeadlineError, SearchFailedError."""
        clock = StageClock()
        self._require_open()
        try:
            call = self.parts.lanes["documents"].call(self.parts.documents.get, document_id)
            fields, _ = call.result(clock.arrived + self.settings.deadline_ms / 1e3)
        except LateError as error:
            raise DeadlineError(f"The document was not read within {self.settings.deadline_ms:g} ms.") from error
        if fields is None:
            raise DocumentNotFoundError(f"No document has the id {document_id[:100]!r}.")
        return Document(id=document_id, fields=fields)

    def warm_up(self) -> None:
        """Search with words of the documents until the JVM is fast; the engine is ready when both legs answered.

        A second time does nothing. SearchFailedError or DeadlineError if a leg did not answer one of these searches.
        """
        self._require_open()
        if self._warm:
            return
        task = self.bundle.manifest.default_task
        probes = self.parts.documents.probes(self.settings.warm_up_queries) or [self.bundle.manifest.name]
        for number in range(self.settings.warm_up_queries):
            self._require_open()
            request = SearchRequest(query=probes[number % len(probes)], allow_partial=False, k=1)
            plan = Plan(request, task, self.settings.candidates, _WARM_UP_DEADLINE_MS)
            Search(self.parts, plan, StageClock()).begin().finish()
        self._warm = True
        self.metrics.ready.set(1)

    def require_ready(self) -> None:
        """Raise NotReadyError unless the engine is warm, open, and no lane is stuck."""
        self._require_open()
        if not self._warm:
            raise NotReadyError("The service warms up. Try again in a moment.")
        stuck = [name for name, lane in self.parts.lanes.items() if lane.stuck]
        if stuck:
            raise NotReadyError(f"All threads are held by calls that don't end, in: {', '.join(stuck)}.")

    def close(self) -> None:
        """End the threads and close the index; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self.metrics.ready.set(0)
        for lane in self.parts.lanes.values():
            lane.close()
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, requests: Sequence[SearchRequest], arrived: float) -> list[SearchResponse]:
        self._require_open()
        searches = [Search(self.parts, self._plan(request), StageClock(arrived)).begin() for request in requests]
        return [self._finish(search) for search in searches]

    def _finish(self, search: Search) -> SearchResponse:
        try:
            return search.finish()
        finally:
            self.metrics.observe(search.clock)
            for leg, reason in search.missing.items():
                self.metrics.degraded.labels(leg, reason).inc()

    def _plan(self, request: SearchRequest) -> Plan:
        return Plan(
            request,
            task=self.bundle.manifest.default_task if request.task is None else request.task,
            candidates=self.settings.candidates if request.candidates is None else request.candidates,
            deadline_ms=self.settings.deadline_ms if request.deadline_ms is None else request.deadline_ms,
        )

    def _require_open(self) -> None:
        if self._closed:
            raise NotReadyError("The engine is closed.")
