"""What the service itself costs: time to ready, a second process's memory, and HTTP on top of a search in process."""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.generator import closed_loop, run_loop
from lightretriever.loadtest.process import Server, memory_mb, python
from lightretriever.loadtest.servers.both import Both
from lightretriever.loadtest.tally import median_of
from lightretriever.loadtest.wire import LoadError, Target, search_form

__all__ = ["http_overhead", "processes", "start_times"]

_MOST_PER_S: Final = 2000  # queries that one client gets answered


def serve_command(bundle: Path) -> list[str]:
    """How the service is started."""
    return python("lightretriever.service.cli", "serve", str(bundle), "--port", "0")


def start_times(bundle: Path, rounds: int) -> list[float]:
    """Seconds from starting a service process to its first readiness, `rounds` times, the page cache as it is."""
    times = []
    for _ in range(rounds):
        with Server(serve_command(bundle)) as server:
            times.append(round(server.ready_s, 3))
    return times


def processes(bundle: Path, queries: Sequence[str], seconds: float, count: int = 2) -> list[dict[str, float]]:
    """Memory in MiB with 1 to `count` service processes on the same bundle, each after `seconds` of searches.

    One entry per number of processes: `total_pss` of all, `added_pss` by the last, and the last one's `private`.
    """
    found: list[dict[str, float]] = []
    with ExitStack() as stack:
        pids: list[int] = []
        for _ in range(count):
            server = stack.enter_context(Server(serve_command(bundle)))
            pids.append(server.pid)
            run_loop(
                closed_loop(server.url, _requests(server.url, queries, 10), connections=8, seconds=seconds),
                on_time=False,
            )
            sizes = [memory_mb(pid) for pid in pids]
            total = round(sum(size["pss"] for size in sizes), 1)
            added = round(total - (found[-1]["total_pss"] if found else 0), 1)
            found.append({"total_pss": total, "added_pss": added, "private": sizes[-1]["private"]})
    return found


def http_overhead(bundle: Path, queries: Sequence[str], *, seconds: float, rounds: int) -> dict[str, Any]:
    """Processor time of a search over HTTP beyond that of the same search without, in microseconds.

    In each of the `rounds`, one client asks as many queries as it can in `seconds`, and the same process then searches
    for the same ones without HTTP; given are medians. All threads count, JIT and garbage collection included.
    """
    rows = []
    left = itertools.cycle(queries)
    with Both(bundle) as service:
        for _ in range(rounds):
            asked = list(itertools.islice(left, round(seconds * _MOST_PER_S)))
            forms = _requests(service.url, asked, 10)
            before = service.cpu_s()
            result = run_loop(closed_loop(service.url, forms, connections=1, seconds=seconds), on_time=False)
            used, sent = service.cpu_s() - before, result["sent"]
            if result["answered"] < sent:
                raise LoadError(f"Not every request was answered: {result}.", remedy="Give queries that have tokens.")
            alone = service.search(list(itertools.islice(itertools.cycle(asked), sent)))
            rows.append({"http_us": used / sent * 1e6, "in_process_us": alone / sent * 1e6})
    over = [row | {"over_us": row["http_us"] - row["in_process_us"]} for row in rows]
    names = ("http_us", "in_process_us", "over_us")
    return {name: round(median_of(over, name) or 0.0, 1) for name in names} | {"rounds": rounds}


def _requests(url: str, queries: Sequence[str], k: int) -> list[bytes]:
    target = Target.of(url)
    return [search_form(target, query, k) for query in queries]
