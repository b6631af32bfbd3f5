"""The tables of `speed.json` and of files like it: ratios with goals, stages and other rows, libraries."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightretriever.loadtest.report import markdown_table
from research.harness.rows import GOALS, Goals
from research.pages.generated import of_file

__all__ = ["RATIOS", "Ratio", "goal_table", "library_tables", "measured_on", "reached", "speed_table", "speed_tables"]

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
        if not reached([row[figure] for figure in self.figures], self.goal):
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

_LEAST = {"bm25": "≥ 0.6", "seekdb": "≥ 1.5"}
_BUSY = 0.5
_LAST = ("ready_s", "second_process_mb")
_ORDER = (*(key for key in GOALS if key not in _LAST), *RATIOS, "peers", "growth_slope", *_LAST)


class _Line(NamedTuple):
    """What is divided, the ratio's values, and its goal."""

    what: str
    values: Sequence[float]
    goal: str


@of_file
def speed_table(content: Any, source: str) -> list[str]:
    """Give every ratio with a goal, with the machines, dates and commits of the rows. Of a peer there are the rows with
    nDCG@10, and the one with the most documents."""
    rows: list[Row] = content["rows"]
    most: dict[str, int] = {}
    for row in (row for row in rows if row["key"] == "peers" and "ndcg" not in row):
        most[row["system"]] = max(row["documents"], most.get(row["system"], 0))
    rows = [row for row in rows if row["key"] != "peers" or "ndcg" in row or row["documents"] == most[row["system"]]]
    lines, used = [], list[Row]()
    for row in sorted(rows, key=lambda row: _ORDER.index(row["key"]) if row["key"] in _ORDER else len(_ORDER)):
        if found := list(_lines(row)):
            used.append(row)
            lines += found
    cells = [
        (line.what, " / ".join(f"{value:,.4g}" for value in line.values), line.goal, _word(line)) for line in lines
    ]
    table = markdown_table(["", "measured", "goal", "reached"], cells)
    return ["\n".join([*table, "", f"{measured_on(used)} {source} has settings and versions.", ""])] if lines else []


def measured_on(rows: Iterable[Row]) -> str:
    """Name the machines, dates and commits of rows in one sentence."""
    origins: dict[str, dict[str, None]] = {}
    for row in rows:
        origins.setdefault(f"{row['machine']}, {row['date'][:10]}", {})[row["commit"]] = None
    told = "; ".join(f"{origin}, commits {', '.join(commits)}" for origin, commits in origins.items())
    return f"Measured on {told}."


def reached(values: Sequence[float], goal: str) -> bool:
    """Say whether all values are within a goal such as "≤ 1.2" or "≥ 2,500"."""
    relation, bound = goal.split()
    limit = float(bound.replace(",", ""))
    return all(value <= limit if relation == "≤" else value >= limit for value in values)


def _word(line: _Line) -> str:
    return "yes" if reached(line.values, line.goal) else "no"


def _lines(row: Row) -> Iterator[_Line]:
    key = row["key"]
    if key in GOALS and "setting" not in row:
        yield _Line(GOALS[key][0] + _load(row), [row["value"]], GOALS[key][1])
    elif key in RATIOS and "against" in row:
        goal = RATIOS[key]
        figures = "" if "qps" in goal.figures else f", {' / '.join(goal.figures)}"
        what = f"{goal.what}{figures} ({row['setting']}{'' if row['equal'] else ', not as good'})"
        yield _Line(what, [row[figure] for figure in goal.figures], goal.goal)
    elif key == "peers":
        yield from _peer(row)
    elif key == "growth_slope":
        yield _Line(f"exponent of p50, {row['setting']}", [row["value"]], "≤ 1")


def _peer(row: Row) -> Iterator[_Line]:
    what = f"requests/s ÷ {row['setting']}, its p99 ÷ ours"
    least = _LEAST.get(row["system"], "≥ 3")
    yield _Line(what + _quality(row), [row[figure] for figure in ("value", "p99") if figure in row], least)


def _load(row: Row) -> str:
    """Say how much other work the machine had, if that was recorded and is more than a little."""
    load = row.get("load_average", [0.0])[0]
    return f"; the machine's load before: {load:.1f}" if load >= _BUSY else ""


