"""Measured figures as tables of Markdown, for the pages of the documentation."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.counters import median_of
from lightretriever.loadtest.report import markdown_table

from research.harness.rows import GOALS, Goals

__all__ = ["FIGURES", "goal_table", "load_table", "speed_tables", "versions_tables"]

Row = Mapping[str, Any]
_HALF: Final = 0.5  # of the highest throughput


def speed_tables(file: Path) -> list[str]:
    """Give one block for each kind of row in `speed.json` without a goal; none without the file."""
    if not file.is_file():
        return []
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    blocks = []
    for title, key, columns, cells in _TABLES:
        of_kind = [[row["setting"], *map(_number, cells(row))] for row in rows if row["key"] == key]
        if of_kind:
            blocks.append("\n".join([f"{title}:", "", *markdown_table(["", *columns], of_kind), ""]))
    return blocks


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


def load_table(file: Path) -> list[str]:
    """Tabulate the systems of a load test, fastest first: highest throughput, latencies at half of it, and
    nDCG@10 if it was measured."""
    if not file.is_file():
        return []
    load = json.loads(file.read_text(encoding="utf-8"))
    rows = []
    systems = [one for one in load["systems"] if load["saturated"].get(one["name"])]
    for one in sorted(systems, key=lambda one: -load["saturated"][one["name"]]):
        half = [row for row in load["open"] if row["system"] == one["name"] and row["of"] == _HALF]
        cells = [load["saturated"][one["name"]], *(median_of(half, key) for key in ("p50_ms", "p99_ms", "rate"))]
        cells += [load["ndcg"][one["name"]]] if "ndcg" in load else []
        rows.append([one["label"], *("–" if cell is None else f"{cell:,.4g}" for cell in cells)])
    columns = ["under load", "queries/s", "p50 ms", "p99 ms", "p50 and p99 at queries/s"]
    return markdown_table(columns + (["nDCG@10"] if "ndcg" in load else []), rows)


def versions_tables(file: Path) -> list[str]:
    """Give one block for each run in `versions.json`: the sides' figures, and their ratios to the first side's."""
    if not file.is_file():
        return []
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    return [line for name, run in runs.items() for line in _run(name, run)]


def _run(name: str, run: Row) -> Iterable[str]:
    sides, plan = run["sides"], run["plan"]
    names = [side["name"] for side in sides]
    asked = f"{plan['turns']} turns of {plan['questions']} questions, {plan['connections']} connections to saturate"
    yield f"**{name}**: {sides[0]['documents']:,} documents; {asked}; {run['machine']}, {run['date'][:10]}."
    for side in sides:
        versions = ", ".join(f"{package} {version}" for package, version in side["versions"].items())
        yield f"- {side['name']}: commit {side['commit']}, dense index {side['dense']}; {versions}"
    yield ""
    columns = [*sides, *run["ratios"]]
    rows = [[label, *(_number(column[key]) for column in columns)] for key, label in FIGURES.items()]
    yield from markdown_table(["", *names, *(f"{side} ÷ {names[0]}" for side in names[1:])], rows)
    yield ""


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


FIGURES: Final = {
    "in_process_p50_ms": "in process, p50 ms",
    "in_process_p99_ms": "in process, p99 ms",
    "dense_alone_p50_ms": "dense leg alone, p50 ms",
    "sparse_alone_p50_ms": "sparse leg alone, p50 ms",
    "over_slower_leg": "in process ÷ slower leg alone, p50",
    "httpx_p50_ms": "over HTTP by httpx, p50 ms",
    "httpx_p99_ms": "over HTTP by httpx, p99 ms",
    "http_p50_ms": "over HTTP by the generator, p50 ms",
    "http_p99_ms": "over HTTP by the generator, p99 ms",
    "saturated_qps": "saturated, requests/s",
    "saturated_cpu_ms": "saturated, processor ms a request",
    "rss_mb": "memory after it, MiB (RSS)",
}
"""Figures of a side in `versions.json`, and their labels in the table."""


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
        "Requests/s, ours ÷ a peer's, and p99 at half load, the peer's ÷ ours (goal 3; BM25 0.7)",
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
