"""Time per stage and counters. One clock per request feeds both the answer's timings and the metrics."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Final, Literal, get_args

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.service.observability.multiprocess import shared_text
from lightretriever.service.observability.times import Times
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

__all__ = ["METRICS_FOLDER", "Mark", "Metrics", "Stage", "StageClock"]

METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that tells prometheus_client, when it is imported, where several processes keep their metrics."""

Stage = Literal[
    "tokenize",
    "filter",
    "encode",
    "dense",
    "sparse",
    "bm25",
    "rescore",
    "fuse",
    "fetch",
    "snippets",
    "facets",
    "explain",
]

Mark = tuple[Stage, float, float]
"""A stage, and the `perf_counter` times of its beginning and end."""

_Together = Literal["livemin", "livemax", "livesum"]

# 10 µs to 10 s: the query encoder takes microseconds, a deadline may be seconds.
_BUCKETS = (*(step * scale for scale in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0) for step in (1.0, 2.5, 5.0)), 10.0)


class StageClock:
    """How long the stages of one request took. `arrived` is a `perf_counter` time in seconds, default now.

    `marks` gets every stage with its beginning and end, where someone wants to know.
    """

    def __init__(self, arrived: float | None = None, marks: list[Mark] | None = None) -> None:
        self._marks = marks
        self.arrived = perf_counter() if arrived is None else arrived
        self.seconds: dict[Stage, float] = {}

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[None]:
        """Add the time the block takes to the stage, unless it raises."""
        started = perf_counter()
        yield
        self.add(stage, started)

    def add(self, stage: Stage, started: float) -> float:
        """Add the time since `started`, a `perf_counter` time; give the time now. Cheaper than `measure`."""
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - started
        if self._marks is not None:
            self._marks.append((stage, started, now))
        return now

    def took(self, stage: Stage, started: float, ended: float) -> None:
        """Take over the time of a stage that another thread measured; of several at once the longest counts."""
        self.seconds[stage] = max(ended - started, self.seconds.get(stage, 0.0))
        if self._marks is not None:
            self._marks.append((stage, started, ended))

    def total(self) -> float:
        """Seconds since the arrival."""
        return perf_counter() - self.arrived

    def milliseconds(self) -> dict[str, float]:
        """Every recorded stage and the total so far, rounded to 0.1 µs."""
        stages: dict[str, float] = {stage: round(seconds * 1e3, 4) for stage, seconds in self.seconds.items()}
        return stages | {"total": round(self.total() * 1e3, 4)}


class Metrics:
    """The Prometheus metrics of a process, in a registry of their own, or in the folder that several share."""

    def __init__(self) -> None:
        folder = os.environ.get(METRICS_FOLDER)
        self._folder = Path(folder) if folder else None
        self._states: list[tuple[Gauge, Callable[[], float]]] = []
        self._bundle_labels: tuple[str, ...] = ()
        self.registry = CollectorRegistry()
        if self._folder is None:
            ProcessCollector(registry=self.registry)
        self._count_states()
        self._requests = Times(
            "lightretriever_request_seconds",
            "Time from a request's arrival to the start of its answer.",
            ["route", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.request: Callable[[str, int], Times] = cache(
            lambda route, status: self._requests.labels(route, str(status))
        )
        """The histogram of a route and status."""
        self._count_faults()
        self.swaps = Counter(
            "lightretriever_swaps",
            "Other bundles that were taken over while serving, or refused.",
            ["result"],
            registry=self.registry,
        )
        for result in ("swapped", "refused"):
            self.swaps.labels(result)
        self._stages = Times(
            "lightretriever_stage_seconds", "Time per stage.", ["stage"], buckets=_BUCKETS, registry=self.registry
        )
        self._stage = {stage: self._stages.labels(stage) for stage in get_args(Stage)}
        self._searches = Times(
            "lightretriever_search_seconds",
            "Time of a whole search, waiting included, without HTTP.",
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def describe(
        self, manifest: Manifest, ready: Callable[[], float], abandoned: Mapping[str, Callable[[], float]]
    ) -> None:
        """Tell of another engine: its bundle, whether it is ready, and the calls that each lane gave up."""
        labels = (
            manifest.name,
            manifest.digest,
            manifest.created,
            manifest.model.name,
            manifest.corpus.name,
            manifest.sparse.query_weights,
        )
        if self._bundle_labels and self._bundle_labels != labels:
            self._bundle.labels(*self._bundle_labels).set(0)
            if self._folder is None:
                self._bundle.remove(*self._bundle_labels)
        self._bundle_labels = labels
        self._bundle.labels(*labels).set(1)
        self._documents.set(manifest.documents)
        self._states = [
            (self.ready, ready),
            *((self.abandoned.labels(name), count) for name, count in abandoned.items()),
        ]
        if self._folder is None:
            for gauge, value in self._states:
                gauge.set_function(value)
        self.refresh()

    def refresh(self) -> None:
        """Write down the times and the present state, for other processes to read; one alone is asked when someone
        wants to know."""
        if self._folder is not None:
            for times in (self._requests, self._stages, self._searches):
                times.count()
            for gauge, value in self._states:
                gauge.set(value())

    def observe(self, clock: StageClock) -> None:
        """Take over the times of one search."""
        for stage, seconds in clock.seconds.items():
            self._stage[stage].observe(seconds)
        self._searches.observe(clock.total())

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, those of all processes where there are several."""
        if self._folder is None:
            return generate_latest(self.registry)
        self.refresh()
        return shared_text(self._folder)

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

    def _count_states(self) -> None:
        labels = ("name", "version", "created", "model", "corpus", "query_weights")
        self._bundle = self._gauge("bundle_info", "The bundle that is served.", "livemax", labels)
        self._documents = self._gauge("documents", "Documents in the bundle.", "livemax")
        self.ready = self._gauge("ready", "1 while /readyz says 200, else 0.", "livemin")
        self.in_flight = self._gauge("requests_in_flight", "Requests being worked on or waiting.", "livesum")
        abandoned = "Calls that nobody waits for any more and that still hold a thread."
        self.abandoned = self._gauge("abandoned_calls", abandoned, "livesum", ["lane"])

    def _gauge(self, name: str, about: str, together: _Together, labels: Sequence[str] = ()) -> Gauge:
        """Make a gauge; `together` is what several processes make of their values."""
        return Gauge(f"lightretriever_{name}", about, labels, registry=self.registry, multiprocess_mode=together)
