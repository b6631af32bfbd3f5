"""The costs of the service: time to ready, and the memory of one and more processes."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from lightretriever.loadtest.connection import search_requests
from lightretriever.loadtest.generator import closed_loop, run_loop
from lightretriever.loadtest.process import Server, python

__all__ = ["processes", "serve_command", "start_times"]


def serve_command(bundle: Path, *options: str) -> list[str]:
    """Give the command that starts one process of the service on a free port."""
    return python("lightretriever.service.cli", "serve", str(bundle), "--port", "0", "--workers", "1", *options)


def start_times(bundle: Path, rounds: int) -> list[float]:
    """Measure the seconds from a process's start to its readiness, `rounds` times, with the page cache as it is."""
    times = []
    for _ in range(rounds):
        with Server(serve_command(bundle)) as server:
            times.append(round(server.ready_s, 3))
    return times


def processes(bundle: Path, queries: Sequence[str], seconds: float, count: int = 2) -> list[dict[str, float]]:
    """Measure memory in MiB with 1 to `count` service processes on the same bundle, each after `seconds` of searches.

    One entry per number of processes: `total_pss` of all, `added_pss` by the last, and the last one's `private`.
    """
    found: list[dict[str, float]] = []
    with ExitStack() as stack:
        servers: list[Server] = []
        for _ in range(count):
            servers.append(server := stack.enter_context(Server(serve_command(bundle))))
            requests = search_requests(server.url, queries)
            run_loop(closed_loop(server.url, requests, connections=8, seconds=seconds), on_time=False)
            sizes = [one.memory_mb() for one in servers]
            total = round(sum(size["pss"] for size in sizes), 1)
            added = round(total - (found[-1]["total_pss"] if found else 0), 1)
            found.append({"total_pss": total, "added_pss": added, "private": sizes[-1]["private"]})
    return found
