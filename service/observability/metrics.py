"""Stage times and counters. One clock per request feeds both the answer's timings and the metrics."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.service.execution.executor import Lane

METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that prometheus_client reads on import: the folder in which several processes share metrics."""

Stage = Literal[
    "spelling",
    "tokenize",
    "filter",
    "encode",
    "dense",
    "sparse",
    "rescore",
    "fuse",
    "rank",
    "rerank",
    "fetch",
    "snippets",
    "facets",
    "explain",
]

Mark = tuple[Stage, float, float]
"""A stage, and the `perf_counter` times of its start and end."""

_Together = Literal["livemin", "livemax", "livesum"]

# 10 µs to 10 s: encoding a query takes microseconds, a deadline may be seconds.
_BUCKETS = (*(step * scale for scale in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0) for step in (1.0, 2.5, 5.0)), 10.0)


class StageClock:
    """Times of one request's stages. `arrived` is a `perf_counter` time in seconds, default now. `marks`, if given,
    collects every stage with its start and end."""

    def __init__(self, arrived: float | None = None, marks: list[Mark] | None = None) -> None:
        self.marks = marks
        self.arrived = perf_counter() if arrived is None else arrived
        self.seconds: dict[Stage, float] = {}
        self.handed_s = 0.0
        """Seconds of a processor that other threads spent on parts of the request that were handed to them."""

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[None]:
        """Add the block's time to the stage, unless the block raises."""
        started = perf_counter()
        yield
        self.add(stage, started)

    def add(self, stage: Stage, started: float, ended: float | None = None) -> float:
        """Add the time from `started` to `ended` (`perf_counter`; default now), and return `ended`."""
        ended = perf_counter() if ended is None else ended
        self.seconds[stage] = self.seconds.get(stage, 0.0) + ended - started
        if self.marks is not None:
            self.marks.append((stage, started, ended))
        return ended

    def total(self) -> float:
        """Return the seconds since the arrival."""
        return perf_counter() - self.arrived

    def milliseconds(self) -> dict[str, float]:
        """Return every recorded stage and the total so far, rounded to 0.1 µs."""
        stages: dict[str, float] = {stage: round(seconds * 1e3, 4) for stage, seconds in self.seconds.items()}
        return stages | {"total": round(self.total() * 1e3, 4)}


class EngineState(NamedTuple):
    """What the gauges say of an engine: the documents in its bundle, those written beside it, 1 if its rules are
    refused, 1 if it is ready, and its lanes."""

    documents: int
    written: int
    rules_refused: bool
    ready: bool
    lanes: Mapping[str, Lane]


