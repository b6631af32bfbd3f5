"""Files of measured figures: `docs/results/speed.json`, and `docs/results/reliability.json` in the same form.

    {"machine": …, "date": …, "commit": …, "rows": [{"key", "value" or "p50" and "p99", "unit", "goal", "command"}]}

Rows with a goal have `goal`; the others are their components. Only the programs of this package write the first file,
and only the tests in tests/faults the second. Every row also has the machine, date and commit of its own measurement;
those of the file are the latest row's.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.artifacts.evaluation.report import environment, machine_name
from lightretriever.artifacts.files.workdir import write_atomically

__all__ = [
    "GOALS",
    "Goals",
    "commit",
    "four_digits",
    "goal_table",
    "latency",
    "origin",
    "record",
    "typed",
    "write_json",
]

ROOT: Final = Path(__file__).resolve().parents[1]

Goals = Mapping[str, tuple[str, str]]
"""By key: what it measures, and the goal, in the order of the table."""

GOALS: Final[Goals] = {
    "search_overhead": ("hybrid search in process ÷ the slower of Faiss and Lucene alone, p50", "≤ 1.2"),
    "parallel_gain": ("Faiss and Lucene one after the other ÷ hybrid search in process, p50", "≥ 1.15"),
    "http_overhead": ("what HTTP adds to a search ÷ an empty route, p50", "≤ 3.0"),
    "request_cpu_ms": ("processor time of a request over HTTP, one process, 8 connections, ms", "≤ 1.7"),
    "saturated_qps": ("saturated requests/s, one process, 8 connections", "≥ 900"),
    "switches": ("context switches a request, one process, 8 connections", "≤ 12"),
    "half_load": ("p99 ÷ p50 at half of the saturated requests/s", "≤ 3"),
    "encode_overhead": ("a query to both vectors ÷ `tokenizers` alone, p50", "≤ 1.3"),
    "encode_alone_vs_llm": (
        "encoding by the language model ÷ by the table, without tokenising, as the paper counts",
        "≥ 10,000",
    ),
    "encode_vs_llm": ("encoding by the language model ÷ by the table, both with tokenising", "≥ 2,500"),
    "qps_vs_llm": ("saturated requests/s ÷ those of the language model per query", "≥ 100"),
    "ready_s": ("start to ready, seconds", "≤ 3"),
    "second_process_mb": ("memory that a second process adds, MiB", "≤ 250"),
}
"""The goals of speed."""


def latency(seconds: npt.ArrayLike, scale: float) -> dict[str, float]:
    """Give p50, p95 and p99 of times, multiplied by `scale` (1e6 for microseconds), to four digits."""
    values = np.percentile(np.asarray(seconds, dtype=np.float64), [50, 95, 99]) * scale
    return dict(zip(("p50", "p95", "p99"), map(four_digits, values), strict=True))


def four_digits(value: float) -> float:
    """Round to four significant digits, the precision of our measurements."""
    return float(f"{value:.4g}")


def record(
    file: Path, rows: Sequence[Mapping[str, Any]], command: str, goals: Goals = GOALS, whole: Collection[str] = ()
) -> None:
    """Write rows into the file, in place of older ones with the same key and setting, and of all older ones with a key
    in `whole`, whose settings change from run to run.

    A row has `key`, `unit`, its values, and, if it is one of several under a key, `setting`.
    """
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"rows": []}
    facts = origin()
    kept = {(row["key"], row.get("setting")): row for row in content["rows"] if row["key"] not in whole}
    for row in rows:
        goal = {"goal": goals[row["key"]][1]} if row["key"] in goals and "setting" not in row else {}
        kept[row["key"], row.get("setting")] = {**row, **goal, "command": command, **facts}
    order = {key: place for place, key in enumerate(goals)}
    placed = sorted(kept.values(), key=lambda row: (order.get(row["key"], len(order)), row["key"]))
    write_json(file, {**facts, "rows": placed})


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


def write_json(file: Path, content: object) -> None:
    """Write a file of results atomically."""
    write_atomically(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def origin() -> dict[str, str]:
    """Give the machine, date and commit of a measurement that ends now."""
    here = environment()
    return {"machine": machine_name(here["machine"]), "date": here["date"], "commit": commit()}


def commit(folder: Path = ROOT) -> str:
    """Give the commit of a folder's checkout, with a + if files differ from it; "unknown" outside a checkout."""
    try:
        words = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def typed(module: str, arguments: Sequence[str] | None) -> str:
    """Give the command that runs a module, with the given arguments or those of the process."""
    given = sys.argv[1:] if arguments is None else arguments
    return typed_command(["python", "-m", module, *given])
