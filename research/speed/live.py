"""Measures documents written beside a bundle on one machine, in process.

    python -m research.speed.live BUNDLE --results docs/results/live.json

Documents are those of the bundle under new ids, with their vectors and impacts; of them, 5 % of the bundle's are
deleted. Queries are the first words of documents.

    one by one, together    writes acknowledged a second, by one writer and by 16, whose writes share an fsync
    bulk                    the same of calls with 1,000 documents each
    found                   milliseconds until another process' searches see a write
    overlay                 searches beside so many written documents: p50, p99, and searches a second by 2 threads; in
                            turns with them in the bundle alone, and in a bundle that was made of all documents; of all
                            three, p50 of time and of processor time, which other work on the machine changes less
    start, replay           seconds to open the largest journal, with its checkpoint and without
    compaction              seconds to make a bundle of all

The results file has the figures of each bundle by its number of documents.
"""

import json
import os
import resource
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, Final

import numpy as np
import orjson

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.live.compact import compact
from lightretriever.artifacts.live.documents import Change, read_fields
from lightretriever.loadtest.program import BUNDLE, option, program
from lightretriever.loadtest.record import four_digits, origin, write_json
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

__all__ = ["main", "measure"]

_SIZES: Final = (0, 1_000, 10_000)
_WRITES: Final = 500
_WRITERS: Final = 16
_BULK: Final = 1_000
_SEEN: Final = 100
_DELETED: Final = 20  # one in so many documents of the bundle
_SEARCHES: Final = 1_000
_ROUNDS: Final = 3
_UNTIL_S: Final = 600.0


