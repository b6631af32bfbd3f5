"""The comparison with other libraries as tables, and its goals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.report import markdown_table

__all__ = ["RATIOS", "Ratio", "library_tables"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Ratio:
    """What is divided, in a leg: `figures` (p50, p99 or requests/s) of `ours` by those of the best of the `rivals`. The
    goal is at most `bound`, or at least where more is better."""

    what: str
    leg: str
    ours: str
    rivals: Sequence[str]
    figures: Sequence[str]
    bound: float

    @property
    def goal(self) -> str:
        """The goal in words."""
        return f"{'≥' if 'qps' in self.figures else '≤'} {self.bound}"

    def reached(self, row: Row) -> str:
        """Say whether a row reaches the goal."""
        more = "qps" in self.figures
        values = [row[figure] for figure in self.figures]
        if not all(value >= self.bound if more else value <= self.bound for value in values):
            return "no"
        return "yes" if row["equal"] else "yes; no setting of it answers as well"


_SPARSE: Final = ("p50", "p99")
RATIOS: Final[Mapping[str, Ratio]] = {
    "sparse_vs_bm25": Ratio("Lucene, impacts ÷ BM25 on words", "sparse", "lucene", ["bm25"], _SPARSE, 1.1),
    "dense_ood": Ratio(
        "requests/s, query-aware layout ÷ the best other index",
        "dense",
        "query-aware",
        ["ivf-pq", "hnsw", "rabitq", "usearch", "scalable-vs"],
        ["qps"],
        1.3,
    ),
}
"""Ratios by key, in the order of the table."""


def library_tables(file: Path) -> list[str]:
    """Give the ratios with their goals, and a table of libraries for each corpus; none if nothing is recorded."""
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.is_file() else []
    compared = [row for key in RATIOS for row in rows if row["key"] == key and "against" in row]
    if not compared:
        return []
    cells = [_ratio(row, RATIOS[row["key"]]) for row in compared]
    lines = ["### Against other libraries", "", "One thread, the same encoded queries, 100 documents each.", ""]
    lines += [*markdown_table(["", "against", "ratio", "interval of 95 %", "goal", "reached"], cells), ""]
    libraries = [row for row in rows if row["key"] == "library"]
    for corpus in dict.fromkeys(row["corpus"] for row in libraries):
        lines += _libraries(corpus, [row for row in libraries if row["corpus"] == corpus])
    return ["\n".join(lines)]


def _ratio(row: Row, goal: Ratio) -> list[str]:
    figures, intervals = zip(*(_figure(row, name) for name in goal.figures), strict=True)
    what = [f"{goal.what} ({row['setting']})", str(row["against"])]
    return [*what, ", ".join(figures), ", ".join(intervals), goal.goal, goal.reached(row)]


def _figure(row: Row, name: str) -> tuple[str, str]:
    label = "" if name == "qps" else f"{name} "
    low, high = row[f"{name}_interval"]
    return f"{label}{row[name]:g}", f"{low:g}–{high:g}"


def _libraries(corpus: str, rows: Sequence[Row]) -> list[str]:
    quality = ["recall@100", *(["nDCG@10"] if any("ndcg@10" in row for row in rows) else [])]
    measured = sorted((row for row in rows if "p50" in row), key=lambda row: row["p50"])
    cells = [
        [
            f"{row['name']} ({row['package']} {row['version']})",
            " ".join(map(str, row["chosen"]["build"].values())) or "–",
            ", ".join(f"{name} {value:g}" for name, value in row["chosen"]["search"].items()) or "–",
            *(f"{row[name.lower()]:.3f}" for name in quality),
            *(f"{row[name]:,}" for name in ("p50", "p99", "qps")),
        ]
        for row in measured
    ]
    first = rows[0]
    lines = [f"**{corpus}**: {first['machine']}, {first['date'][:10]}, commit {first['commit']}.", ""]
    lines += markdown_table(["", "index", "search", *quality, "p50 ms", "p99 ms", "requests/s"], cells)
    reasons = [f"- {row['name']} {what}: {why}" for row in rows for what, why in row["reasons"].items()]
    return [*lines, "", *(["Left out:", "", *reasons, ""] if reasons else [])]
