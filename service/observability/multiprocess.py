"""The metrics of several processes, put together from the folder in which each keeps its own."""

import fcntl
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

__all__ = ["inherit", "shared_text"]

_BUNDLE: Final = "lightretriever_bundle_info"
_OLDEST: Final = "process_start_time_seconds"
_LOCK: Final = "inheriting"
_HEIR: Final = "ended"


def shared_text(folder: Path) -> bytes:
    """All metrics in Prometheus' text format: counts and times added up, and states as each metric says."""
    registry = CollectorRegistry()
    with _locked(folder, fcntl.LOCK_SH):
        registry.register(_Counted(folder))
        registry.register(_Processes(folder))
        return generate_latest(registry)


def inherit(folder: Path, pid: int) -> bool:
    """Forget the states of a process that ended, and add what it counted to what others did that ended before. False if
    others read just now: then it is to be called again.

    Reading the metrics would take longer with every process that ever ended, if their files were kept. A file that
    can't be read is removed, with an error: nobody could read the metrics any more. OSError if the disk is full; then
    the file stays, and counts.
    """
    mark_process_dead(pid, str(folder))
    try:
        # Whoever reads meanwhile would count something twice, or not at all.
        with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for file in folder.glob(f"*_{pid}.db"):
                _add(file, folder / f"{file.name.partition('_')[0]}_{_HEIR}.db")
    except BlockingIOError:
        return False
    return True


def _add(file: Path, heir: Path) -> None:
    values: dict[str, tuple[float, float]] = {}
    try:
        for source in (heir, file) if heir.exists() else (file,):
            for key, value, time, _ in MmapedDict.read_all_values_from_file(str(source)):
                json.loads(key)  # as who reads the metrics does
                values[key] = (values.get(key, (0.0, 0.0))[0] + value, time)
    except (ValueError, RuntimeError, struct.error):
        file.unlink()
        raise
    partial = heir.with_suffix(".partial")
    partial.write_bytes(_packed(values))  # not mapped: on a full disk that would end the process
    partial.replace(heir)
    file.unlink()


def _packed(values: Mapping[str, tuple[float, float]]) -> bytes:
    """Values and their times by key, as MmapedDict has them in its file: the bytes in use, and of each value the length
    of its key, the key, padded so that the numbers begin at a multiple of 8, and the two numbers."""
    entries = [b"\0" * 8]
    for key, numbers in values.items():
        encoded = key.encode()
        padded = encoded + b" " * (8 - (len(encoded) + 4) % 8)
        entries.append(struct.pack(f"i{len(padded)}sdd", len(encoded), padded, *numbers))
    packed = b"".join(entries)
    return struct.pack("i", len(packed)) + packed[4:]


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """Keep others from reading, or from changing, which files there are. The system frees the lock of who ends."""
    with (folder / _LOCK).open("ab") as file:
        fcntl.flock(file, how)
        yield


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