class _Copies:
    """Documents of a bundle under new ids."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self._numbers = bundle, count()
        size = min(bundle.manifest.documents, 10_000)
        with bundle.sparse() as sparse:
            self.ids = sparse.ids()
            self._raws = sparse.documents(np.arange(size))
            self._rows = sparse.rows(0, size)
        self._vectors = None if bundle.manifest.dense is None else bundle.dense().vectors(np.arange(size))

    def take(self, size: int) -> list[Change]:
        """Give the next documents."""
        return [self._change(next(self._numbers)) for _ in range(size)]

    def _change(self, number: int) -> Change:
        place = number % len(self._raws)
        indptr, names, terms, impacts = self._rows
        part = slice(indptr[place], indptr[place + 1])
        own = [names[term] for term in terms[part].tolist()]
        fields = orjson.loads(self._raws[place])
        document_id = f"copy-{number}"
        del fields["_id"]
        document = read_fields(document_id, fields, self.bundle.manifest)
        vector = None if self._vectors is None else self._vectors[place]
        return Change(document_id, document, vector, dict(zip(own, impacts[part].tolist(), strict=True)))


def measure(bundle: Bundle, sizes: Sequence[int], folder: Path, *, compacted: bool = True) -> dict[str, Any]:
    """Give all figures, unless `compacted` without those of new bundles; `folder` takes the journals and bundles."""
    copies = _Copies(bundle)
    found: dict[str, Any] = {"documents": bundle.manifest.documents}
    with _engine(bundle, folder / "writes") as engine:
        found["one_by_one_per_s"] = _rate(engine, [[one] for one in copies.take(_WRITES)], 1)
        found["together_per_s"] = _rate(engine, [[one] for one in copies.take(4 * _WRITES)], _WRITERS)
        found["bulk_per_s"] = _rate(engine, [copies.take(_BULK) for _ in range(5)], 1)
        with _engine(bundle, folder / "writes") as other:
            found["found_ms"] = _until_found(engine, other, copies.take(_SEEN))
    found["overlay"] = [_beside(bundle, copies, size, folder / f"live-{size}", compacted=compacted) for size in sizes]
    live = folder / f"live-{sizes[-1]}"
    found["start_s"] = _opening(bundle, live)
    for checkpoint in live.glob("*.checkpoint"):
        shutil.rmtree(checkpoint)
    found["replay_s"] = _opening(bundle, live)
    if compacted:
        begun = perf_counter()
        compact(bundle, live, folder / "new")
        found["compaction_s"] = four_digits(perf_counter() - begun)
    return found


def _beside(bundle: Bundle, copies: _Copies, size: int, live: Path, *, compacted: bool) -> dict[str, float]:
    with ExitStack() as opened:
        engine = opened.enter_context(_engine(bundle, live))
        before = _resident()
        _write(engine, copies, size)
        row = {"written": size, "resident_mb": (_resident() - before) >> 20}
        bundles = [bundle]
        if size and compacted:
            bundles.append(compact(bundle, live, live.with_suffix(".all"))[0])
        others = [opened.enter_context(_engine(one, None)) for one in bundles]
        return row | _searches(engine, others)


def _opening(bundle: Bundle, live: Path) -> float:
    begun = perf_counter()
    with _engine(bundle, live, warm=False):
        return four_digits(perf_counter() - begun)


@contextmanager
def _engine(bundle: Bundle, live: Path | None, *, warm: bool = True) -> Iterator[SearchEngine]:
    with SearchEngine.open(bundle, Settings(live=live, deadline_ms=60_000)) as engine:
        if warm:
            engine.warm_up()
        yield engine


def _live(engine: SearchEngine) -> Callable[[Sequence[Change]], object]:
    live = engine.parts.backends.live
    if live is None:
        raise ValueError("the engine has no journal")
    return lambda changes: live.write(changes, perf_counter() + _UNTIL_S, wait=False)


def _rate(engine: SearchEngine, groups: Sequence[Sequence[Change]], writers: int) -> float:
    write, begun = _live(engine), perf_counter()
    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(write, groups))
    return four_digits(sum(map(len, groups)) / (perf_counter() - begun))


def _until_found(engine: SearchEngine, other: SearchEngine, changes: Sequence[Change]) -> dict[str, float]:
    write, seconds = _live(engine), []
    for change in changes:
        write([change])
        begun = perf_counter()
        while other.parts.backends.documents.ordinal(change.id) is None:
            sleep(0.001)
        seconds.append(perf_counter() - begun)
    return {name: four_digits(float(np.percentile(seconds, p)) * 1e3) for name, p in (("p50", 50), ("p99", 99))}


def _write(engine: SearchEngine, copies: _Copies, size: int) -> None:
    write = _live(engine)
    for _ in range(size // _BULK):
        write(copies.take(_BULK))
    if size:
        write([Change(document_id) for document_id in copies.ids[::_DELETED]])


def _searches(engine: SearchEngine, others: Sequence[SearchEngine]) -> dict[str, float]:
    """Search in all engines in turns; `others` are that of the bundle alone, and that of a bundle of all documents."""
    queries = engine.parts.documents.probes(_SEARCHES)
    asked = [SearchRequest(query=queries[number % len(queries)]) for number in range(_SEARCHES)]
    engines = [engine, *others]
    seconds = np.zeros((_ROUNDS, len(asked), len(engines)))  # the JVM compiles what it needs before the last round
    processor = np.zeros_like(seconds)
    for turn, place, which in np.ndindex(seconds.shape):
        begun, used = perf_counter(), process_time()
        engines[which].answer(asked[place])
        seconds[turn, place, which] = perf_counter() - begun
        processor[turn, place, which] = process_time() - used
    begun = perf_counter()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(engine.answer, asked))
    rate = len(asked) / (perf_counter() - begun)
    figures = {
        "p99_ms": four_digits(float(np.percentile(seconds[-1, :, 0], 99)) * 1e3),
        "searches_per_s": four_digits(rate),
    }
    for which, name in zip(range(len(engines)), ("", "bundle_", "rebuilt_"), strict=False):
        for what, times in (("p50_ms", seconds), ("cpu_p50_ms", processor)):
            figures[name + what] = four_digits(float(np.percentile(times[-1, :, which], 50)) * 1e3)
    return figures


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * resource.getpagesize()


@program(
    BUNDLE,
    option("--sizes", list(_SIZES), "numbers of written documents"),
    option("--no-compaction", False, "make no new bundles, which takes long"),
    option("--results", None, type=Path),
)
def main(given: Namespace) -> None:
    """Measure, print and write."""
    load = os.getloadavg()[0]  # of other work, before this begins
    with tempfile.TemporaryDirectory(dir=given.bundle.absolute().parent) as folder:
        found = measure(Bundle.open(given.bundle), given.sizes, Path(folder), compacted=not given.no_compaction)
    if given.results is not None:
        runs = json.loads(given.results.read_text("utf-8")) if given.results.exists() else {}
        run = {**origin(), "load": round(load, 1), "command": given.command, **found}
        write_json(given.results, {**runs, f"{found['documents']}": run})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
