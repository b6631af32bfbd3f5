"""Files of measured rows: `docs/results/speed.json`, and `docs/results/reliability.json` in the same form.

    {"machine": …, "date": …, "commit": …, "rows": [{"key", "value" or "p50" and "p99", "unit", "goal", "command"}]}

Rows with a goal have `goal`; the others are their components. Only programs of `research` write the first file, and
only the tests in tests/faults the second. Every row also has the machine, date and commit of its own measurement;
those of the file are the latest row's.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.record import origin, write_json

__all__ = ["GOALS", "OBJECTIVES", "Goals", "record"]

Goals = Mapping[str, tuple[str, str]]
"""By key: what it measures, and the goal, in the order of the table."""

GOALS: Final[Goals] = {
    "search_overhead": ("hybrid search in process ÷ the slower of Faiss and Lucene alone, p50", "≤ 1.2"),
    "parallel_gain": ("Faiss and Lucene one after the other ÷ hybrid search in process, p50", "≥ 1.15"),
    "http_overhead": ("what HTTP adds to a search ÷ an empty route, p50", "≤ 3.0"),
    "request_cpu_ms": ("processor time of a request over HTTP, one process, 8 connections, ms", "≤ 1.7"),
    "saturated_qps": ("saturated requests/s, one process, 8 connections", "≥ 900"),
    "saturated_two_qps": ("saturated requests/s, two processes, 8 connections", "≥ 1,000"),
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

OBJECTIVES: Final[Goals] = {
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
"""The objectives in docs/lab/faults.md; the tests in tests/faults measure them."""


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
