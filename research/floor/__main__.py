"""Compare the service with its floor, in turns: what a plain search costs above the libraries that answer it.

    python -m research.floor BUNDLE --queries FILE [--before CHECKOUT]

Each is a process on this machine, and a client process sends each the same queries over as many connections. An earlier
version is a checkout with its own `.venv` and demo bundle. Then the service alone: start, memory, latency and overload
(`research/floor/overload.py`). Writes every turn to docs/results/floor.json.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.process import ROOT, Server, python
from lightretriever.loadtest.program import BUNDLE, QUERIES, option, program
from research.floor.overload import SERVE, alone_rows, measure_alone, send
from research.floor.stages import measure_stages
from research.record import origin, write_json

_LABELS: Final = {"floor": "the floor", "service": "the service", "before": "the version before"}
_TEXTS: Final = 100
_SHORTEST_MS: Final = 0.01  # of a stage that is shown
MEASURES: Final = {
    **{"cpu_ms": "processor ms a request", "switches": "context switches a request"},
    **{"qps": "requests/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"},
}


def measure_turn(server: Server, given: Namespace, turn: int, seconds: float) -> dict[str, Any]:
    """Send load for some seconds and return the measures of a turn. Raise LoadError unless all is answered."""
    used, switches = server.cpu_s(), server.switches()
    result = send(server, given.queries, seconds, "--connections", f"{given.connections}", "--seed", f"{turn}")
    sent = result["sent"]
    if result["answered"] - result["degraded"] != sent:
        raise LoadError(f"Not all requests were answered whole: {json.dumps(result)}")
    result["cpu_ms"] = round((server.cpu_s() - used) / sent * 1e3, 4)
    result["switches"] = round((server.switches() - switches) / sent, 3)
    return {name: result[name] for name in MEASURES}


def cell(value: float) -> str:
    """Return a measure as a table shows it."""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def floor_table(content: Mapping[str, Any]) -> list[str]:
    """Return the turns of a `floor.json` as a Markdown table: medians with their ratios."""
    lines = [f"| | {' | '.join(MEASURES.values())} |", f"|---|{'---:|' * len(MEASURES)}"]
    medians = {
        name: [median(turn[key] for turn in turns) for key in MEASURES] for name, turns in content["turns"].items()
    }
    lines += [f"| {_LABELS[name]} | {' | '.join(map(cell, values))} |" for name, values in medians.items()]
    for name in (name for name in medians if name != "service"):
        ratios = (service / other for other, service in zip(medians[name], medians["service"], strict=True))
        lines.append(f"| service ÷ {_LABELS[name].removeprefix('the ')} | {' | '.join(map(cell, ratios))} |")
    return lines


def alone_table(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the service alone, and the stages of a search in its process, as a Markdown table with a column for each
    `floor.json`."""
    columns = [alone_rows(content["alone"]) | _stage_rows(content["milliseconds"]) for content in contents]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [["the service alone", *(f"{content['bundle']['documents']:,} documents" for content in contents)]]
    rows += [[name, *(column.get(name, "–") for column in columns)] for name in names]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|---|{'---:|' * len(contents)}", *lines[1:]]


def _stage_rows(times: Mapping[str, float]) -> dict[str, str]:
    slower = max(times["dense"], times["sparse"])
    rows = {"a search in process ÷ the slower of its libraries": f"{times['search'] / slower:.2f}"}
    return rows | {f"{name}, ms": f"{value:.2f}" for name, value in times.items() if value >= _SHORTEST_MS}


@program(
    BUNDLE,
    QUERIES,
    option("--before", None, "checkout of an earlier version", type=Path),
    option("--turns", 5, "how often each is measured"),
    option("--seconds", 6.0, "length of a turn"),
    option("--warm-up-s", 15.0, "seconds of searches before the first turn"),
    option("--connections", 8, "requests under way"),
    option("--starts", 5, "how often the service is started"),
    option("--output", ROOT / "docs" / "results" / "floor.json", "file of the results", type=Path),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    manifest, bundle = Bundle.open(given.bundle).manifest, str(given.bundle.resolve())
    commands = {"floor": python("research.floor.floor", bundle), "service": [*SERVE, bundle]}
    if given.before is not None:
        program, folder = given.before / ".venv" / "bin" / "lightretriever", given.before / "demo" / "bundle"
        commands["before"] = [f"{program}", "serve", "--workers", "1", f"{folder}"]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server([*command, "--port", "0"])) for name, command in commands.items()}
        for server in servers.values():  # Java compiles what it runs often
            measure_turn(server, given, 0, given.warm_up_s)
        for turn in range(given.turns):
            for name, server in servers.items():
                turns[name].append(measure_turn(server, given, turn, given.seconds))
                print(f"{name}: {json.dumps(turns[name][-1])}", file=sys.stderr)
    plan = {"connections": given.connections, "seconds": given.seconds}
    about = {"corpus": manifest.corpus.name, "documents": manifest.documents}
    content = origin() | {"command": given.command, "bundle": about, "plan": plan, "turns": turns}
    content["alone"] = measure_alone(bundle, given)
    content["milliseconds"] = measure_stages(Bundle.open(given.bundle), read_texts(given.queries, 0)[:_TEXTS])
    write_json(given.output, content)
    print("\n".join([*floor_table(content), "", *alone_table([content])]))


if __name__ == "__main__":
    sys.exit(main())
