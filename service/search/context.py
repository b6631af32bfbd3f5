"""What all steps of one search share: the parts that it uses, its checked request, its clock, and what went wrong."""

import logging
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Literal

from lightretriever.service.errors import DeadlineError
from lightretriever.service.execution.executor import Reason
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName
from lightretriever.service.search.parts import Parts
from lightretriever.service.search.request import Plan

__all__ = ["RERANK_UNTIL", "RESCORE_UNTIL", "SEARCH_UNTIL", "SearchContext"]

_log = logging.getLogger(__name__)

SEARCH_UNTIL: Final = 0.8
"""Share of the deadline, counted from the arrival, at which the legs are given up. The rest is for later steps."""

RESCORE_UNTIL: Final = 0.9
"""Share at which candidates are no longer scored."""

RERANK_UNTIL: Final = 0.97
"""Share at which the reranking model is given up."""


@dataclass(slots=True)
class SearchContext:
    """A search under way.

    missing: legs that did not answer, and the reranking model if it didn't. unscored: legs that answered but did not
    score the other leg's candidates.
    """

    parts: Parts
    plan: Plan
    clock: StageClock
    missing: dict[LegName | Literal["rerank"], Reason] = field(default_factory=dict)
    unscored: dict[LegName, Reason] = field(default_factory=dict)

    def until(self, share: float = 1.0) -> float:
        """Return the `perf_counter` time at which a share of the deadline is over."""
        return self.clock.arrived + share * self.plan.deadline_ms / 1e3

    def require_time(self, task: str) -> None:
        """Raise DeadlineError, which names the task, if the deadline is over."""
        if perf_counter() >= self.until():
            raise DeadlineError(
                f"There was no time left to {task} within {self.plan.deadline_ms:g} ms. "
                "Allow more time, or ask for less."
            )

    def log_failure(self, name: LegName, error: BaseException) -> None:
        """Log why a leg failed."""
        _log.error("leg failed", exc_info=error, extra={"leg": name, "backend": self.parts.backends.legs[name].backend})
