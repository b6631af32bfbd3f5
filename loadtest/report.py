"""The report of a comparison under load, made from its result files: Markdown, and one HTML file with its plots.

python -m lightretriever.loadtest.report docs/results
"""

import argparse
import html
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.loadtest.plots import latency_plot
from lightretriever.loadtest.record import goal_table
from lightretriever.loadtest.tally import COUNTS, median_of

__all__ = ["main", "write_report"]

Load = Mapping[str, Any]
Cell = str | float | int | None

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}"
    "td,th{border:1px solid #ccc;padding:.25rem .6rem;text-align:right}td:first-child,th:first-child{text-align:left}"
    "svg{max-width:100%;height:auto}code{background:#f3f3f3}"
)
_METHOD: Final = (
    "Every system is one server process. Runs alternate between the systems, round after round; every figure is the "
    "median over the rounds. The load generator runs on the same machine and shares its processors.",
    "Throughput is the highest number of answers per second with 1, 4, 16 or 64 requests always under way (closed "
    "loop). Latency is measured at a constant arrival rate (open loop) and counts from when a request was due, so that "
    "waiting behind others is part of it.",
    "Refused: status 429, 503, 504 or no connection. Failed: any other error. Late: no answer within the time limit. "
    "Degraded: an answer in which a leg is missing. Latencies are those of answered requests; a p95 or p99 of fewer "
    "than 20 or 100 answers is left out.",
)


@dataclass(frozen=True)
class _Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class _Section:
    title: str
    parts: Sequence[_Table | str]


def write_report(load: Path, speed: Path) -> list[Path]:
    """Write NAME.md, NAME.svg and NAME.html beside the result file NAME.json; the paths. `speed` is `speed.json`."""
    content: Load = json.loads(load.read_text(encoding="utf-8"))
    sections, plot = _sections(content, speed), latency_plot(content)
    written = {
        load.with_suffix(".md"): _markdown(sections, load.with_suffix(".svg").name),
        load.with_suffix(".svg"): plot,
        load.with_suffix(".html"): _html(sections, plot),
    }
    for path, text in written.items():
        write_atomically(path, text.encode())
    return list(written)


def _sections(load: Load, speed: Path) -> list[_Section]:
    measured = [one for one in load["systems"] if "left_out" not in one]
    left_out = [one for one in load["systems"] if "left_out" in one]
    missing = [f"- {one['label']}: {one['left_out']}" for one in left_out] or ["Nothing was left out."]
    return [
        _Section("Load test", [_origin(load), *_METHOD]),
        _Section("Systems", [_summary(load, measured)]),
        _Section("Left out", ["\n".join(missing)]),
        _Section("Latency at constant arrival rates", [_curves(load, measured)]),
        _Section("Throughput by requests under way", [_closed(load, measured)]),
        _Section("Users of locust", [_locust(load, measured)]),
        *([_Section("The service against its goals", ["\n".join(goals)])] if (goals := goal_table(speed)) else []),
        _Section(
            "What each is", ["\n".join(f"- {one['label']}: {one['what']}. `{one['command']}`" for one in measured)]
        ),
    ]


def _origin(load: Load) -> str:
    bundle, plan, client = load["bundle"], load["plan"], load["client"]
    return (
        f"{bundle['documents']:,} documents ({bundle['name']}, {bundle['dimension']} dimensions), "
        f"{load['queries']['count']:,} queries ({load['queries']['name']}), {plan['k']} hits each; "
        f"{plan['rounds']} rounds of {plan['seconds']:g} s. "
        f"{load['machine']}, {load['date']}, commit {load['commit']}. "
        f"The generator alone reaches {client['qps']:,.0f} requests per second on this machine, at "
        f"{client['client_us']:g} µs of processor time each."
    )


def _summary(load: Load, measured: Sequence[Mapping[str, Any]]) -> _Table:
    columns = ["", "queries/s", "p50 ms", "p95 ms", "p99 ms", "server µs", "memory MiB", "ready s"]
    rows: list[list[Cell]] = []
    for one in measured:
        half = [row for row in load["open"] if row["system"] == one["name"] and row["of"] == 0.5]
        times: list[Cell] = [_rounded(median_of(half, key)) for key in ("p50_ms", "p95_ms", "p99_ms", "server_us")]
        memory = load["memory_mb"].get(one["name"], {}).get("pss")
        rows.append([one["label"], load["saturated"].get(one["name"]), *times, memory, one["ready_s"]])
    columns[2:6] = [f"{name} at half load" for name in columns[2:6]]
    return _Table(columns, rows)


