"""One process of the service under load: start, memory, latency at half of its throughput, beside greedy clients, and
with more clients than it admits."""

import json
import subprocess
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.process import ROOT, Server, python

SERVE: Final = python("lightretriever.service.cli", "serve", "--workers", "1")
"""The command of the service, to be followed by a bundle."""
_WAITING: Final = 6
_ADMITTED: Final = 8
"""Clients that are admitted: two threads work, and `_WAITING` requests wait."""
_TIMES: Final = (4, 16, 64)
_GREEDY: Final = {"k": 100, "snippets": {}}
"""Fields of a search that takes some 100 times the processor time of a plain one."""


def _command(server: Server, queries: Path, seconds: float, *options: str) -> list[str]:
    generator = "lightretriever.loadtest.generator"
    return python(generator, server.url, "--queries", f"{queries.resolve()}", "--seconds", f"{seconds}", *options)


def send(server: Server, queries: Path, seconds: float, *options: str) -> dict[str, Any]:
    """Send load from a client process. Return its result and `cpu_s`, the server's processor time in seconds. Raise
    LoadError if it fails."""
    used = server.cpu_s()
    run = subprocess.run(
        _command(server, queries, seconds, *options), cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise LoadError(f"The client ended with {run.returncode}: {run.stderr.strip()[-600:]}")
    return {**json.loads(run.stdout), "cpu_s": round(server.cpu_s() - used, 3)}


def measure_alone(bundle: str, given: Namespace) -> dict[str, Any]:
    """Return `ready_s` and `memory_mb` of every start, and results of loads: `capacity` with as many clients as are
    admitted, `half`, an open loop at half of that rate, `greedy`, one client beside two with `_GREEDY`, and `overload`
    by the multiple of the admitted clients."""
    queries, seconds = given.queries, given.seconds
    ready, memory = [], []
    for _ in range(given.starts):
        with Server([*SERVE, bundle, "--port", "0"]) as server:
            ready.append(round(server.ready_s, 2))
            memory.append(server.memory_mb())
    environment = {"LIGHTRETRIEVER_MAX_WAITING": f"{_WAITING}"}
    with Server([*SERVE, bundle, "--port", "0"], environment=environment) as server:
        send(server, queries, given.warm_up_s, "--connections", f"{_ADMITTED}")
        capacity = send(server, queries, seconds, "--connections", f"{_ADMITTED}")
        half = send(server, queries, seconds, "--rate", f"{capacity['qps'] / 2}")
        overload = {
            f"{times}": send(server, queries, seconds, "--connections", f"{times * _ADMITTED}") for times in _TIMES
        }
        more = ["--connections", "2", "--fields", json.dumps(_GREEDY)]
        with subprocess.Popen(
            _command(server, queries, seconds + 4, *more), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as clients:
            greedy = send(server, queries, seconds, "--connections", "1")
            _, errors = clients.communicate()
        if clients.returncode:
            raise LoadError(f"The greedy clients ended with {clients.returncode}: {errors.decode()[-600:]}")
    return {
        "ready_s": ready,
        "memory_mb": memory,
        "capacity": capacity,
        "half": half,
        "greedy": greedy,
        "overload": overload,
    }


def alone_rows(alone: Mapping[str, Any]) -> dict[str, str]:
    """Return what `measure_alone` measured, as rows of a table."""
    capacity, overload = alone["capacity"], alone["overload"]
    goodput = ", ".join(f"{result['qps'] / capacity['qps']:.2f}" for result in overload.values())
    answer, most = capacity["cpu_s"] / capacity["answered"], [*overload.values()][-1]
    refusal = max(0.0, most["cpu_s"] - answer * most["answered"]) / most["refused"]
    return {
        "start to ready, s": f"{median(alone['ready_s']):.1f}",
        "memory after the start, MiB": f"{median(alone['memory_mb']):.0f}",
        "open loop at half of the throughput: p50, p99 in ms": _latency(alone["half"]),
        "one plain client beside two that ask for 100 hits with snippets: p50, p99 in ms": _latency(alone["greedy"]),
        f"answers with {', '.join(overload)} times the clients that are admitted, of the throughput": goodput,
        "processor time of a refusal, of an answer's": f"{refusal / answer:.2f}",
    }


def _latency(result: Mapping[str, Any]) -> str:
    return f"{result['p50_ms']:.1f}, {result['p99_ms']:.1f}"
