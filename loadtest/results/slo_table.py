"""What docs/reliability.md promises, key by key; the tests in tests/faults measure it."""

from typing import Final

from lightretriever.loadtest.results.record import Goals

__all__ = ["OBJECTIVES"]

OBJECTIVES: Final[Goals] = {
    "soak_requests": ("30 minutes of mixed load at 70 % of capacity, with swaps: requests", "each answered rightly"),
    "soak_rate": ("their rate", "70 % of capacity"),
    "soak_failures": ("those answered wrongly or not at all", "0"),
    "soak_p99_ms": ("time to the answer, from when the request was due, swaps included", "p99 ≤ 500"),
    "soak_growth_mb": ("memory gained after the first tenth of the time, swaps included, Java's heap left out", "≤ 16"),
    "overload_failures": (
        "five times the capacity for a minute: requests neither answered rightly nor refused with 503 and Retry-After",
        "0",
    ),
    "overload_longest_s": ("the longest an accepted one took, deadline 5 s, network and client included", "≤ 6"),
    "overload_refused_ms": ("time to a refusal", "p99 ≤ 1,000"),
    "overload_goodput": ("answers a second meanwhile", "≥ 0.5"),
    "overload_recovery_s": ("from the last arrival until all is answered, and one more request as ever", "≤ 5"),
    "kills_in_a_swap_failed": ("starts after kill -9 in a swap that don't serve one whole version", "0"),
    "workers_killed_other_failures": ("requests that fail with a killed worker, but were not under way there", "0"),
    "concurrent_differences": ("answers to 16 clients at once that differ from those to one, times left out", "0"),
    "corruptions_served": (
        "damaged bundles that are served: a file cut, flipped, zeroed, grown, exchanged or gone",
        "0",
    ),
    "kills_not_resumed": ("builds killed at a random moment that the same command does not bring to the same end", "0"),
    "full_disk_failures": ("full disks without a clear error, or with something half-written left", "0"),
    "api_cases_failed": ("requests made from the description of the API that are not answered as it says", "0"),
    "fuzz_body_findings": ("fuzzed bodies of requests that raise what is no error of the project", "0"),
    "fuzz_manifest_findings": ("fuzzed manifests that do", "0"),
    "bad_requests_failed": ("hostile requests on the wire that bring a 5xx, an unnamed error, or the server down", "0"),
}
"""Every key, what it measures, and what is promised."""
