"""Time per stage and counters. One clock per request feeds both the answer's timings and the metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from artifacts.manifest import Manifest

__all__ = ["Metrics", "Stage", "StageClock"]

Stage = Literal["tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"]

# 10 µs to 10 s: the query encoder takes microseconds, a deadline may be seconds.
_BUCKETS = (*(step * scale for scale in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0) for step in (1.0, 2.5, 5.0)), 10.0)


class StageClock:
    """How long the stages of one request took. `arrived` is a `perf_counter` time in seconds, default now."""

    def __init__(self, arrived: float | None = None) -> None:
        self.arrived = perf_counter() if arrived is None else arrived
        self.seconds: dict[Stage, float] = {}

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[None]:
        """Add the time the block takes to the stage, unless it raises."""
        started = perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - started

    def add(self, stage: Stage, started: float) -> float:
        """Add the time since `started`, a `perf_counter` time; give the time now. Cheaper than `measure`."""
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - started
        return now

    def total(self) -> float:
        """Seconds since the arrival."""
        return perf_counter() - self.arrived

    def milliseconds(self) -> dict[str, float]:
        """Every recorded stage and the total so far, rounded to 0.1 µs."""
        stages: dict[str, float] = {stage: round(seconds * 1e3, 4) for stage, seconds in self.seconds.items()}
        return stages | {"total": round(self.total() * 1e3, 4)}


class Metrics:
    """The Prometheus metrics of a process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._bundle = Info("lightretriever_bundle", "The bundle that is served.", registry=self.registry)
        self._documents = Gauge("lightretriever_documents", "Documents in the bundle.", registry=self.registry)
        self.ready = Gauge("lightretriever_ready", "1 while /readyz says 200, else 0.", registry=self.registry)
        self.in_flight = Gauge(
            "lightretriever_requests_in_flight", "Requests being worked on or waiting.", registry=self.registry
        )
        self.requests = Histogram(
            "lightretriever_request_seconds",
            "Time from a request's arrival to the start of its answer.",
            ["route", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._count_faults()
        self.swaps = Counter(
            "lightretriever_swaps",
            "Other bundles that were taken over while serving, or refused.",
            ["result"],
            registry=self.registry,
        )
        for result in ("swapped", "refused"):
            self.swaps.labels(result)
        stages = Histogram(
            "lightretriever_stage_seconds", "Time per stage.", ["stage"], buckets=_BUCKETS, registry=self.registry
        )
        self._stages = {stage: stages.labels(stage) for stage in get_args(Stage)}
        self._searches = Histogram(
            "lightretriever_search_seconds",
            "Time of a whole search, waiting included, without HTTP.",
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def describe(self, manifest: Manifest) -> None:
        """Set the bundle's facts."""
        self._bundle.info(
            {
                "name": manifest.name,
                "version": manifest.digest,
                "created": manifest.created,
                "model": manifest.model.name,
                "corpus": manifest.corpus.name,
                "query_weights": manifest.sparse.query_weights,
            }
        )
        self._documents.set(manifest.documents)

    def observe(self, clock: StageClock) -> None:
        """Take over the times of one search."""
        for stage, seconds in clock.seconds.items():
            self._stages[stage].observe(seconds)
        self._searches.observe(clock.total())

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _count_faults(self) -> None:
        self.errors = Counter(
            "lightretriever_errors", "Answers that were errors, by kind.", ["kind"], registry=self.registry
        )
        self.degraded = Counter(
            "lightretriever_degraded",
            "Searches answered without a leg.",
            ["leg", "reason"],
            registry=self.registry,
        )
        self.unscored = Counter(
            "lightretriever_unscored",
            "Searches in which a leg did not score the candidates of the other one.",
            ["leg", "reason"],
            registry=self.registry,
        )
        self.abandoned = Gauge(
            "lightretriever_abandoned_calls",
            "Calls that nobody waits for any more and that still hold a thread.",
            ["lane"],
            registry=self.registry,
        )
