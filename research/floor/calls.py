"""Count the calls of our own functions in one plain search, the modules that have them, and the calls into Java.

    python -m research.floor.calls BUNDLE --query "play music from the terminal"

Counted are those of the request's thread, from the bytes of the request to those of the answer. A comprehension counts
as a call until Python 3.12, a method that `dataclass` wrote does not. What Faiss is handed over in a large index runs
in another thread.
"""

import sys
from argparse import Namespace
from collections import Counter
from types import FrameType
from typing import Any, Final, NamedTuple

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse import jvm
from lightretriever.loadtest.program import BUNDLE, option, program
from lightretriever.service.http.json import json_response, parse
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine

__all__ = ["Calls", "count_calls", "main"]

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
    functions: Counter[str] = Counter()
    java_call = jvm.java_call.__code__
    java = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal java
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(_OURS) and frame.f_code.co_filename != "<string>":
            functions[f"{module.removeprefix('lightretriever.')}:{frame.f_code.co_qualname}"] += 1
            java += frame.f_code is java_call

    sys.setprofile(look)
    try:
        json_response(engine.answer(parse(body, SearchRequest)))
    finally:
        sys.setprofile(None)
    return Calls(functions, java)


@program(
    BUNDLE,
    option("--query", "play music from the terminal"),
    option("--functions", False, "print each function's calls"),
)
def main(given: Namespace) -> None:
    """Count and print."""
    with SearchEngine.open(Bundle.open(given.bundle)) as engine:
        engine.warm_up()
        calls = count_calls(engine, SearchRequest(query=given.query).model_dump_json(exclude_unset=True).encode())
    if given.functions:
        for name, count in calls.functions.most_common():
            print(f"{count:5} {name}")
    print(f"{calls.functions.total()} calls of our functions in {len(calls.modules)} modules, {calls.java} into Java")


if __name__ == "__main__":
    sys.exit(main())
