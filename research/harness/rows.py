"""Files of measured rows: `docs/results/speed.json`, and `docs/results/reliability.json` in the same form.

    {"machine": …, "date": …, "commit": …, "rows": [{"key", "value" or "p50" and "p99", "unit", "goal", "command"}]}

Rows with a goal have `goal`; the others are their components. Only the programs of this package write the first file,
and only the tests in tests/faults the second. Every row also has the machine, date and commit of its own measurement;
those of the file are the latest row's.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.record import origin, write_json

__all__ = ["GOALS", "Goals", "record"]

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


def record(
    file: Path | None,
    rows: Sequence[Mapping[str, Any]],
    command: str,
    goals: Goals = GOALS,
    whole: Collection[str] = (),
) -> None:
    """Write rows into the file, if there is one, in place of older ones with the same key and setting, and of all older
    ones with a key in `whole`, whose settings change from run to run.

    A row has `key`, `unit`, its values, and, if it is one of several under a key, `setting`.
    """
    if file is None:
        return
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"rows": []}
    facts = origin()
    kept = {(row["key"], row.get("setting")): row for row in content["rows"] if row["key"] not in whole}
    for row in rows:
        goal = {"goal": goals[row["key"]][1]} if row["key"] in goals and "setting" not in row else {}
        kept[row["key"], row.get("setting")] = {**row, **goal, "command": command, **facts}
    order = {key: place for place, key in enumerate(goals)}
    placed = sorted(kept.values(), key=lambda row: (order.get(row["key"], len(order)), row["key"]))
    write_json(file, {**facts, "rows": placed})
