"""What the demo answers to queries that a user of Debian would type, of which each has packages that should be found.

    python -m research.quality.demo_queries BUNDLE RESULT

`demo/queries.jsonl` has the queries. They and the packages that answer them were written by reading the corpus, before
any answer was looked at; two thirds are kept apart (`kept_apart`), and no setting is chosen by them. RESULT gets, as
JSON, for those kept apart and the others: how many have an expected package among the first five hits, how many are
called `strong` although they have none, and the answers.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.evaluate import environment
from lightretriever.loadtest.program import option, program
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from research.record import write_json

QUERIES: Final = Path(__file__).resolve().parents[2] / "demo" / "queries.jsonl"
_FIRST: Final = 5


def read_queries(file: Path = QUERIES) -> list[dict[str, Any]]:
    """The queries, each with the ids of the `expected` packages, and whether it is `kept_apart`."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def measure(bundle: Path, queries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the queries kept apart and of the others, and the answer to each."""
    groups = {
        "looked at": {"queries": 0, "found": 0, "strong without": 0},
        "kept apart": {"queries": 0, "found": 0, "strong without": 0},
    }
    answers = []
    with SearchEngine.open(Bundle.open(bundle), Settings(deadline_ms=60_000)) as engine:
        for query in queries:
            answer = engine.search(SearchRequest(query=query["query"], k=_FIRST, fields=[]))
            ids = [hit.id for hit in answer.hits]
            found = bool(set(ids) & set(query["expected"]))
            group = groups["kept apart" if query["kept_apart"] else "looked at"]
            group["queries"] += 1
            group["found"] += found
            group["strong without"] += answer.matched == "strong" and not found
            answers.append({"query": query["query"], "found": found, "matched": answer.matched, "hits": ids})
    return {**groups, "answers": answers}


@program(option("bundle", Path, "the demo bundle"), option("result", Path, "JSON file to write"))
def main(given: Namespace) -> None:
    """Measure and write."""
    write_json(given.result, {**measure(given.bundle, read_queries()), "environment": environment()})


if __name__ == "__main__":
    sys.exit(main())
