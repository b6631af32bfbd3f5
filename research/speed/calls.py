"""Count the calls of our own functions in one plain search, the modules that have them, and the calls into Java, and
time the way into Java alone.

    python -m research.speed.calls BUNDLE --query "play music from the terminal"

Counted are those of the request's thread, from the bytes of the request to those of the answer. A comprehension counts
as a call until Python 3.12, a method that `dataclass` wrote does not. What Faiss is handed over in a large index runs
in another thread.
"""

import sys
from argparse import Namespace
from collections import Counter
from statistics import median
from time import thread_time
from types import FrameType
from typing import Any, Final, NamedTuple

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse import jvm
from lightretriever.loadtest.program import BUNDLE, option, program
from lightretriever.service.http.json import json_response, parse
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine

__all__ = ["Calls", "count_calls", "empty_call_s", "main"]

_EMPTY_CALLS: Final = 10_000
_OURS: Final = ("lightretriever.artifacts.", "lightretriever.service.")


class Calls(NamedTuple):
    """Calls by function, as MODULE:NAME, and how many of them go into Java."""

    functions: Counter[str]
    java: int

    @property
    def modules(self) -> set[str]:
        """The modules whose functions were called."""
        return {name.partition(":")[0] for name in self.functions}


def count_calls(engine: SearchEngine, body: bytes) -> Calls:
    """Count the calls of one search, from the bytes of the request to those of the answer. The engine must be warm."""
    found: Counter[str] = Counter()
    java_call = jvm.java_call.__code__
    java = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal java
        if event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS) and frame.f_code.co_filename != "<string>":
            found[f"{module.removeprefix('lightretriever.')}:{frame.f_code.co_qualname}"] += 1
            java += frame.f_code is java_call

    sys.setprofile(look)
    try:
        json_response(engine.answer(parse(body, SearchRequest)))
    finally:
        sys.setprofile(None)
    return Calls(found, java)


def empty_call_s() -> float:
    """The processor time of a call into Java that does nothing, in seconds: the median of five series. The JVM must
    run."""
    nothing = jvm.java_class("java.lang.Thread").onSpinWait
    return median(_series_s(nothing) for _ in range(5)) / _EMPTY_CALLS


def _series_s(function: Any) -> float:
    started = thread_time()
    for _ in range(_EMPTY_CALLS):
        jvm.java_call(function)
    return thread_time() - started


@program(
    BUNDLE,
    option("--query", "play music from the terminal"),
    option("--functions", False, "print each function's calls"),
)
def main(given: Namespace) -> None:
    """Count and print."""
    with SearchEngine.open(Bundle.open(given.bundle)) as engine:
        engine.warm_up()
        empty_us = empty_call_s() * 1e6
        calls = count_calls(engine, SearchRequest(query=given.query).model_dump_json(exclude_unset=True).encode())
    if given.functions:
        for name, count in calls.functions.most_common():
            print(f"{count:5} {name}")
    modules = len(calls.modules)
    print(f"{calls.functions.total()} calls of our functions in {modules} modules, {calls.java} of them into Java")
    print(f"A call into Java that does nothing takes {empty_us:.2f} µs of processor time")


if __name__ == "__main__":
    sys.exit(main())
