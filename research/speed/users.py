"""Users of locust in front of the service, and of the same service with the language model in the query path.

    python -m research.speed.users BUNDLE --queries FOLDER --model MODEL --adapter ADAPTER \\
        --users 1,2,4,8,16,32 --results docs/results/users.json

A user searches, waits for the answer and searches again, as `loadtest/locustfile.py` says. For every number of users,
the systems take turns. A row has the requests a second and the latencies of one run. Locust counts whole milliseconds
up to 100, then tens; it shares the machine with the servers. research/pages/results.py draws latency over throughput.
"""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.measure import Running, start
from lightretriever.loadtest.process import ROOT
from lightretriever.loadtest.program import BUNDLE, MODEL, QUERIES, option, program, typed_command
from lightretriever.loadtest.record import four_digits, origin, write_json
from lightretriever.loadtest.systems import LLM, OURS, Given, systems

__all__ = ["main", "row_of"]

_LIMIT_S: Final = 120.0
_LAST: Final = 600
_NEEDED: Final = {"p50_ms": 1, "p95_ms": 20, "p99_ms": 100}  # answers, as in the other load tests
_SHARES: Final = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}

Row = dict[str, Any]


def search_by_users(url: str, queries: Path, users: int, seconds: float) -> Row:
    """Run locust with a number of users, all from the start; give its own statistics. Raises LoadError if it fails."""
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--json", "--host", url]
    command += ["-u", str(users), "-r", str(users), "-t", f"{seconds:g}s", "--queries", str(queries.resolve())]
    command += ["--stop-timeout", f"{_LIMIT_S:g}"]  # every request is answered and counted
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        (found,) = json.loads(run.stdout)
    except ValueError as error:
        raise LoadError(f"locust gave no statistics: {run.stderr.strip()[-_LAST:]}") from error
    statistics: Row = found
    return statistics


def row_of(statistics: Mapping[str, Any]) -> Row:
    """Derive requests a second, latencies in ms and counts from locust's statistics of a run. A p99 of fewer than 100
    answers, and a p95 of fewer than 20, are left out."""
    count = statistics["num_requests"]
    # Locust's own clock of a route starts with the first answer.
    seconds = statistics["last_request_timestamp"] - statistics["start_time"] + statistics["min_response_time"] / 1e3
    times = sorted((float(time), many) for time, many in statistics["response_times"].items())
    each = np.repeat([time for time, _ in times], [many for _, many in times])
    latencies = {name: float(np.percentile(each, share)) for name, share in _SHARES.items() if count >= _NEEDED[name]}
    counts = {"requests": count, "failures": statistics["num_failures"]}
    return {"qps": four_digits(count / seconds), **latencies, **counts}


def _measured(given: Namespace) -> Row:
    manifest, plan = Bundle.open(given.bundle).manifest, [int(number) for number in given.users.split(",")]
    inputs = Given(given.bundle, given.model, given.adapter, given.bos_token, given.device)
    described, runs = [], []
    with ExitStack() as stack:
        running = []
        for system in systems(inputs):
            if system.name in (OURS, LLM):
                one = start(system, _LIMIT_S, stack)
                if not isinstance(one, Running):
                    raise LoadError(f"{system.label}: {one}.")
                running.append(one)
                what = {"name": system.name, "label": system.label, "what": system.what}
                described.append(what | {"command": typed_command(["python", *system.command[1:]])})
        for turn in range(given.rounds):
            for users in plan:
                for one in running:
                    row = row_of(search_by_users(one.server.url, given.queries, users, given.seconds))
                    runs.append({"system": one.system.name, "users": users, "round": turn, **row})
                    print(json.dumps(runs[-1]), file=sys.stderr)
    return {
        "bundle": {"name": manifest.name, "documents": manifest.documents, "dimension": manifest.dimension},
        "queries": given.queries.name,
        "model": Path(given.model).name,
        "locust": version("locust"),
        "plan": {"users": plan, "seconds": given.seconds, "rounds": given.rounds},
        "systems": described,
        "runs": runs,
    }


@program(
    BUNDLE,
    QUERIES,
    *MODEL,
    option("--users", "1,2,4,8,16,32", "numbers of users, with commas"),
    option("--seconds", 10.0, "length of every run"),
    option("--rounds", 3, "how often everything is measured"),
    option("--results", Path, "JSON file to write"),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    write_json(given.results, origin() | {"command": given.command} | _measured(given))


if __name__ == "__main__":
    sys.exit(main())
