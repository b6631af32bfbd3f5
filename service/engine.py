"""The search engine: encode, search both legs at once, fuse, fetch. Knows nothing of HTTP; use it in any process.

with SearchEngine.open(Bundle.open(path)) as engine:
    engine.search(SearchRequest(query="play music"))
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from time import perf_counter
from types import TracebackType
from typing import Final, Self, TypeVar

from artifacts.bundle import Bundle
from service.errors import DeadlineError, NotReadyError, ServiceError
from service.filters import read_filter
from service.limits import RequestLimits
from service.memory import give_back
from service.plan import Parts, Plan, fusion_weights, modes_of
from service.reading import list_terms, read_one
from service.schemas import (
    Document,
    DocumentTerms,
    EncodeRequest,
    EncodeResponse,
    EncodeTimings,
    Mode,
    SearchRequest,
    SearchResponse,
    TokenCount,
)
from service.search import Search
from service.settings import Settings
from service.telemetry import Mark, Metrics, StageClock

__all__ = ["SearchEngine"]

_log = logging.getLogger(__name__)
_WARM_UP_DEADLINE_MS: Final = 5_000.0
_BM25_EVERY: Final = 10  # searches of the warm-up
_PROBES: Final = 500  # different searches of the warm-up
T = TypeVar("T")


class SearchEngine:
    """Searches one bundle. Any number of threads may use it at once."""

    def __init__(self, bundle: Bundle, settings: Settings, parts: Parts, metrics: Metrics | None = None) -> None:
        """Use `open` instead, which opens the parts. They are the engine's from now on."""
        self.bundle = bundle
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.parts = parts
        self.modes = modes_of(bundle.manifest)
        """Modes in which the bundle can be searched."""
        self.fusion_weights = fusion_weights(bundle.manifest)
        """Weights of a linear fusion that names none."""
        self._limits = RequestLimits(
            settings,
            tasks=bundle.manifest.tasks,
            fields=self.parts.documents.fields,
            filters=bundle.manifest.fields,
            modes=self.modes,
        )
        self._warm = False
        self._closed = False
        if metrics is None:
            self.publish()

    @classmethod
    def open(cls, bundle: Bundle, settings: Settings | None = None, metrics: Metrics | None = None) -> Self:
        """Open all parts of a bundle. BundleError if one is damaged or doesn't fit, JavaError if Java can't start.

        `metrics` are those of the process, which tell of this engine from `publish` on; None: of its own, at once.
        """
        settings = settings or Settings()
        parts = Parts.open(bundle, settings)
        try:
            return cls(bundle, settings, parts, metrics)
        except BaseException:
            parts.close()
            raise

    @property
    def fields(self) -> list[str]:
        """Names of the document fields that a request may ask for."""
        return self.parts.documents.fields

    def publish(self) -> None:
        """Let the metrics tell the state of this engine."""
        lanes = self.parts.lanes.items()
        abandoned = {name: partial(getattr, lane, "abandoned") for name, lane in lanes}
        self.metrics.describe(self.bundle.manifest, self._ready, abandoned)

    def search(
        self, request: SearchRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> SearchResponse:
        """Answer one search. `arrived` is the `perf_counter` time its deadline counts from, default now; `marks` gets
        the times of its stages.

        InvalidRequestError for a request out of limits, NoTokensError and NoDirectionError for a query that can't be
        encoded, DeadlineError and SearchFailedError where there is no answer to give.
        """
        self._limits.check_search(request)
        return self._run([request], arrived, marks)[0]

    def search_batch(
        self,
        requests: Sequence[SearchRequest],
        *,
        arrived: float | None = None,
        marks: list[Mark] | None = None,
    ) -> list[SearchResponse]:
        """Answer several searches, in their order; the legs of all are set going first. Errors as in `search`.

        The batch is answered as a whole: an error of one search, which it names, is the error of all.
        """
        self._limits.check_batch(requests)
        return self._run(requests, arrived, marks, batch=True)

    def encode(
        self, request: EncodeRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> EncodeResponse:
        """Encode a text as a query. Errors as in `search`."""
        self._limits.check_encode(request)
        clock = StageClock(arrived, marks)
        self._require_time(clock)
        encoder = self.parts.encoder
        task = request.task or self.bundle.manifest.default_task
        query = encoder.encode(request.text, task, clock, field="text")
        dense = [] if query.dense is None else query.dense.tolist()
        tokens = [
            TokenCount(id=term, token=encoder.tokenizer.token(term), count=count, weight=weight)
            for term, count, weight in zip(
                query.terms.tolist(), query.counts.tolist(), query.weights.tolist(), strict=True
            )
        ]
        timings = EncodeTimings(**clock.milliseconds())
        return EncodeResponse(task=task, dimension=len(dense), dense=dense, tokens=tokens, timings_ms=timings)

    def document(self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None) -> Document:
        """Read a document. DocumentNotFoundError, DeadlineError, SearchFailedError."""
        fields = self._read(self.parts.documents.get, document_id, StageClock(arrived, marks))
        return Document(id=document_id, fields=fields)

    def terms(
        self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> DocumentTerms:
        """Give what the sparse side has of a document, by descending impact. Errors as in `document`."""
        impacts, fields = self._read(self.parts.documents.terms, document_id, StageClock(arrived, marks))
        return list_terms(document_id, impacts, fields, self.parts.encoder.tokenizer)

    def warm_up(self, stop: Event | None = None, share: float = 1.0) -> None:
        """Search with words of the documents, sometimes by BM25 if there is, until the JVM is fast; the engine is ready
        when the legs answered.

        Ends after `warm_up_queries` searches or `warm_up_s` seconds, whichever comes first, and searches for no more
        than a `share` of the time; when `stop` is set it ends at once, and the engine is not ready. A second time does
        nothing. SearchFailedError or DeadlineError if a leg did not answer one of these searches.
        """
        self._require_open()
        if self._warm:
            return
        task = self.bundle.manifest.default_task
        probes = self.parts.documents.probes(_PROBES) or [self.bundle.manifest.name]
        until = perf_counter() + self.settings.warm_up_s
        stop = stop or Event()
        for number in range(self.settings.warm_up_queries):
            if stop.is_set():
                return
            begun = perf_counter()
            if number and begun >= until:
                break
            self._require_open()
            mode: Mode = "bm25" if number % _BM25_EVERY == 1 and "bm25" in self.modes else "hybrid"
            request = SearchRequest(query=probes[number % len(probes)], mode=mode, allow_partial=False, k=1)
            plan = Plan(request, task, self.fusion_weights, self.settings.candidates, _WARM_UP_DEADLINE_MS, None)
            search = Search(self.parts, plan, StageClock())
            try:
                search.begin().finish()
            finally:
                search.cancel()
            if share < 1.0:
                stop.wait((perf_counter() - begun) * (1.0 / share - 1.0))
        give_back()
        self._warm = not stop.is_set()

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
        self.parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        requests: Sequence[SearchRequest],
        arrived: float | None,
        marks: list[Mark] | None,
        *,
        batch: bool = False,
    ) -> list[SearchResponse]:
        self._require_open()
        since = StageClock(arrived).arrived
        searches = [Search(self.parts, self._plan(request), StageClock(since, marks)) for request in requests]
        try:
            for number, search in enumerate(searches):
                with _naming(number, batch):
                    search.begin()
            answers = []
            for number, search in enumerate(searches):
                with _naming(number, batch):
                    answers.append(search.finish())
            for search in searches:
                for leg, reason in search.missing.items():
                    self.metrics.degraded.labels(leg, reason).inc()
            return answers
        finally:
            for search in searches:
                search.cancel()
                self._observe(search)

    def _observe(self, search: Search) -> None:
        self.metrics.observe(search.clock)
        for leg, reason in search.unscored.items():
            self.metrics.unscored.labels(leg, reason).inc()
            _log.warning("candidates not scored", extra={"leg": leg, "reason": reason})

    def _plan(self, request: SearchRequest) -> Plan:
        return Plan(
            request,
            task=self.bundle.manifest.default_task if request.task is None else request.task,
            weights=request.fusion.weights or self.fusion_weights,
            condition=None if request.filter is None else read_filter(request.filter, self.bundle.manifest.fields)[0],
            candidates=self.settings.candidates if request.candidates is None else request.candidates,
            deadline_ms=self.settings.deadline_ms if request.deadline_ms is None else request.deadline_ms,
        )

    def _read(self, read: Callable[[str], T | None], document_id: str, clock: StageClock) -> T:
        self._require_open()
        self._require_time(clock)
        return read_one(self.parts.lanes["documents"], read, document_id, clock, self._until(clock))

    def _until(self, clock: StageClock) -> float:
        return clock.arrived + self.settings.deadline_ms / 1e3

    def _require_time(self, clock: StageClock) -> None:
        if perf_counter() >= self._until(clock):
            raise DeadlineError(f"The turn of the request did not come within {self.settings.deadline_ms:g} ms.")

    def _ready(self) -> float:
        try:
            self.require_ready()
        except NotReadyError:
            return 0.0
        return 1.0

    def _require_open(self) -> None:
        if self._closed:
            raise NotReadyError("The engine is closed.")


@contextmanager
def _naming(number: int, batch: bool) -> Iterator[None]:
    """Let an error of one search of a batch say which one it is."""
    try:
        yield
    except ServiceError as error:
        if batch:
            raise error.within(f"searches.{number}") from error
        raise
