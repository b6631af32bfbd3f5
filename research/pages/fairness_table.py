"""Plain searches beside heavy clients, as a table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.report import markdown_table

__all__ = ["fairness_table"]

_CLIENTS: Final = {
    "plain": "usual searches",
    "filters": "1,000 hits by a long query and 990 numbers",
    "embeddings": "64 long texts to encode",
    "batches": "64 long searches at once",
    "usual": "64 usual searches at once",
    "snippets": "1,000 hits with long snippets",
    "explained": "500 explained hits",
}


def fairness_table(file: Path) -> list[str]:
    """Give the table with its origin; none without the file."""
    if not file.is_file():
        return []
    run = json.loads(file.read_text(encoding="utf-8"))
    rows = [["nobody", *_times(run["alone"]), "", ""]]
    rows += [
        [
            _asked(*row["clients"]),
            *_times(row),
            _answers(row["first"]),
            _answers(row["second"]),
        ]
        for row in run["beside"]
    ]
    headings = ["beside two clients that ask for", "p50 ms", "p99 ms", "the first one got", "the second one got"]
    return [
        "\n".join(
            [
                "### Usual searches beside heavy clients",
                "",
                f"One process, {run['machine']}, {run['date'][:10]}, commit {run['commit']}; service and clients share "
                f"the machine, whose load before was {run['load']}. [{file.name}](results/{file.name}).",
                "",
                *markdown_table(headings, rows),
                "",
            ]
        )
    ]


def _asked(first: str, second: str) -> str:
    return f"{_CLIENTS[first]}, both" if first == second else f"{_CLIENTS[first]}; {_CLIENTS[second]}"


def _times(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"]


def _answers(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {status}" for status, count in statuses.items())
