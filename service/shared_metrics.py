"""The metrics of several processes, put together from the folder in which each keeps its own."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

__all__ = ["shared_text"]

_BUNDLE: Final = "lightretriever_bundle_info"
_OLDEST: Final = "process_start_time_seconds"


def shared_text(folder: Path) -> bytes:
    """All metrics in Prometheus' text format: counts and times added up, and states as each metric says."""
    registry = CollectorRegistry()
    registry.register(_Counted(folder))
    registry.register(_Processes(folder))
    return generate_latest(registry)


class _Counted(Collector):
    """What the processes counted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Give the metrics; a bundle that no process serves any more is left out."""
        for metric in MultiProcessCollector(None, str(self._folder)).collect():
            metric.samples = [sample for sample in metric.samples if sample.name != _BUNDLE or sample.value]
            yield metric


class _Processes(Collector):
    """Memory, processor time and files of all living processes together, and the start of the oldest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Give the sums. The file of a process that ended is gone: see `mark_process_dead`."""
        found: dict[str, Metric] = {}
        for file in self._folder.glob("gauge_livesum_*.db"):
            pid = file.stem.rpartition("_")[2]
            for metric in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                known = found.setdefault(metric.name, metric)
                if known is not metric:
                    known.samples = [
                        one._replace(value=(min if one.name == _OLDEST else _sum)(one.value, other.value))
                        for one, other in zip(known.samples, metric.samples, strict=True)
                    ]
        yield from found.values()


def _sum(one: float, other: float) -> float:
    return one + other