def _curves(load: Load, measured: Sequence[Mapping[str, Any]]) -> _Table:
    columns = ["", "of highest", "rate", "answers/s", "p50 ms", "p95 ms", "p99 ms", "requests", *COUNTS[1:]]
    rows: list[list[Cell]] = []
    for one in measured:
        own = [row for row in load["open"] if row["system"] == one["name"]]
        for fraction in sorted({row["of"] for row in own}):
            same = [row for row in own if row["of"] == fraction]
            keys = ("rate", "qps", "p50_ms", "p95_ms", "p99_ms")
            sums = [sum(row[key] for row in same) for key in ("sent", *COUNTS[1:])]
            rows.append([one["label"], f"{fraction:.0%}", *(_rounded(median_of(same, key)) for key in keys), *sums])
    return _Table(columns, rows)


def _closed(load: Load, measured: Sequence[Mapping[str, Any]]) -> _Table:
    columns = ["", "under way", "answers/s", "p50 ms", "p95 ms", "p99 ms", "requests", *COUNTS[1:]]
    rows: list[list[Cell]] = []
    for one in measured:
        own = [row for row in load["closed"] if row["system"] == one["name"]]
        for connections in sorted({row["connections"] for row in own}):
            same = [row for row in own if row["connections"] == connections]
            medians = [_rounded(median_of(same, key)) for key in ("qps", "p50_ms", "p95_ms", "p99_ms")]
            sums = [sum(row[key] for row in same) for key in ("sent", *COUNTS[1:])]
            rows.append([one["label"], connections, *medians, *sums])
    return _Table(columns, rows)


def _locust(load: Load, measured: Sequence[Mapping[str, Any]]) -> _Table:
    rows: list[list[Cell]] = []
    for one in measured:
        same = [row for row in load["locust"] if row["system"] == one["name"]]
        if same:
            medians = [_rounded(median_of(same, key)) for key in ("qps", "p50_ms", "p95_ms", "p99_ms")]
            rows.append([one["label"], same[0]["connections"], *medians])
    return _Table(["", "users", "answers/s", "p50 ms", "p95 ms", "p99 ms"], rows)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,.10g}"


def _markdown(sections: Sequence[_Section], plot: str) -> str:
    blocks = []
    for number, section in enumerate(sections):
        blocks.append(f"{'##' if number else '#'} {section.title}")
        for part in section.parts:
            if isinstance(part, str):
                blocks.append(part)
            elif part.rows:
                lines = [part.columns, ["---", *(["---:"] * (len(part.columns) - 1))]]
                lines += [[_cell(cell) for cell in row] for row in part.rows]
                blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
            else:
                blocks.append("Not measured.")
        if number == 0:
            blocks.append(f"![Latency against throughput]({plot})")
    return "\n\n".join(["<!-- written by loadtest/report.py -->", *blocks]) + "\n"


def _html(sections: Sequence[_Section], plot: str) -> str:
    blocks = []
    for number, section in enumerate(sections):
        level = "h2" if number else "h1"
        blocks.append(f"<{level}>{html.escape(section.title)}</{level}>")
        blocks += [_html_part(part) for part in section.parts]
        if number == 0:
            blocks.append(plot[plot.index("<svg") :])
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>Load test</title><style>{_STYLE}</style>"
    return "\n".join([head, *blocks, "</html>"]) + "\n"


def _html_part(part: _Table | str) -> str:
    if isinstance(part, str):
        lines = part.split("\n")
        if lines[0].startswith("| "):
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            return _html_part(_Table(cells[0], cells[2:]))
        if lines[0].startswith("- "):
            return "<ul>" + "".join(f"<li>{_html_text(line[2:])}</li>" for line in lines) + "</ul>"
        return f"<p>{html.escape(part)}</p>"
    if not part.rows:
        return "<p>Not measured.</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in part.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(cell))}</td>" for cell in row) + "</tr>" for row in part.rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _html_text(text: str) -> str:
    """Escaped, with what stands in backticks as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(text))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of the results in a folder; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the report of a comparison under load.")
    parser.add_argument("results", type=Path, help="folder with load.json and speed.json")
    given = parser.parse_args(arguments)
    try:
        paths = write_report(given.results / "load.json", given.results / "speed.json")
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {given.results}: no results of loadtest.bench: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
