"""What all processors together get done of what one does: how far a service can grow by processes.

    python -m lightretriever.loadtest.processors BUNDLE --queries FOLDER --results docs/results/speed.json

counting   sums of whole numbers, which need no memory
reading    an array too large for the caches, from one end to the other
searching  the service's whole search in process, a few under way at a time: no HTTP, no clients, nothing written

There is one process for each processor, bound to it. In every round each work is done by the first process alone, and
then by all of them at the same time. Two processors that are halves of one core, or share caches and memory, don't do
twice the work of one. What all of them search is about what a service would answer if HTTP and clients cost nothing.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.loadtest.record import record
from lightretriever.loadtest.wire import LoadError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine

__all__ = ["KEY", "WORKS", "main", "measure"]

KEY: Final = "processors"
WORKS: Final = ("counting", "reading", "searching")
_NUMBERS: Final = 20_000
_ARRAY: Final = 256 << 20
_UNDER_WAY: Final = 4

Rates = dict[str, list[tuple[float, float]]]
"""By work and round: how often a second one process did it alone, and all of them together."""


def measure(path: Path, texts: Sequence[str], processors: Sequence[int], rounds: int, seconds: float) -> Rates:
    """Do every work for `seconds`, once alone and once together, in each of `rounds`.

    LoadError if a process fails, or there are no texts.
    """
    if not texts:
        raise LoadError("There are no queries to search for.")
    rates: Rates = {work: [] for work in WORKS}
    with _workers(path, texts, processors) as workers:
        for _ in range(rounds):
            for work in WORKS:
                alone = _rate(workers[:1], work, seconds)
                rates[work].append((alone, _rate(workers, work, seconds)))
    return rates


@contextmanager
def _workers(path: Path, texts: Sequence[str], processors: Sequence[int]) -> Iterator[list[Connection]]:
    """One process for each processor, ready to work."""
    context = get_context("spawn")
    pairs = [context.Pipe() for _ in processors]
    started = []
    for number, (processor, (_, theirs)) in enumerate(zip(processors, pairs, strict=True)):
        given = (path, _turned(texts, number, len(processors)), processor, theirs)
        started.append(context.Process(target=_work, args=given, daemon=True))
    try:
        for process, (_, theirs) in zip(started, pairs, strict=True):
            process.start()
            theirs.close()
        workers = [ours for ours, _ in pairs]
        for worker in workers:
            _answer(worker)
        yield workers
    finally:
        for process in started:
            process.terminate()
            process.join()


def _turned(texts: Sequence[str], number: int, of: int) -> Sequence[str]:
    """All texts, begun at another place by each of so many processes."""
    start = number * len(texts) // of
    return [*texts[start:], *texts[:start]]


def _work(path: Path, texts: Sequence[str], processor: int, orders: Connection) -> None:
    """In a process of its own: does what it is told, for so many seconds, and says how often a second."""
    os.sched_setaffinity(0, {processor})
    array = np.ones(_ARRAY, np.uint8)
    requests = (SearchRequest(query=text) for text in cycle(texts))
    with SearchEngine.open(Bundle.open(path), hashed=False) as engine:
        engine.warm_up()
        works: dict[str, Callable[[float], int]] = {
            "counting": lambda end: _repeated(lambda: sum(range(_NUMBERS)), end),
            "reading": lambda end: _repeated(array.max, end),
            "searching": lambda end: _searched(engine, requests, end),
        }
        orders.send(0.0)
        while True:
            work, seconds = orders.recv()
            begun = perf_counter()
            orders.send(works[work](begun + seconds) / (perf_counter() - begun))


def _repeated(work: Callable[[], object], end: float) -> int:
    """How often something was done until `end`."""
    done = 0
    while perf_counter() < end:
        work()
        done += 1
    return done


def _searched(engine: SearchEngine, requests: Iterator[SearchRequest], end: float) -> int:
    """How many searches were answered by both legs, begun as the service begins them until `end`."""
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def begin() -> None:
        engine.begin(engine.errands.search(next(requests)), lambda answer, error: answers.put((answer, error)))

    done, under_way = 0, _UNDER_WAY
    for _ in range(_UNDER_WAY):
        begin()
    while under_way:
        answer, error = answers.get()
        if error is not None:
            raise error
        done += not answer["degraded"]
        if perf_counter() < end:
            begin()
        else:
            under_way -= 1
    return done


def _rate(workers: Sequence[Connection], work: str, seconds: float) -> float:
    for worker in workers:
        worker.send((work, seconds))
    return sum(_answer(worker) for worker in workers)


def _answer(worker: Connection) -> float:
    try:
        return float(worker.recv())
    except EOFError:
        raise LoadError("A process that should search failed; the reason is above.") from None


def rows_of(rates: Rates, processors: int, documents: int) -> list[dict[str, Any]]:
    """Rows for the file of speeds: of each work how often a second, by one and by all, and medians of the rounds."""
    facts = {"processors": processors, "documents": documents, "rounds": len(rates["searching"])}
    return [
        {
            "key": KEY,
            "setting": f"{work}, {documents:,} documents" if work == "searching" else work,
            "unit": "times the work of one",
            "value": round(float(np.median([together / alone for alone, together in rates[work]])), 2),
            "one_per_s": float(f"{np.median([alone for alone, _ in rates[work]]):.4g}"),
            "all_per_s": float(f"{np.median([together for _, together in rates[work]]):.4g}"),
            **facts,
        }
        for work in WORKS
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    given = _parser().parse_args(arguments)
    processors = sorted(os.sched_getaffinity(0))
    try:
        texts = list(read_queries(find_file(given.queries, "queries")).values())
        random.Random(given.seed).shuffle(texts)
        documents = Bundle.open(given.bundle).manifest.documents
        rates = measure(given.bundle, texts, processors, given.rounds, given.seconds)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = rows_of(rates, len(processors), documents)
    for row in rows:
        print(
            f"{row['setting']:10s} one {row['one_per_s']:>9,} a second, "
            f"{len(processors)} processors {row['all_per_s']:>9,}, {row['value']} times"
        )
    if given.results is not None:
        command = [
            "python",
            "-m",
            "lightretriever.loadtest.processors",
            *(sys.argv[1:] if arguments is None else arguments),
        ]
        record(given.results, rows, typed_command(command))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What all processors together get done of what one does.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each work in a round, twice (2)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
