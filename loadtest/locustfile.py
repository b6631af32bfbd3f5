"""Users for locust: each searches, reads the answer, and searches again (closed loop).

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --queries FOLDER --headless -u 16 -t 30s

`--queries` is a folder with queries.jsonl(.gz); without it a handful of words are asked for. `--latencies FILE` writes
what `loadtest.generator` prints, from exact times: locust's own report rounds to milliseconds.
"""

import json
import random
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, ClassVar

from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.tally import Tally
from locust import FastHttpUser, constant, events, task
from locust.env import Environment

__all__ = ["Searcher"]

_WORDS = ("music player", "text editor", "how to read a file", "network traffic", "chess game")
_REFUSALS = (429, 503, 504)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--queries", default="", help="folder with queries.jsonl(.gz)")
    parser.add_argument("--k", type=int, default=10, help="hits asked for (10)")
    parser.add_argument("--seed", type=int, default=7, help="order of the queries (7)")
    parser.add_argument("--latencies", default="", help="file to write counts and exact latencies to, as JSON")


class Searcher(FastHttpUser):
    """Someone who searches without a pause."""

    wait_time = constant(0)
    k: ClassVar[int]
    queries: ClassVar[Iterator[str]]
    tally: ClassVar[Tally]
    began: ClassVar[float]

    @task
    def search(self) -> None:
        """Ask for the next query."""
        body = {"query": next(self.queries), "k": self.k}
        with self.rest("POST", "/search", json=body, name="/search") as answer:
            if answer.status_code == 200 and (answer.js is None or answer.js.get("degraded")):
                answer.failure("a leg is missing in the answer")


def _look_at_the_clock(**_: Any) -> None:
    """gevent's clock stands still while modules are imported, and a run would end early by as much."""
    sleep(0.001)  # locust has made this gevent's own


def _options(environment: Environment) -> Namespace:
    options: Namespace | None = environment.parsed_options
    if options is None:
        raise RuntimeError("locust was started without a command line")
    return options


def _begin(environment: Environment, **_: Any) -> None:
    options = _options(environment)
    Searcher.k = options.k
    texts = read_texts(Path(options.queries), options.seed) if options.queries else list(_WORDS)
    random.Random(options.seed).shuffle(texts)
    Searcher.queries, Searcher.tally, Searcher.began = cycle(texts), Tally(), perf_counter()


def _count(response_time: float, response: Any, exception: Exception | None, **_: Any) -> None:
    status = response.status_code if response is not None else 0
    tally = Searcher.tally
    if status == 200:
        tally.seconds.append(response_time / 1e3)
        tally.count("answered")
        tally.count("degraded", int(exception is not None))
    else:
        tally.count("refused" if status in _REFUSALS else "failed")


def _end(environment: Environment, **_: Any) -> None:
    options = _options(environment)
    if options.latencies:
        wall = perf_counter() - Searcher.began
        result = {"connections": options.num_users, **Searcher.tally.summary(wall), "wall_s": round(wall, 3)}
        Path(options.latencies).write_text(json.dumps(result), encoding="utf-8")


events.init_command_line_parser.add_listener(_arguments)
events.init.add_listener(_look_at_the_clock)
events.test_start.add_listener(_begin)
events.request.add_listener(_count)
events.test_stop.add_listener(_end)
