"""Compare the service with its floor, in turns: what a plain search costs above the libraries that answer it.

    python -m research.floor BUNDLE --queries FILE

Both are processes on this machine, and a client process sends each the same queries over as many connections. Writes
every turn to docs/results/floor.json.
"""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.process import ROOT, Server, python
from lightretriever.loadtest.program import BUNDLE, QUERIES, option, program
from research.record import origin, write_json

__all__ = ["floor_table", "main"]

_SYSTEMS: Final = {
    "floor": ("the floor", ["research.floor.floor"]),
    "service": ("the service", ["lightretriever.service.cli", "serve", "--workers", "1"]),
}
_MEASURES: Final = {
    **{"cpu_ms": "processor ms a request", "switches": "context switches a request"},
    **{"qps": "requests/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"},
}


def _turn(server: Server, given: Namespace, turn: int, seconds: float) -> dict[str, Any]:
    """Send load for some seconds and return the measures of a turn. Raise LoadError unless all is answered."""
    load = ["--connections", f"{given.connections}", "--seconds", f"{seconds}", "--seed", f"{turn}"]
    client = python("lightretriever.loadtest.generator", server.url, "--queries", f"{given.queries.resolve()}", *load)
    used, switches = server.cpu_s(), server.switches()
    run = subprocess.run(client, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise LoadError(f"The client ended with {run.returncode}: {run.stderr.strip()[-600:]}")
    result = json.loads(run.stdout)
    sent = result["sent"]
    if result["answered"] - result["degraded"] != sent:
        raise LoadError(f"Not all requests were answered whole: {run.stdout.strip()}")
    result["cpu_ms"] = round((server.cpu_s() - used) / sent * 1e3, 4)
    result["switches"] = round((server.switches() - switches) / sent, 3)
    return {name: result[name] for name in _MEASURES}


def _cell(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def floor_table(content: Mapping[str, Any]) -> list[str]:
    """Return a `floor.json` as lines of a Markdown table: medians over the turns, and service ÷ floor."""
    lines = [f"| | {' | '.join(_MEASURES.values())} |", f"|---|{'---:|' * len(_MEASURES)}"]
    medians = {name: [median(turn[key] for turn in content["turns"][name]) for key in _MEASURES] for name in _SYSTEMS}
    lines += [f"| {label} | {' | '.join(map(_cell, medians[name]))} |" for name, (label, _) in _SYSTEMS.items()]
    ratios = (service / floor for floor, service in zip(medians["floor"], medians["service"], strict=True))
    return [*lines, f"| service ÷ floor | {' | '.join(map(_cell, ratios))} |"]


@program(
    BUNDLE,
    QUERIES,
    option("--turns", 5, "how often both are measured"),
    option("--seconds", 6.0, "length of a turn"),
    option("--warm-up-s", 15.0, "seconds of searches before the first turn"),
    option("--connections", 8, "requests under way"),
    option("--output", ROOT / "docs" / "results" / "floor.json", "file of the results", type=Path),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    manifest = Bundle.open(given.bundle).manifest
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in _SYSTEMS}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(python(*command, str(given.bundle.resolve()), "--port", "0")))
            for name, (_, command) in _SYSTEMS.items()
        }
        for server in servers.values():  # Java compiles what it runs often
            _turn(server, given, 0, given.warm_up_s)
        for turn in range(given.turns):
            for name, server in servers.items():
                turns[name].append(_turn(server, given, turn, given.seconds))
                print(f"{name}: {json.dumps(turns[name][-1])}", file=sys.stderr)
    plan = {"connections": given.connections, "seconds": given.seconds}
    bundle = {"corpus": manifest.corpus.name, "documents": manifest.documents}
    content = origin() | {"command": given.command, "bundle": bundle, "plan": plan, "turns": turns}
    write_json(given.output, content)
    print("\n".join(floor_table(content)))


if __name__ == "__main__":
    sys.exit(main())
