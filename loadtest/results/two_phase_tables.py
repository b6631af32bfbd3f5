"""The tables of docs/howto/two-phase.md, from the results of `loadtest.comparison.two_phase`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from lightretriever.loadtest.results.tables import markdown_table

__all__ = ["two_phase_tables"]

Row = Mapping[str, Any]
Cut = tuple[float | None, int | None]
_FOUND: Final = {"of_top_10": "of top 10", "of_top_100": "of top 100"}


def two_phase_tables(file: Path) -> list[str]:
    """Give the tables of quality and of times, with their origin; none if nothing is recorded."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    origins = dict.fromkeys(f"{part['machine']}, {part['date'][:10]}" for part in content.values())
    return [
        *(_quality(content["judged"]["rows"]) if "judged" in content else []),
        *(_times(content["timed"]["rows"]) if "timed" in content else []),
        f"{'; '.join(origins)}. [{file.name}](../results/{file.name}).\n",
    ]


def _quality(judged: Sequence[Row]) -> list[str]:
    bundles = dict.fromkeys((row["bundle"], row["dataset"]) for row in judged)
    sets = ", ".join(dict.fromkeys(dataset for _, dataset in bundles))
    columns = ["nDCG@10 sparse", "nDCG@10 hybrid", *_FOUND.values()]
    keys = ["sparse_ndcg@10", "hybrid_ndcg@10", *_FOUND]
    rows = [[_label(cut), *_means(of_cut, keys)] for cut, of_cut in _by_cut(judged)]
    return [f"Means of {len(bundles)} bundles ({sets}):\n", _table(columns, rows)]


def _times(timed: Sequence[Row]) -> list[str]:
    documents = " and ".join(dict.fromkeys(f"{row['documents']:,}" for row in timed))
    backends = list(dict.fromkeys(row["backend"] for row in timed))
    columns = [f"{backend} {name}" for backend in backends for name in ("p50", "p99")]
    rows = []
    for cut, of_cut in _by_cut(timed):
        times = [text for row in of_cut for text in _means([row], ["p50_ms", "p99_ms"])]
        rows.append([_label(cut), *times, *_means(of_cut, list(_FOUND))])
    return [
        f"The sparse leg for the top 100 of {documents} passages, in milliseconds; {timed[0]['queries']:,} questions, "
        "every cut in turn:\n",
        _table([*columns, *_FOUND.values()], rows),
    ]


def _by_cut(rows: Sequence[Row]) -> list[tuple[Cut, list[Row]]]:
    cuts = dict.fromkeys((row["share"], row["depth"]) for row in rows)
    return [(cut, [row for row in rows if (row["share"], row["depth"]) == cut]) for cut in cuts]


def _label(cut: Cut) -> str:
    share, depth = cut
    return "exact" if share is None else f"{share}, {depth}"


def _means(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    return [f"{fmean(row[key] for row in rows):.3f}" for key in keys]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([*markdown_table(["share, depth", *columns], rows), ""])
