"""What an engine can be asked for, as the steps of jobs (see `service.execution.jobs`)."""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.service.errors import DeadlineError, ServiceError
from lightretriever.service.execution.jobs import Steps
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
from lightretriever.service.search.filters import read_filter
from lightretriever.service.search.hits import Plain
from lightretriever.service.search.lookup import list_terms, read_one
from lightretriever.service.search.pipeline import Search
from lightretriever.service.search.plan import Parts, Plan, fusion_weights, modes_of
from lightretriever.service.search.request import RequestLimits
from lightretriever.service.settings import Settings

__all__ = ["Errands"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Errands:
    """The steps of every kind of request. `arrived` is the `perf_counter` time that a deadline counts from, default the
    first step's; `marks` gets the times of the stages. Errors are those of `SearchEngine`, and come with the steps."""

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

    def search(
        self, request: SearchRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> Steps[Plain]:
        """Answer one search, with what `SearchResponse` describes."""
        self._limits.check_search(request)
        return (yield from self._search(request, arrived, marks))

    def search_batch(
        self, requests: Sequence[SearchRequest], *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> list[Steps[Plain]]:
        """Answer several searches, as `search` does, a job each, with errors that say which one it was.
        InvalidRequestError at once."""
        self._limits.check_batch(requests)
        since = perf_counter() if arrived is None else arrived
        return [_of_batch(number, self._search(request, since, marks)) for number, request in enumerate(requests)]

    def encode(
        self, request: EncodeRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> Steps[EncodeResponse]:
        """Encode a text as a query."""
        yield from ()  # no call is needed
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

    def document(
        self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> Steps[Document]:
        """Read a document."""
        clock = StageClock(arrived, marks)
        fields = yield from self._read(self._parts.documents.get, document_id, clock)
        return Document(id=document_id, fields=fields)

    def terms(
        self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> Steps[DocumentTerms]:
        """Read the terms of a document, by descending impact."""
        clock = StageClock(arrived, marks)
        impacts, fields = yield from self._read(self._parts.documents.terms, document_id, clock)
        return list_terms(document_id, impacts, fields, self._parts.encoder.tokenizer)

    def probe(self, request: SearchRequest, deadline_ms: float) -> Steps[Plain]:
        """Answer a search without limits or metrics."""
        plan = Plan(
            request,
            self._manifest.default_task,
            self.fusion_weights,
            self._settings.candidates,
            deadline_ms,
            condition=None,
        )
        return Search(self._parts, plan, StageClock()).steps()

    def _search(self, request: SearchRequest, arrived: float | None, marks: list[Mark] | None) -> Steps[Plain]:
        search = Search(self._parts, self._plan(request), StageClock(arrived, marks))
        try:
            answer = yield from search.steps()
            for leg, reason in search.missing.items():
                self._metrics.degraded.labels(leg, reason).inc()
            return answer
        finally:
            self._metrics.observe(search.clock)
            for leg, reason in search.unscored.items():
                self._metrics.unscored.labels(leg, reason).inc()
                _log.warning("candidates not scored", extra={"leg": leg, "reason": reason})

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

    def _read(self, read: Callable[[str], T | None], document_id: str, clock: StageClock) -> Steps[T]:
        self._require_time(clock)
        return read_one(self._parts.lanes["documents"], read, document_id, clock, self._until(clock))

    def _until(self, clock: StageClock) -> float:
        return clock.arrived + self._settings.deadline_ms / 1e3

    def _require_time(self, clock: StageClock) -> None:
        if perf_counter() >= self._until(clock):
            raise DeadlineError(f"The turn of the request did not come within {self._settings.deadline_ms:g} ms.")


def _of_batch(number: int, steps: Steps[T]) -> Steps[T]:
    try:
        return (yield from steps)
    except ServiceError as error:
        raise error.within(f"searches.{number}") from error
