"""Users for locust: each searches, reads the answer, and searches again (closed loop).

locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --queries FOLDER --headless -u 16 -t 30s
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from time import sleep
from typing import Any, ClassVar

from locust import FastHttpUser, constant, events, task
from locust.env import Environment

from lightretriever.loadtest.generator import read_texts


class Searcher(FastHttpUser):
    """A user who searches without a pause."""

    wait_time = constant(0)
    k: ClassVar[int]
    queries: ClassVar[Iterator[str]]

    @task
    def search(self) -> None:
        """Search for the next query."""
        body = {"query": next(self.queries), "k": self.k}
        with self.rest("POST", "/search", json=body, name="/search") as answer:
            if answer.status_code == 200 and (answer.js is None or answer.js.get("degraded")):
                answer.failure("a leg is missing in the answer")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--queries", required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--k", type=int, default=10, help="hits asked for (10)")
    parser.add_argument("--seed", type=int, default=7, help="order of the queries (7)")


def _begin(environment: Environment, **_: Any) -> None:
    """Read the queries, and update gevent's clock, which stands still meanwhile: a run would end early by that time."""
    if (options := environment.parsed_options) is not None:
        Searcher.k = options.k
        Searcher.queries = cycle(read_texts(Path(options.queries), options.seed))
    sleep(0.001)  # locust has patched this to gevent's own


events.init_command_line_parser.add_listener(_arguments)
events.init.add_listener(_begin)
