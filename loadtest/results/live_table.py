"""Documents written beside a bundle, as a table."""

import json
from pathlib import Path

from lightretriever.loadtest.results.tables import markdown_table

__all__ = ["live_table"]


def live_table(file: Path) -> list[str]:
    """Give the tables with their origin; none without the file."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    beside = f"{content['documents']:,} documents"
    facts = f"Beside {beside}, one process; {content['machine']}, {content['date'][:10]}, commit {content['commit']}."
    writes = [
        ["writes/s acknowledged, by one writer", content["one_by_one_per_s"]],
        ["by 16 writers, whose writes share an fsync", content["together_per_s"]],
        ["documents/s in calls of 1,000 each", content["bulk_per_s"]],
        ["ms until another process finds it, p50", content["found_ms"]["p50"]],
        ["ms until another process finds it, p99", content["found_ms"]["p99"]],
        [f"s to open the journal of {content['overlay'][-1]['written']:,} documents", content["replay_s"]],
        ["s to compact it", content["compaction_s"]],
    ]
    names = ("p50_ms", "p99_ms", "searches_per_s", "resident_mb")
    searches = [[f"{row['written']:,}", *(f"{row[name]:,}" for name in names)] for row in content["overlay"]]
    headings = ["written", "search p50 ms", "p99 ms", "searches/s, 2 threads", "memory MB"]
    return [
        "\n".join(
            [
                "### Documents beside a bundle",
                "",
                facts,
                "",
                *markdown_table(["", "measured"], [[name, f"{value:,}"] for name, value in writes]),
                "",
                "With so many documents written, 5 % of the bundle's deleted:",
                "",
                *markdown_table(headings, searches),
                "",
            ]
        )
    ]
