"""The table of docs/speed.md: every ratio with a goal, from `speed.json`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lightretriever.loadtest.report import markdown_table

from research.harness.rows import GOALS
from research.pages.library_tables import RATIOS

__all__ = ["reached", "speed_table"]

Row = Mapping[str, Any]
_LEAST = {"bm25": "≥ 0.6", "seekdb": "≥ 1.5"}
_BUSY = 0.5
_LAST = ("ready_s", "second_process_mb")
_ORDER = (*(key for key in GOALS if key not in _LAST), *RATIOS, "peers", "growth_slope", *_LAST)


class _Line(NamedTuple):
    """What is divided, the ratio's values, and its goal."""

    what: str
    values: Sequence[float]
    goal: str


def speed_table(file: Path) -> list[str]:
    """Give the table, with the machines, dates and commits of its rows; none if nothing is recorded. Of a peer there
    are the rows with nDCG@10, and the one with the most documents."""
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.is_file() else []
    most: dict[str, int] = {}
    for row in (row for row in rows if row["key"] == "peers" and "ndcg" not in row):
        most[row["system"]] = max(row["documents"], most.get(row["system"], 0))
    rows = [row for row in rows if row["key"] != "peers" or "ndcg" in row or row["documents"] == most[row["system"]]]
    lines, used = [], list[Row]()
    for row in sorted(rows, key=lambda row: _ORDER.index(row["key"]) if row["key"] in _ORDER else len(_ORDER)):
        if found := list(_lines(row)):
            used.append(row)
            lines += found
    if not lines:
        return ["Nothing is recorded.\n"]
    cells = [
        (line.what, " / ".join(f"{value:,.4g}" for value in line.values), line.goal, _word(line)) for line in lines
    ]
    origins: dict[str, dict[str, None]] = {}
    for row in used:
        origins.setdefault(f"{row['machine']}, {row['date'][:10]}", {})[row["commit"]] = None
    told = "; ".join(f"{origin}, commits {', '.join(commits)}" for origin, commits in origins.items())
    source = f"Measured on {told}. [{file.name}](results/{file.name}) has settings and versions."
    return ["\n".join([*markdown_table(["", "measured", "goal", "reached"], cells), "", source, ""])]


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