def _quality(row: Row) -> str:
    """Say which nDCG@10 ours and the peer's answers have, if it was measured."""
    return f"; nDCG@10 {row['our_ndcg']:.3f} against {row['ndcg']:.3f}" if "our_ndcg" in row else ""


def goal_table(file: Path, goals: Goals = GOALS) -> list[str]:
    """Give the rows that have a goal, as lines of a Markdown table; none if nothing is recorded."""
    if not file.is_file():
        return []
    rows = {row["key"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"] if "goal" in row}
    lines = ["| | measured | unit | goal |", "|---|---:|---|---|"]
    for key, (what, goal) in goals.items():
        if key in rows:
            row = rows[key]
            found = f"{row['value']:,}" if "value" in row else f"p50 {row['p50']:,}, p99 {row['p99']:,}"
            lines.append(f"| {what} | {found} | {row['unit']} | {goal} |")
    return lines if len(lines) > 2 else []


@of_file
def speed_tables(content: Any, source: str) -> list[str]:
    """Give one block for each kind of row in `speed.json` without a goal."""
    rows, blocks = content["rows"], []
    for title, key, columns, cells in _TABLES:
        of_kind = [[row["setting"], *map(_number, cells(row))] for row in rows if row["key"] == key]
        if of_kind:
            blocks.append("\n".join([f"{title}:", "", *markdown_table(["", *columns], of_kind), ""]))
    return blocks


@of_file
def library_tables(content: Any, source: str) -> list[str]:
    """Give the ratios with their goals, and a table of libraries for each corpus; none if nothing is recorded."""
    rows: list[Row] = content["rows"]
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


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _times(row: Row) -> Iterable[float]:
    return (row[name] for name in ("p50", "p95", "p99"))


_PEER: Final = ("value", "p99", "overlap", "our_overlap", "ndcg", "our_ndcg")
_TABLES: Final[Sequence[tuple[str, str, Sequence[str], Callable[[Row], Iterable[float]]]]] = (
    ("The stages of a search, one query after the other", "stage", ("p50 µs", "p95 µs", "p99 µs"), _times),
    (
        "65,536 queries, as in the paper's table",
        "paper_table",
        ("tokenise and encode s", "search s", "total s", "queries/s"),
        lambda row: (row[name] for name in ("both_s", "search_s", "value", "qps")),
    ),
    (
        "Requests/s, ours ÷ a peer's, and p99 at half load, the peer's ÷ ours (goals: BM25 0.6, seekdb 1.5, others 3)",
        "peers",
        (
            "requests/s",
            "p99",
            "the peer's overlap@10",
            "our overlap@10",
            "the peer's nDCG@10",
            "our nDCG@10",
        ),
        lambda row: (row.get(name, "–") for name in _PEER),
    ),
    (
        "Request threads, 8 connections",
        "threads",
        ("requests/s", "processor ms of a request", "context switches", "p50 ms at half load", "p99 ms at half load"),
        lambda row: (row[name] for name in ("value", "cpu_ms", "switches", "p50_ms", "p99_ms")),
    ),
    (
        "Both legs one after the other ÷ with Faiss in its lane meanwhile, p50, and the machine's load before",
        "hand_over",
        ("times", "one after the other µs", "in its lane µs", "Faiss alone µs", "Lucene alone µs", "load before"),
        lambda row: (
            *(row[name] for name in ("value", "inline_us", "handed_us", "dense_us", "sparse_us")),
            row["load_average"][0],
        ),
    ),
    (
        "How costs grow with the corpus, one query after the other",
        "growth",
        ("p50 ms", "p99 ms", "ready s", "private MiB of a process", "MiB that a second adds"),
        lambda row: (row[name] for name in ("p50", "p99", "ready_s", "private_mb", "second_mb")),
    ),
    (
        "Growth exponents: of p50 and of Faiss's and Lucene's files with the documents, by least squares in log-log",
        "growth_slope",
        ("p50", "bytes"),
        lambda row: (row[name] for name in ("value", "bytes")),
    ),
)