class Metrics:
    """The Prometheus metrics of a process, in a separate registry, or in the folder that several processes share."""

    def __init__(self) -> None:
        folder = os.environ.get(METRICS_FOLDER)
        self._folder = Path(folder) if folder else None
        self._described: dict[str, tuple[tuple[str, ...], Callable[[], EngineState]]] = {}
        self.registry = CollectorRegistry()
        if self._folder is None:
            ProcessCollector(registry=self.registry)
        labels = ("name", "version", "created", "model", "corpus", "query_weights")
        self._bundle = self._gauge("bundle_info", "The bundle that is served.", "livemax", *labels)
        self._documents = self._gauge("documents", "Documents in the bundles.", "livemax")
        text = "Documents written beside the bundles, every version of each, until a compaction."
        self._written = self._gauge("live_documents", text, "livemax")
        text = "1 while the file of rules can't be used and the rules before are in force, else 0."
        self._rules_refused = self._gauge("rules_refused", text, "livemax")
        self.ready = self._gauge("ready", "1 while /readyz answers 200, else 0.", "livemin")
        self.in_flight = self._gauge("requests_in_flight", "Requests running or waiting.", "livesum")
        self.abandoned = self._gauge("abandoned_calls", "Abandoned calls that still hold a thread.", "livesum", "lane")
        self.errors = self._counter("errors", "Answers that were errors, by kind.", "kind")
        self.degraded = self._counter("degraded", "Searches answered without a leg or the reranker.", "leg", "reason")
        text = "Searches in which a leg did not score the other leg's candidates, or the hits to explain."
        self.unscored = self._counter("unscored", text, "leg", "reason")
        self.swaps = self._counter("swaps", "Bundles swapped in while serving, or refused.", "result")
        for result in ("swapped", "refused"):
            self.swaps.labels(result)
        text = "Time from a request's arrival to the start of its answer."
        requests = self._times("request", text, "route", "status")
        self.request: Callable[[str, int], Histogram] = cache(lambda route, status: requests.labels(route, str(status)))
        """The histogram of a route and status."""
        stages = self._times("stage", "Time per stage, and the backend that ran it.", "stage", "backend")
        self._stage: Callable[[Stage, str], Histogram] = cache(stages.labels)
        for stage in get_args(Stage):
            self._stage(stage, "")
        self._searches = self._times("search", "Time of a whole search, including waiting, without HTTP.")

    def describe(self, collection: str, manifest: Manifest, state: Callable[[], EngineState]) -> None:
        """Describe another engine of a collection: its bundle, and the `state` that it has at any time."""
        model, corpus, weights = manifest.model.name, manifest.corpus.name, manifest.sparse.query_weights
        labels = (manifest.name, manifest.digest, manifest.created, model, corpus, weights)
        before, _ = self._described.get(collection, (None, None))
        self._described[collection] = labels, state
        if before is not None and before not in (others for others, _ in self._described.values()):
            self._bundle.labels(*before).set(0)
            if self._folder is None:
                self._bundle.remove(*before)
        self._bundle.labels(*labels).set(1)
        self.refresh()

    def refresh(self) -> None:
        """Set the gauges of the present state; other processes read them too."""
        states = [state() for _, state in self._described.values()]
        if not states:
            return
        self._documents.set(sum(state.documents for state in states))
        self._written.set(sum(state.written for state in states))
        self._rules_refused.set(any(state.rules_refused for state in states))
        self.ready.set(all(state.ready for state in states))
        for name in {name for state in states for name in state.lanes}:
            lanes = (state.lanes[name] for state in states if name in state.lanes)
            self.abandoned.labels(name).set(sum(lane.abandoned for lane in lanes))

    def observe(self, clock: StageClock, backends: Mapping[Stage, str]) -> None:
        """Observe the times of one search, with the backend of each stage that has one."""
        for stage, seconds in clock.seconds.items():
            self._stage(stage, backends.get(stage, "")).observe(seconds)
        self._searches.observe(clock.total())

    def text(self) -> bytes:
        """Return the metrics of all processes as Prometheus' text. Reads files: don't call it in an event loop."""
        self.refresh()
        if self._folder is None:
            return generate_latest(self.registry)
        for file in self._folder.glob("gauge_live*_*.db"):
            if not Path("/proc", pid := file.stem.rpartition("_")[2]).exists():
                mark_process_dead(int(pid), str(self._folder))
        registry = CollectorRegistry()
        registry.register(_AllProcesses(self._folder))
        return generate_latest(registry)

    def _times(self, name: str, text: str, *labels: str) -> Histogram:
        name = f"lightretriever_{name}_seconds"
        return Histogram(name, text, labels, buckets=_BUCKETS, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"lightretriever_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, together: _Together, *labels: str) -> Gauge:
        """Make a gauge; `together` says how the values of several processes are combined."""
        return Gauge(f"lightretriever_{name}", text, labels, registry=self.registry, multiprocess_mode=together)


class _AllProcesses(Collector):
    """Sums over processes: the metrics of all, and the memory, processor time and files of those alive."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        for metric in MultiProcessCollector(None, str(self._folder)).collect():
            if metric.name == "lightretriever_bundle_info":  # drops bundles that no process serves any more
                metric.samples = [sample for sample in metric.samples if sample.value]
            yield metric
        by_name: dict[str, list[Metric]] = {}
        for file in self._folder.glob("gauge_livesum_*.db"):  # of those alive
            pid = file.stem.rpartition("_")[2]
            for metric in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                by_name.setdefault(metric.name, []).append(metric)
        for name, metrics in by_name.items():
            add_up = min if name == "process_start_time_seconds" else sum
            (first,) = metrics[0].samples
            metrics[0].samples = [first._replace(value=add_up(metric.samples[0].value for metric in metrics))]
            yield metrics[0]
