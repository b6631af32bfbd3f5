"""The tables of docs/howto/two-phase.md, from the results of `loadtest.two_phase`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lightretriever.loadtest.results.tables import markdown_table

__all__ = ["two_phase_tables"]

Row = Mapping[str, Any]


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
    columns = ["nDCG@10 sparse", "nDCG@10 hybrid", "of top 10", "of top 100"]
    keys = ("sparse_ndcg@10", "hybrid_ndcg@10", "of_top_10", "of_top_100")
    return [f"Means of {len(bundles)} bundles ({sets}):\n", *_table(judged, columns, keys)]


def _times(timed: Sequence[Row]) -> list[str]:
    documents = " and ".join(dict.fromkeys(f"{row['documents']:,}" for row in timed))
    lines = [
        f"The sparse leg for the top 100 of {documents} passages, in milliseconds; {timed[0]['queries']:,} questions, "
        "every cut in turn:\n"
    ]
    for backend in dict.fromkeys(row["backend"] for row in timed):
        rows = [row for row in timed if row["backend"] == backend]
        columns = [f"{backend} p50", "p99", "of top 10", "of top 100"]
        lines += _table(rows, columns, ("p50_ms", "p99_ms", "of_top_10", "of_top_100"))
    return lines


def _table(rows: Sequence[Row], columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Tabulate the means of each cut's rows, a line for each cut."""
    cuts = dict.fromkeys((row["share"], row["depth"]) for row in rows)
    lines = []
    for share, depth in cuts:
        of_cut = [row for row in rows if (row["share"], row["depth"]) == (share, depth)]
        label = "exact" if share is None else f"{share}, {depth}"
        lines.append([label, *(f"{fmean(row[key] for row in of_cut):.3f}" for key in keys)])
    return ["\n".join([*markdown_table(["share, depth", *columns], lines), ""])]
