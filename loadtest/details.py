"""What stands in the file of speeds beside the goals, as tables of Markdown."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.tally import median_of

__all__ = ["detail_tables", "load_table"]

Row = Mapping[str, Any]
_HALF: Final = 0.5  # of the highest throughput


def detail_tables(file: Path) -> list[str]:
    """One block for each kind of rows that is recorded."""
    if not file.is_file():
        return []
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    blocks = []
    for title, key, table in _TABLES:
        of_kind = [row for row in rows if row["key"] == key]
        if of_kind:
            blocks.append("\n".join([f"{title}:", "", *table(of_kind), ""]))
    return blocks


def load_table(file: Path) -> list[str]:
    """The systems of a load test, the fastest first: highest throughput, and latencies at half of it."""
    if not file.is_file():
        return []
    load = json.loads(file.read_text(encoding="utf-8"))
    lines = ["| under load | queries/s | p50 ms | p99 ms | p50 and p99 at queries/s |", "|---|---:|---:|---:|---:|"]
    systems = [one for one in load["systems"] if load["saturated"].get(one["name"])]
    for one in sorted(systems, key=lambda one: -load["saturated"][one["name"]]):
        half = [row for row in load["open"] if row["system"] == one["name"] and row["of"] == _HALF]
        cells = [load["saturated"][one["name"]], *(median_of(half, key) for key in ("p50_ms", "p99_ms", "rate"))]
        lines.append(f"| {one['label']} | {' | '.join('–' if cell is None else f'{cell:,.4g}' for cell in cells)} |")
    return lines


def _times(rows: Sequence[Row]) -> list[str]:
    lines = ["| | p50 µs | p95 µs | p99 µs |", "|---|---:|---:|---:|"]
    return lines + [f"| {row['setting']} | {row['p50']:,} | {row['p95']:,} | {row['p99']:,} |" for row in rows]


def _instructions(rows: Sequence[Row]) -> list[str]:
    lines = ["| | instructions | documents |", "|---|---:|---:|"]
    return lines + [f"| {row['setting']} | {row['value']:,} | {row['documents']:,} |" for row in rows]


def _dense(rows: Sequence[Row]) -> list[str]:
    lines = ["| | recall@100 | searches/s of one core | p50 µs | p99 µs |", "|---|---:|---:|---:|---:|"]
    return lines + [
        f"| {row['setting']} | {row['recall@100']} | {row['qps']:,} | {row['p50']:,} | {row['p99']:,} |" for row in rows
    ]


def _paper(rows: Sequence[Row]) -> list[str]:
    lines = ["| | tokenise and encode s | search s | total s | queries/s |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        lines.append(
            f"| {row['setting']} | {row['both_s']:,} | {row['search_s']:,} | {row['value']:,} | {row['qps']:,} |"
        )
    return lines


def _limits(rows: Sequence[Row]) -> list[str]:
    lines = ["| | bytes read | memory alone µs | measured µs | times |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        numbers = (row[name] for name in ("bytes", "value", "measured", "times"))
        lines.append(f"| {row['setting']} | {' | '.join(f'{number:,}' for number in numbers)} |")
    return lines


def _processors(rows: Sequence[Row]) -> list[str]:
    lines = ["| | processors | one, a second | all, a second | times the work of one |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        numbers = (row[name] for name in ("processors", "one_per_s", "all_per_s", "value"))
        lines.append(f"| {row['setting']} | {' | '.join(f'{number:,}' for number in numbers)} |")
    return lines


def _layers(rows: Sequence[Row]) -> list[str]:
    lines = ["| | µs of processor time for an answer | more than without |", "|---|---:|---:|"]
    return lines + [f"| {row['setting']} | {row['value']:,} | {row['more']:,} |" for row in rows]


_TABLES: Final[Sequence[tuple[str, str, Callable[[Sequence[Row]], list[str]]]]] = (
    ("The stages of a search, one query after the other", "stage", _times),
    ("Instructions of a stage for a query, counted by valgrind", "instructions", _instructions),
    ("The dense leg by its search width", "dense", _dense),
    ("The sparse leg, and BM25 in Lucene on the same documents, the best 100", "sparse", _times),
    ("65,536 queries, as in the paper's table", "paper_table", _paper),
    (
        "What a query reads, and how long one thread takes that reads on and on",
        "memory_limit",
        _limits,
    ),
    ("What one processor gets done, and all of them together", "processors", _processors),
    ("What HTTP costs by itself, with an answer that is there already", "http_layers", _layers),
)
