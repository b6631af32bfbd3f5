"""How often `matched` is right: queries of each collection against the bundles of all.

    python -m research.quality.matched RESULT NAME=BUNDLE=DATA NAME=BUNDLE=DATA …

DATA is a folder in BEIR's layout with queries and `qrels/test.tsv`. A bundle's `own` queries should match; again
without the documents that are judged relevant, which a rule hides (`removed`), they should match less; the queries of
the `others`, which are about something else, should not. Each collection gives at most 200 queries that have relevant
documents and at most 200 characters, from all over its file. RESULT gets the shares of `strong`, `weak` and `none` by
the dense score alone (mode `dense`) and as answers of both legs say (`hybrid`), as JSON. Where two collections share a
subject, a query of the one may well match in the other, and a document that is not judged may answer a query, too, so
the figures for removed and others are on the cautious side.
"""

import json
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import read_qrels, read_queries
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.evaluation.report import environment
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import write_json
from lightretriever.service.errors import NoTokensError
from lightretriever.service.schemas import Mode, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.rules import RulesFile
from lightretriever.service.settings import Settings

__all__ = ["Judged", "main", "measure"]

_MOST: Final = 200
_MOST_HIDDEN: Final = 100  # documents of a rule
_LEVELS: Final = ("strong", "weak", "none")
_MODES: Final[tuple[Mode, ...]] = ("dense", "hybrid")
Judged = dict[str, list[str]]
"""Ids of relevant documents by the text of the query."""


def measure(bundles: dict[str, Path], queries: dict[str, Judged]) -> dict[str, dict[str, Any]]:
    """By bundle, the thresholds, and by mode the shares of each level for the queries `own`, `removed` and `others`.

    BundleError for a bundle without thresholds.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, path in bundles.items():
        bundle = Bundle.open(path)
        thresholds = bundle.manifest.tasks[bundle.manifest.default_task].match
        if thresholds is None:
            raise BundleError(
                f"{path}: the bundle has no thresholds.", remedy="Build it with a tokenizer of at least 1,000 words."
            )
        strangers = [text for other, texts in queries.items() if other != name for text in texts]
        with tempfile.TemporaryDirectory() as folder:
            found[name] = {
                "thresholds": thresholds.model_dump(),
                "own": _shares(bundle, queries[name]),
                "removed": _shares(bundle, queries[name], _hiding(queries[name], Path(folder) / "rules.json")),
                "others": _shares(bundle, strangers),
            }
    return found


def _hiding(judged: Judged, file: Path) -> RulesFile:
    """Rules that hide the relevant documents of each query."""
    hidden = [
        {"query": text, "documents": ids[start : start + _MOST_HIDDEN]}
        for text, ids in judged.items()
        for start in range(0, len(ids), _MOST_HIDDEN)
    ]
    file.write_text(json.dumps({"hidden": hidden}), encoding="utf-8")
    return RulesFile(file)


def _shares(bundle: Bundle, texts: Iterable[str], rules: RulesFile | None = None) -> dict[str, dict[str, float]]:
    counts: dict[Mode, Counter[str]] = {mode: Counter() for mode in _MODES}
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000), rules=rules) as engine:
        for text in texts:
            for mode in _MODES:
                try:
                    answer = engine.search(SearchRequest(query=text, k=1, fields=[], mode=mode))
                except NoTokensError:
                    counts[mode]["none"] += 1
                else:
                    counts[mode][answer.matched or "none"] += 1
    return {mode: {level: round(of[level] / max(1, of.total()), 3) for level in _LEVELS} for mode, of in counts.items()}


def _judged(folder: Path) -> Judged:
    """A sample of the queries of a collection that have relevant documents."""
    queries, judged = read_queries(folder), dict[str, list[str]]()
    for query, grades in read_qrels(folder / "qrels" / "test.tsv").items():
        ids = [document for document, grade in grades.items() if grade > 0]
        if ids and query in queries and len(queries[query]) <= 200:  # the longest query of a rule
            judged[queries[query]] = ids
    texts = list(judged)
    return {text: judged[text] for text in texts[:: max(1, -(-len(texts) // _MOST))]}


@program(
    option("result", Path, "JSON file to write"),
    option("collections", None, "at least two", nargs="+", metavar="NAME=BUNDLE=DATA"),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    parts = [collection.split("=") for collection in given.collections]
    if len(parts) < 2 or any(len(part) != 3 for part in parts):
        raise LoadError("There are fewer than two collections.", remedy="Give each as NAME=BUNDLE=DATA.")
    queries = {name: _judged(Path(data)) for name, _, data in parts}
    found = measure({name: Path(bundle) for name, bundle, _ in parts}, queries)
    write_json(given.result, {"bundles": found, "environment": environment()})


if __name__ == "__main__":
    sys.exit(main())
