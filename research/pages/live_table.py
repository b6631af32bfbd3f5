"""Documents written beside a bundle, as a table."""

import json
from pathlib import Path
from typing import Any

from lightretriever.loadtest.report import markdown_table

__all__ = ["live_table"]


def live_table(file: Path) -> list[str]:
    """Give the tables with their origin; none without the file."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    runs = ["\n".join(_run(content[documents])) for documents in sorted(content, key=int)]
    return ["\n".join(["### Documents beside a bundle", "", *runs])]


def _run(run: dict[str, Any]) -> list[str]:
    largest = f"{run['overlay'][-1]['written']:,}"
    writes = [
        ["writes/s acknowledged, by one writer", run["one_by_one_per_s"]],
        ["by 16 writers, whose writes share an fsync", run["together_per_s"]],
        ["documents/s in calls of 1,000 each", run["bulk_per_s"]],
        ["ms until another process finds it, p50", run["found_ms"]["p50"]],
        ["ms until another process finds it, p99", run["found_ms"]["p99"]],
        [f"s to open the journal of {largest} documents", run["start_s"]],
        ["s to open it without a checkpoint", run["replay_s"]],
    ]
    if "compaction_s" in run:
        writes.append(["s to compact it", run["compaction_s"]])
    times = [f"{which}{what}" for what in ("p50_ms", "cpu_p50_ms") for which in ("", "bundle_", "rebuilt_")]
    names = [*times, "p99_ms", "searches_per_s", "resident_mb"]
    searches = [
        [f"{row['written']:,}", *(f"{row[name]:,}" if name in row else "" for name in names)] for row in run["overlay"]
    ]
    headings = ["written", "p50 ms", "bundle alone", "bundle of all", "processor ms", "bundle alone", "bundle of all"]
    headings += ["p99 ms", "searches/s, 2 threads", "memory MB"]
    return [
        f"Beside {run['documents']:,} documents, one process; {run['machine']}, {run['date'][:10]}, commit "
        f"{run['commit']}. The load before was {run['load']}.",
        "",
        *markdown_table(["", "measured"], [[name, f"{value:,}"] for name, value in writes]),
        "",
        "With so many documents written, 5 % of the bundle's deleted; the three were searched in turns:",
        "",
        *markdown_table(headings, searches),
        "",
    ]
