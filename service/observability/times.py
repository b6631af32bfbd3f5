"""A histogram of times that costs a request next to nothing: what it is told of is sorted into its buckets later."""

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final, cast

import numpy as np
from prometheus_client import Histogram
from prometheus_client.samples import Sample

__all__ = ["Times"]

_MOST: Final = 4096
"""Times that wait to be counted, where nobody asks for them."""


class Times(Histogram):
    """Prometheus' histogram, whose times wait until `count`, or until somebody reads the metrics of this process.

    In a folder that several processes share, every observation would write two numbers into mapped files: ten of them
    took 3 % of a search.
    """

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Take a time in seconds, from any thread. Exemplars are not kept."""
        self._waiting.append(amount)
        if len(self._waiting) >= _MOST:
            self.count()

    def count(self) -> None:
        """Count what waits, for all labels; from any thread."""
        if not hasattr(self, "_waiting"):  # it has labels, and each of these its own times
            for times in cast(dict[Sequence[str], Times], self._metrics).copy().values():
                times.count()
            return
        with self._counting:
            amounts = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if not amounts:
                return
            self._sum.inc(sum(amounts))
            found = np.bincount(np.searchsorted(self._upper_bounds, amounts))  # each is at most its bucket's bound
            for bucket in found.nonzero()[0].tolist():
                self._buckets[bucket].inc(int(found[bucket]))

    def _metric_init(self) -> None:
        self._waiting: deque[float] = deque()
        self._counting = Lock()
        super()._metric_init()

    def _child_samples(self) -> Iterable[Sample]:
        self.count()
        return super()._child_samples()
