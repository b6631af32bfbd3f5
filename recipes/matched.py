"""How often `matched` is right: queries of each collection against the bundles of all.

    python -m recipes.matched RESULT NAME=BUNDLE=QUERIES NAME=BUNDLE=QUERIES …

A bundle's own queries should match; those of the other collections, which are about something else, should not. Each
collection gives at most 200 queries, from all over its file. RESULT gets the thresholds, and the shares of `strong`,
`weak` and `none`, as JSON. Where two collections share a subject, a query of the one may well match in the other, so
the figures for unrelated queries are on the cautious side.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.parts import MatchThresholds
from lightretriever.artifacts.bundle.query_sample import query_vectors
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.thresholds import match_thresholds
from lightretriever.artifacts.corpus.beir import read_queries
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.tokens.table import TokenTable

__all__ = ["main", "measure"]

_MOST: Final = 200
_BANDS: Final = ("strong", "weak", "none")
Shares = dict[str, float]


def measure(bundles: dict[str, Path], queries: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """By bundle, the thresholds, and the shares of each band for its `own` queries and the `others`' of all.

    ValueError for a bundle whose tokenizer has too few words.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, path in bundles.items():
        bundle = Bundle.open(path)
        table = bundle.table(bundle.manifest.default_task)
        thresholds = match_thresholds(bundle.dense(), table, bundle.tokenizer())
        if thresholds is None:
            raise ValueError(f"{path}: its tokenizer has too few words for thresholds")
        strangers = [text for other, texts in queries.items() if other != name for text in texts]
        found[name] = {
            "thresholds": thresholds.model_dump(),
            "own": _shares(bundle, table, thresholds, queries[name]),
            "others": _shares(bundle, table, thresholds, strangers),
        }
    return found


def _shares(bundle: Bundle, table: TokenTable, thresholds: MatchThresholds, texts: Sequence[str]) -> Shares:
    index, vectors = bundle.dense(), query_vectors(table, list(bundle.tokenizer().as_queries(texts)))
    scores = [float(index.search(vector, 1)[1][0]) for vector in vectors]
    counts = Counter(
        "strong" if score >= thresholds.strong else "weak" if score >= thresholds.weak else "none" for score in scores
    )
    return {band: round(counts[band] / len(scores), 3) for band in _BANDS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; returns the exit status."""
    parser = argparse.ArgumentParser(description="How often `matched` is right.")
    parser.add_argument("result", type=Path, help="JSON file to write")
    parser.add_argument("collections", nargs="+", metavar="NAME=BUNDLE=QUERIES", help="at least two")
    given = parser.parse_args(arguments)
    parts = [collection.split("=") for collection in given.collections]
    if len(parts) < 2 or any(len(part) != 3 for part in parts):
        parser.error("give at least two collections, each as NAME=BUNDLE=QUERIES")
    try:
        queries = {name: _sampled(list(read_queries(Path(file)).values())) for name, _, file in parts}
        found = measure({name: Path(bundle) for name, bundle, _ in parts}, queries)
    except (LightRetrieverError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    given.result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _sampled(texts: list[str]) -> list[str]:
    return texts[:: max(1, -(-len(texts) // _MOST))]


if __name__ == "__main__":
    sys.exit(main())
