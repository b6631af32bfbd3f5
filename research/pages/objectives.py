"""The objectives that the tests in tests/faults measure, and the file of what they measured.

    {"machine": …, "date": …, "commit": …, "rows": [{"key", "value" or "p50" and "p99", "unit", "goal", "command"}]}

Every row has the machine, date and commit of its own measurement; those of the file are the latest row's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from research.record import origin, write_json

OBJECTIVES: Final[Mapping[str, tuple[str, str]]] = {
    "soak_requests": (
        "30 minutes of mixed load by 16 clients without a pause, with swaps: requests",
        "each answered rightly",
    ),
    "soak_rate": ("rate of these requests", ""),
    "soak_failures": ("wrong or missing answers to them", "0"),
    "soak_p99_ms": ("their latency, including swaps", "p99 ≤ 500"),
    "large_answers": ("answers of up to 1,000 hits, four at a time", ""),
    "large_answers_mb": ("memory growth by them, Java's heap included", "≤ 352"),
    "soak_growth_mb": ("memory growth after the first tenth of the time, including swaps, without Java's heap", "≤ 16"),
    "overload_failures": (
        "five times the capacity for a minute: requests with neither a correct answer nor 503 and Retry-After",
        "0",
    ),
    "overload_longest_s": ("longest time of an accepted request, deadline 5 s, including network and client", "≤ 6"),
    "overload_refused_ms": ("time to a refusal", "p99 ≤ 1,000"),
    "overload_goodput": ("answers a second during the overload", "≥ 0.5"),
    "overload_recovery_s": ("from the last arrival until all requests and one further one are answered", "≤ 5"),
    "livez_search_ms": (
        "slowest /livez beside 2 clients of searches for 1,000 hits by 10,000 characters, with snippets",
        "≤ 100",
    ),
    "livez_explain_ms": ("beside searches for 500 explained hits", "≤ 100"),
    "livez_filter_ms": ("beside searches for 1,000 hits with a filter of 1,000 values", "≤ 100"),
    "livez_batch_ms": ("beside batches of 64 searches for 9,984 hits", "≤ 100"),
    "livez_encode_ms": ("beside texts of 10,000 characters to encode", "≤ 100"),
    "livez_terms_ms": ("beside the terms of a document", "≤ 100"),
    "livez_metrics_ms": ("beside /metrics", "≤ 100"),
    "livez_invalid_ms": ("beside invalid filters of 900 kB", "≤ 100"),
    "livez_bomb_ms": ("beside packed bodies that unpack to 500 MiB", "≤ 100"),
    "cluster_lost_writes": (
        "a node frozen, a node killed, a cluster killed, during searches and writes: acknowledged writes lost",
        "0",
    ),
    "cluster_wrong_answers": ("answers then that are neither right nor 503 or 504 as problem+json", "0"),
    "cluster_kill_gap_s": ("longest time without a hit or an acknowledged write after kill -9 of a node", "≤ 10"),
    "cluster_freeze_gap_s": ("the same after a node stopped to answer, deadline 5 s", "≤ 60"),
    "live_acknowledged_lost": (
        "acknowledged writes to a journal that kill -9 of a writer loses, or leaves in part",
        "0",
    ),
    "kills_in_a_swap_failed": ("starts after kill -9 in a swap that don't serve one complete version", "0"),
    "workers_killed_other_failures": ("requests not running in a killed worker that fail with it", "0"),
    "concurrent_differences": ("answers to 16 parallel clients that differ from those to one, apart from times", "0"),
    "corruptions_served": (
        "damaged bundles served: a file truncated, flipped, zeroed, extended, swapped or missing",
        "0",
    ),
    "kills_not_resumed": ("builds killed at a random moment that the same command does not bring to the same end", "0"),
    "full_disk_failures": ("full disks without a clear error, or with partial output", "0"),
    "api_cases_failed": ("requests generated from the API's description whose answer contradicts it", "0"),
    "fuzz_body_findings": ("fuzzed request bodies that raise an error from outside the project", "0"),
    "fuzz_manifest_findings": ("fuzzed manifests that raise one", "0"),
    "fuzz_lines_findings": ("fuzzed lines of documents to write that raise one", "0"),
    "fuzz_rules_findings": ("fuzzed files of rules that raise one", "0"),
    "fuzz_journal_findings": ("fuzzed ends of a journal that raise one", "0"),
    "bad_requests_failed": ("hostile requests that cause a 5xx, an unnamed error, or the end of the server", "0"),
    "mutated_requests_failed": ("requests with random bytes changed that cause a 5xx or the end of the server", "0"),
}
"""By key: what is measured, and its goal, in the order of the table."""


def record(file: Path | None, rows: Sequence[Mapping[str, Any]], command: str) -> None:
    """Write rows (`key`, `unit` and values) into the file, if there is one, in place of those with the same key."""
    if file is None:
        return
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"rows": []}
    facts, kept = origin(), {row["key"]: row for row in content["rows"] if row["key"] in OBJECTIVES}
    for row in rows:
        kept[row["key"]] = {**row, "goal": OBJECTIVES[row["key"]][1], "command": command, **facts}
    write_json(file, {**facts, "rows": [kept[key] for key in OBJECTIVES if key in kept]})


def objectives_table(content: Mapping[str, Any]) -> list[str]:
    """Return Markdown lines: how many objectives are reached, a table of those that are not or have no bound, and where
    all were measured. The others are in the file."""
    rows = {row["key"]: row for row in content["rows"] if row["key"] in OBJECTIVES}
    reached = {key: _reached(row, OBJECTIVES[key][1]) for key, row in rows.items()}
    count, bounded = sum(map(bool, reached.values())), sum(one is not None for one in reached.values())
    kept = f"{count} of {bounded} bounds are kept (`docs/results/reliability.json`)."
    lines = [f"{kept} The others, and rates without a bound:", ""]
    lines += ["| | measured | unit | goal |", "|---|---:|---|---|"]
    for key, row in sorted(rows.items(), key=lambda item: [*OBJECTIVES].index(item[0])):
        if not reached[key]:
            what, goal = OBJECTIVES[key]
            lines.append(f"| {what} | {row.get('value', row.get('p99')):,} | {row['unit']} | {goal} |")
    origins = sorted({f"{row['machine']}, {row['date'][:10]}" for row in rows.values()})
    return [*lines, "", f"Measured on {'; '.join(origins)}."]


def _reached(row: Mapping[str, Any], goal: str) -> bool | None:
    """True if a row's value, or its p99, is within a goal such as "0", "≤ 100" or "p99 ≤ 500"; None without a bound."""
    found = re.fullmatch(r"(?:p99 )?([≤≥] )?([\d,.]+)", goal)
    if found is None:
        return None
    value, bound = row.get("value", row.get("p99")), float(found[2].replace(",", ""))
    return bool(value >= bound if found[1] == "≥ " else value <= bound)
