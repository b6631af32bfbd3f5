"""What HTTP costs by itself, layer by layer, with answers that are there already.

    python -m lightretriever.loadtest.layers BUNDLE --queries FOLDER --results docs/results/speed.json

Every layer of `loadtest.servers.layers` is a server of its own. One client asks each in turn, for so many seconds;
counted is the processor time of the server's process per request. Nothing is searched for, so all of it stays in the
processor's caches, which it does not between searches: there it takes longer, as the row `http_overhead_us` says.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.artifacts.signals import stoppable
from lightretriever.loadtest.generator import closed_loop, read_texts, run_loop
from lightretriever.loadtest.process import Server, python
from lightretriever.loadtest.record import record
from lightretriever.loadtest.servers.layers import LAYERS
from lightretriever.loadtest.tally import median_of
from lightretriever.loadtest.wire import LoadError, Target, search_form

__all__ = ["KEY", "main", "measure"]

KEY: Final = "http_layers"


def measure(bundle: Path, queries: Sequence[str], *, rounds: int, seconds: float) -> list[dict[str, float]]:
    """Microseconds of processor time per request by layer, of each round after one to get warm. LoadError if a request
    is not answered, or there are no queries."""
    if not queries:
        raise LoadError("There are no queries to ask.")
    with ExitStack() as stack:
        words = ("lightretriever.loadtest.servers.layers",)
        servers = {
            layer: stack.enter_context(Server(python(*words, layer, str(bundle), "--query", queries[0], "--port", "0")))
            for layer in LAYERS
        }
        return [
            {layer: _cost(server, queries, seconds) for layer, server in servers.items()} for _ in range(rounds + 1)
        ][1:]


def _cost(server: Server, queries: Sequence[str], seconds: float) -> float:
    target = Target.of(server.url)
    requests = [search_form(target, query, 10) for query in queries]
    before = server.cpu_s()
    result = run_loop(closed_loop(server.url, requests, connections=1, seconds=seconds), on_time=False)
    if result["answered"] < result["sent"]:
        raise LoadError(f"Not every request was answered: {result}.")
    return float((server.cpu_s() - before) / result["sent"] * 1e6)


def rows_of(costs: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """Rows for the file of speeds: of each layer the time of a request, and what is more than with the one that it adds
    to; medians."""
    values = {layer: round(median_of([dict(cost) for cost in costs], layer) or 0.0, 1) for layer in LAYERS}
    return [
        {
            "key": KEY,
            "setting": what,
            "unit": "µs",
            "value": values[layer],
            "more": round(values[layer] - (values[before] if before else 0.0), 1),
            "rounds": len(costs),
        }
        for layer, (what, before) in LAYERS.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        Bundle.open(given.bundle)
        costs = measure(given.bundle, read_texts(given.queries, 7), rounds=given.rounds, seconds=given.seconds)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = rows_of(costs)
    for row in rows:
        print(f"{row['value']:7.1f} µs, {row['more']:6.1f} more: {row['setting']}")
    if given.results is not None:
        command = [
            "python",
            "-m",
            "lightretriever.loadtest.layers",
            *(sys.argv[1:] if arguments is None else arguments),
        ]
        record(given.results, rows, typed_command(command), whole={KEY})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What HTTP costs by itself, layer by layer.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each layer in a round (2)")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    return parser


if __name__ == "__main__":
    with stoppable():  # its servers end with it
        sys.exit(main())
