"""The report of a benchmark, made from its result file as Markdown."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.loadtest.counters import COUNTS, median_of
from lightretriever.loadtest.record import four_digits

__all__ = ["markdown_table", "write_report"]

Load = Mapping[str, Any]
Systems = Sequence[Mapping[str, Any]]
Cell = str | float | None

_METHOD: Final = """\
Every system is one server process. Runs alternate between the systems, round after round; every figure is the median \
over the rounds. The load generator runs on the same machine and shares its processors.

Throughput is the highest number of answers per second with 1, 4, 16 or 64 requests always under way (closed loop). \
Latency is measured at a constant arrival rate (open loop) and counts from when a request was due, so that waiting \
behind others is part of it.

Refused: status 429, 503, 504 or no connection. Failed: any other error. Late: no answer within the time limit. \
Degraded: an answer in which a leg is missing. Latencies are those of answered requests; a p95 or p99 of fewer than 20 \
or 100 answers is left out."""
_TIMES: Final = ("p50_ms", "p95_ms", "p99_ms")


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Give the lines of a Markdown table; the first column is left-aligned, all others right-aligned."""
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    return [line.replace("|  |", "| |") for line in lines] + [f"| {' | '.join(row)} |" for row in rows]


def write_report(load: Path) -> Path:
    """Write NAME.md beside the result file NAME.json, and give its path."""
    content: Load = json.loads(load.read_text(encoding="utf-8"))
    blocks = ["<!-- written by loadtest/report.py -->", *_blocks(content)]
    page = load.with_suffix(".md")
    write_atomically(page, ("\n\n".join(blocks) + "\n").encode())
    return page


def _blocks(load: Load) -> Iterator[str]:
    """Give the report, as blocks of Markdown."""
    measured = [one for one in load["systems"] if "left_out" not in one]
    missing = [f"- {one['label']}: {one['left_out']}" for one in load["systems"] if "left_out" in one]
    yield from ("# Load test", _origin(load), _METHOD)
    yield from ("## Systems", _summary(load, measured))
    yield from ("## Left out", "\n".join(missing) or "Nothing was left out.")
    yield from ("## Latency at constant arrival rates", _runs(load, measured, "open", "of", "of highest"))
    yield from ("## Throughput by requests under way", _runs(load, measured, "closed", "connections", "under way"))
    yield from ("## What each is", "Commands are those of the commit above.")
    yield "\n".join(f"- {one['label']}: {one['what']}. `{one['command']}`" for one in measured)


def _origin(load: Load) -> str:
    bundle, plan = load["bundle"], load["plan"]
    return (
        f"{bundle['documents']:,} documents ({bundle['name']}, {bundle['dimension']} dimensions), "
        f"{load['queries']['count']:,} queries ({load['queries']['name']}), {plan['k']} hits each; "
        f"{plan['rounds']} rounds of {plan['seconds']:g} s. "
        f"{load['machine']}, {load['date']}, commit {load['commit']}."
    )


def _summary(load: Load, measured: Systems) -> str:
    columns = ["p50 ms", "p95 ms", "p99 ms", "server µs"]
    rows = []
    for one in measured:
        half = [row for row in load["open"] if row["system"] == one["name"] and row["of"] == 0.5]
        times = [median_of(half, key) for key in (*_TIMES, "server_us")]
        memory = load["memory_mb"].get(one["name"], {}).get("pss")
        quality = [load["ndcg"][one["name"]]] if "ndcg" in load else []
        highest = load["saturated"].get(one["name"])
        rows.append([one["label"], highest, *map(_rounded, times), memory, one["ready_s"], *quality])
    heads = ["", "queries/s", *(f"{name} at half load" for name in columns), "memory MiB", "ready s"]
    return _table(heads + (["nDCG@10"] if "ndcg" in load else []), rows)


def _runs(load: Load, measured: Systems, kind: str, load_of: str, title: str) -> str:
    """Tabulate medians and sums over the rounds of all runs of a `kind`, by system and by load (field `load_of`)."""
    rows: list[list[Cell]] = []
    for one in measured:
        own = [row for row in load[kind] if row["system"] == one["name"]]
        for amount in sorted({row[load_of] for row in own}):
            same = [row for row in own if row[load_of] == amount]
            medians = [_rounded(median_of(same, key)) for key in ("qps", *_TIMES)]
            sums = [sum(row[key] for row in same) for key in ("sent", *COUNTS[1:])]
            rows.append([one["label"], f"{amount:.0%}" if load_of == "of" else amount, *medians, *sums])
    return _table(["", title, "answers/s", "p50 ms", "p95 ms", "p99 ms", "requests", *COUNTS[1:]], rows)


def _rounded(value: float | None) -> float | None:
    return None if value is None else four_digits(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    if not rows:
        return "Not measured."
    return "\n".join(markdown_table(columns, [[_cell(cell) for cell in row] for row in rows]))


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,.10g}"
