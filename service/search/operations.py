"""What an engine can be asked for. Each operation runs in the thread that calls it, and ends with its deadline."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.service.errors import DeadlineError, DocumentNotFoundError, SearchFailedError, ServiceError
from lightretriever.service.observability.metrics import Mark, Metrics, StageClock
from lightretriever.service.schemas import (
    Document,
    DocumentTerms,
    EncodeRequest,
    EncodeResponse,
    EncodeTimings,
    SearchRequest,
    TokenCount,
)
from lightretriever.service.search.documents import list_terms
from lightretriever.service.search.filters import read_filter
from lightretriever.service.search.hits import Plain
from lightretriever.service.search.pipeline import Search
from lightretriever.service.search.plan import Parts, Plan, fusion_weights, modes_of
from lightretriever.service.search.request import RequestLimits
from lightretriever.service.settings import Settings

__all__ = ["Operations"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Operations:
    """Every kind of request.

    `arrived` is the `perf_counter` time in seconds that a deadline counts from, default now; `marks` gets the times of
    the stages. Errors are those of `SearchEngine`.
    """

    def __init__(self, manifest: Manifest, settings: Settings, parts: Parts, metrics: Metrics) -> None:
        self._manifest = manifest
        self._settings = settings
        self._parts = parts
        self._metrics = metrics
        self.fusion_weights = fusion_weights(manifest)
        """Weights of a linear fusion that names none."""
        self._limits = RequestLimits(
            settings,
            tasks=manifest.tasks,
            fields=parts.documents.fields,
            filters=manifest.fields,
            modes=modes_of(manifest),
        )

    def search(self, request: SearchRequest, *, arrived: float | None = None, marks: list[Mark] | None = None) -> Plain:
        """Answer one search, with what `SearchResponse` describes."""
        self._limits.check_search(request)
        return self._search(request, arrived, marks)

    def batch(
        self, requests: Sequence[SearchRequest], *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> list[Callable[[], Plain]]:
        """Check several searches, and give for each the function that answers it as `search` does.

        An error says which search it is of. When a search failed, those behind it don't begin any more: the batch is
        answered as a whole, with the first error.
        """
        self._limits.check_batch(requests)
        since = perf_counter() if arrived is None else arrived
        failed: list[int] = []
        return [
            partial(self._of_batch, number, failed, request, since, marks) for number, request in enumerate(requests)
        ]

    def encode(
        self, request: EncodeRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> EncodeResponse:
        """Encode a text as a query."""
        self._limits.check_encode(request)
        clock = StageClock(arrived, marks)
        self._require_time(clock)
        encoder = self._parts.encoder
        task = request.task or self._manifest.default_task
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
        """Read a document."""
        fields = self._read(self._parts.documents.get, document_id, StageClock(arrived, marks))
        return Document(id=document_id, fields=fields)

    def terms(
        self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> DocumentTerms:
        """Read the terms of a document, by descending impact."""
        impacts, fields = self._read(self._parts.documents.terms, document_id, StageClock(arrived, marks))
        return list_terms(document_id, impacts, fields, self._parts.encoder.tokenizer)

    def probe(self, request: SearchRequest, deadline_ms: float) -> Plain:
        """Answer a search without limits or metrics."""
        task, weights = self._manifest.default_task, self.fusion_weights
        plan = Plan(request, task, weights, self._settings.candidates, deadline_ms, condition=None)
        return Search(self._parts, plan, StageClock()).run()

    def _search(self, request: SearchRequest, arrived: float | None, marks: list[Mark] | None) -> Plain:
        search = Search(self._parts, self._plan(request), StageClock(arrived, marks))
        try:
            answer = search.run()
            for leg, reason in search.missing.items():
                self._metrics.degraded.labels(leg, reason).inc()
            return answer
        finally:
            self._metrics.observe(search.clock)
            for leg, reason in search.unscored.items():
                self._metrics.unscored.labels(leg, reason).inc()
                about = {"leg": leg, "backend": self._parts.legs[leg].backend, "reason": reason}
                _log.warning("candidates not scored", extra=about)

    def _of_batch(
        self, number: int, failed: list[int], request: SearchRequest, arrived: float, marks: list[Mark] | None
    ) -> Plain:
        if any(earlier < number for earlier in failed):
            raise SearchFailedError(f"searches.{number}: an earlier search of the batch failed.")
        try:
            return self._search(request, arrived, marks)
        except BaseException as error:
            failed.append(number)
            if isinstance(error, ServiceError):
                raise error.within(f"searches.{number}") from error
            raise

    def _plan(self, request: SearchRequest) -> Plan:
        settings, manifest = self._settings, self._manifest
        return Plan(
            request,
            task=manifest.default_task if request.task is None else request.task,
            weights=request.fusion.weights or self.fusion_weights,
            condition=None if request.filter is None else read_filter(request.filter, manifest.fields)[0],
            candidates=settings.candidates if request.candidates is None else request.candidates,
            deadline_ms=settings.deadline_ms if request.deadline_ms is None else request.deadline_ms,
        )

    def _read(self, read: Callable[[str], T | None], document_id: str, clock: StageClock) -> T:
        """Read something of a document. DocumentNotFoundError, DeadlineError, SearchFailedError."""
        self._require_time(clock)
        with clock.measure("fetch"):
            found = read(document_id)
        if found is None:
            raise DocumentNotFoundError(f"No document has the id {document_id[:100]!r}.")
        return found

    def _require_time(self, clock: StageClock) -> None:
        if perf_counter() >= clock.arrived + self._settings.deadline_ms / 1e3:
            raise DeadlineError(f"The turn of the request did not come within {self._settings.deadline_ms:g} ms.")
