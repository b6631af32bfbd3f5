"""The process of one library: builds its index if it is missing, opens it, and searches for queries from stdin.

    python -m research.libraries.worker JSON

JSON holds the library's `name`, the settings of its index (`build`), the folders `bundle`, `work` and `layout`, whose
queries lay out the dense index. It speaks as `research.harness.turns.Worker` hears.
"""

import gc
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.loadtest.generator import read_texts
from research.libraries.dense import DENSE
from research.libraries.library import Index, Query, Row, Source
from research.libraries.sparse import SPARSE

__all__ = ["LIBRARIES", "answer", "main"]

LIBRARIES: Final = {"sparse": SPARSE, "dense": DENSE}
"""Libraries by leg and name."""


def answer(index: Index, setting: Row, queries: Sequence[Query]) -> Row:
    """Search for n queries, one after the other: `seconds` (n,) and `found`, ordinals (m,) for each."""
    index.set(setting)
    prepared = [index.prepare(query) for query in queries]
    seconds, answers = [], []
    for query in prepared:
        begun = perf_counter()
        answers.append(index.search(query))
        seconds.append(perf_counter() - begun)
    return {"seconds": seconds, "found": [index.numbers(one) for one in answers]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve stdin; returns the exit status."""
    (text,) = sys.argv[1:] if arguments is None else arguments
    given = json.loads(text)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    library = (SPARSE | DENSE)[given["name"]]
    try:
        layout = read_texts(Path(given["layout"]), 0) if given["layout"] else []
        source = Source(Bundle.open(Path(given["bundle"])), Path(given["work"]), layout)
        index = library.open(source, given["build"])
    except (ImportError, LightRetrieverError) as error:
        print(error, file=sys.stderr)
        return 2
    gc.collect()
    gc.freeze()
    facts: Row = {"version": version(library.package), "settings": index.settings}
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        found = answer(index, asked["setting"], [Query.of(row) for row in asked["queries"]])
        print(json.dumps(found), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
