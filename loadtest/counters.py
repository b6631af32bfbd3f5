"""Counters of the outcomes of one run's requests, and the times of the answered ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from time import perf_counter
from typing import Any, Final

from lightretriever.loadtest.connection import Ticket
from lightretriever.loadtest.record import latency

__all__ = ["COUNTS", "Counters", "median_of"]

COUNTS: Final = ("answered", "degraded", "refused", "failed", "late")
"""Kinds of outcomes; `answered` includes `degraded`.

answered  status 200
degraded  status 200, but a leg is missing in the answer
refused   429, 503, 504, or no connection
failed    any other status, a broken connection, malformed HTTP
late      not answered within the time limit, sent or not
"""

_REFUSALS: Final = frozenset({429, 503, 504})
_NEEDED: Final = {"p95_ms": 20, "p99_ms": 100}
_DEGRADED: Final = b'"degraded":["'


@dataclass
class Counters:
    """Counts, and seconds of answered requests from when they were due to the answer.

    `lags`: seconds from when a request was due to when it was written, including the wait for a free connection and any
    delay of the generator.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    seconds: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)

    def answer(self, ticket: Ticket, status: int, body: bytes) -> None:
        """Count an answer that has just arrived."""
        self.lags.append(ticket.sent - ticket.due)
        if status == 200:
            self.seconds.append(perf_counter() - ticket.due)
            self.counts["answered"] += 1
            self.counts["degraded"] += _DEGRADED in body
        else:
            self.counts["refused" if status in _REFUSALS else "failed"] += 1

    def count(self, kind: str) -> None:
        """Count an outcome without an answer."""
        self.counts[kind] += 1

    @property
    def ended(self) -> int:
        """Number of ended requests."""
        return sum(self.counts.values()) - self.counts["degraded"]

    def summary(self, wall_s: float) -> dict[str, Any]:
        """Give counts, `qps` (complete answers a second), latency in ms if there are answers, and lag."""
        times = {f"{name}_ms": value for name, value in latency(self.seconds, 1e3).items()} if self.seconds else {}
        lag = latency(self.lags, 1e3)["p99"] if self.lags else None
        whole = self.counts["answered"] - self.counts["degraded"]
        return {**self.counts, "qps": round(whole / wall_s, 2), **times, "lag_p99_ms": lag}


def median_of(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    """Give the median of a value over the rows that have it; for an even number, the mean of the middle two.

    Ignores a p95 or p99 of fewer than 20 or 100 answers: it is the slowest answer's time, which is not reproducible.
    """
    asked = [row for row in rows if row.get("answered", inf) >= _NEEDED.get(key, 0)]
    values = [row[key] for row in asked if row.get(key) is not None]
    return float(median(values)) if values else None
