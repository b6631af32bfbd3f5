"""Throughput and latency by the number of locust's users, as a table and as curves."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.counters import median_of
from lightretriever.loadtest.record import four_digits
from lightretriever.loadtest.report import markdown_table

__all__ = ["medians", "users_table"]

_FIGURES: Final = ("qps", "p50_ms", "p95_ms", "p99_ms")

Row = Mapping[str, Any]


def medians(content: Row) -> dict[tuple[str, int], dict[str, float | None]]:
    """Give by system and number of users the median over the rounds of `qps`, `p50_ms`, `p95_ms` and `p99_ms`; None
    where there were too few answers."""
    found = {}
    for system in content["systems"]:
        for users in content["plan"]["users"]:
            same = [row for row in content["runs"] if (row["system"], row["users"]) == (system["name"], users)]
            figures = {figure: median_of([dict(row) for row in same], figure) for figure in _FIGURES}
            found[system["name"], users] = figures
    return found


def users_table(file: Path) -> list[str]:
    """Give the table with its origin; none without the file."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    labels = {system["name"]: system["label"] for system in content["systems"]}
    rows = []
    for (system, users), figures in medians(content).items():
        shown = ("–" if value is None else f"{four_digits(value):,g}" for value in figures.values())
        rows.append([f"{labels[system]}, {users} user{'s' if users > 1 else ''}", *shown])
    plan, bundle = content["plan"], content["bundle"]
    runs = f"medians of {plan['rounds']} runs" if plan["rounds"] > 1 else "one run"
    facts = f"{bundle['documents']:,} documents; {runs} of {plan['seconds']:g} s each; "
    facts += f"locust {content['locust']}; {content['machine']}, {content['date'][:10]}, commit {content['commit']}."
    table = markdown_table(["", "requests/s", "p50 ms", "p95 ms", "p99 ms"], rows)
    return ["\n".join(["### Latency over throughput", "", facts, "", *table, ""])]
