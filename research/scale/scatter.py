"""Simulates a search over many shards from the times of one, and carries its size on to a billion documents.

    python -m research.scale.scatter docs/results/shard-times.json.gz --seed 7 \\
        --results docs/results/scale.json

A trip is as slow as its slowest shard. A measured time is the query's own time, the median of its rounds, times a
delay. All shards share the first; each draws the second from the delays of all queries and rounds. With F the share of
delays up to a value, the largest of N delays has the distribution F to the power N, so one random number u gives it:
the delay at rank u^(1/N). A search is three trips, one after the other.

The same file and seed give the same results, to the byte.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import four_digits, latency, write_json
from research.scale.shard import TRIPS, read_times

__all__ = ["CAPACITY", "DOCUMENTS", "SHARDS", "capacity", "main", "scatter", "slowest"]

SHARDS: Final = (1, 3, 10, 30, 100, 300, 1000)
DOCUMENTS: Final = 1_000_000_000
CAPACITY: Final = {"node_gib": 64, "cache_share": 0.75, "cores": 16, "shard_gib": 50, "legs_ms": 100}
"""A node's memory and cores, the share of the memory that caches files, and bounds of a shard: GiB on disk, and
milliseconds of the legs."""

_LEAST_GROWTH: Final = 100_000  # times of fewer documents are mostly what every search costs
_GIB: Final = 2**30
_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

Times = npt.NDArray[np.float64]


def slowest(delays: Times, shards: int, random: npt.NDArray[np.float64]) -> Times:
    """Draw the largest of `shards` delays, for each of the `random` numbers (s,) in [0, 1). delays: (m,), sorted."""
    ranks = np.ceil(delays.size * random ** (1 / shards)).astype(np.int64)
    drawn: Times = delays[np.clip(ranks, 1, delays.size) - 1]
    return drawn


def scatter(times: Mapping[str, Sequence[Sequence[float]]], shards: int, searches: int, seed: int) -> Times:
    """Simulate searches over `shards` shards, (searches,) milliseconds. times: (queries, rounds) ms by trip."""
    random = np.random.default_rng([seed, shards])
    total = np.zeros(searches)
    asked = random.integers(0, len(times[TRIPS[0]]), searches)
    for trip in TRIPS:
        measured = np.array(times[trip], np.float64)
        own = np.median(measured, axis=1)
        delays = np.sort((measured / own[:, None]).ravel())
        total += own[asked] * slowest(delays, shards, random.random(searches))
    return total


def capacity(shard: Mapping[str, Any]) -> dict[str, Any]:
    """The needs of `DOCUMENTS` documents like a shard's: bytes, shards, nodes, and processor seconds a search.

    The time of the legs grows with the documents as a straight line; None for a shard of too few to tell.
    """
    disk = sum(part["per_document"] for part in shard["parts"]) * DOCUMENTS
    memory = sum(part["per_document"] for part in shard["parts"] if part["in_memory"]) * DOCUMENTS
    by_size, legs_s = ceil(disk / (CAPACITY["shard_gib"] * _GIB)), None
    shards = by_size
    if shard["documents"] >= _LEAST_GROWTH:
        legs_s = float(np.median(shard["ms"]["legs"])) / 1e3 * DOCUMENTS / shard["documents"]
        shards = max(by_size, ceil(legs_s * 1e3 / CAPACITY["legs_ms"]))
    nodes = max(
        ceil(memory / (CAPACITY["node_gib"] * CAPACITY["cache_share"] * _GIB)), ceil(shards / CAPACITY["cores"])
    )
    return {
        "documents": DOCUMENTS,
        "disk_gib": four_digits(disk / _GIB),
        "memory_gib": four_digits(memory / _GIB),
        "shards": shards,
        "documents_a_shard": round(DOCUMENTS / shards),
        "nodes": nodes,
        "legs_s": None if legs_s is None else four_digits(legs_s),
    }


def simulated(shard: Mapping[str, Any], searches: int, seed: int) -> dict[str, Any]:
    """Give what the tables need of a shard: its facts and sizes, and if it was timed, the times of many shards."""
    facts = {name: value for name, value in shard.items() if name != "ms"}
    trips, rows = {trip: latency(np.ravel(times), 1.0) for trip, times in shard["ms"].items()}, []
    for shards in SHARDS if trips else ():
        found, drawn = scatter(shard["ms"], shards, searches, seed), np.size(shard["ms"][TRIPS[0]])
        # The slowest measured time stands for all that are slower still.
        least = [name for name, share in _SHARES.items() if share ** (1 / shards) > 1 - 1 / drawn]
        rows.append({"shards": shards, **latency(found, 1.0), "at_least": least})
    return {**facts, "trips": trips, "scatter": rows, "capacity": capacity(shard) if trips else None}


@program(
    option("times", Path, "file of times that research.scale.shard wrote"),
    option("--results", Path, "JSON file of the results"),
    option("--searches", 20_000, "searches to simulate"),
    option("--seed", 7, "seed of the random numbers"),
)
def main(given: Namespace) -> None:
    """Simulate every shard of the file and write the results."""
    shards = read_times(given.times)
    if not shards:
        raise LoadError(f"{given.times}: no shard is measured.", remedy="Run research.scale.shard first.")
    found = [simulated(shard, given.searches, given.seed) for shard in shards]
    about = {"command": given.command, "seed": given.seed, "searches": given.searches}
    write_json(given.results, {**about, "assumed": CAPACITY, "shards": found})
    for shard in found:
        for row in shard["scatter"]:
            figures = ", ".join(f"{name} {row[name]:g}" for name in ("p50", "p95", "p99"))
            print(f"{shard['name']}, {row['shards']} shards: {figures} ms")


if __name__ == "__main__":
    sys.exit(main())
