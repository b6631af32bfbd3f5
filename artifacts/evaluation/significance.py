"""Whether two systems differ by more than chance: the paired t-test over the queries of a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

__all__ = ["PairedTest", "paired_test"]

_ALIKE: Final = 1e-9  # differences this close are one number, rounded differently


@dataclass(frozen=True)
class PairedTest:
    """The mean difference over `queries` queries, and how likely one as large is (two-sided) if there is none."""

    difference: float
    p: float
    queries: int


def paired_test(one: Sequence[float], other: Sequence[float]) -> PairedTest:
    """Student's t-test of the differences one - other, query by query: t = mean / (deviation / √n), n - 1 degrees.

    Both have one value per query, in the same order. Differences that are all alike leave no chance to estimate: p is
    1 where they are 0, else 0. Raises ValueError for different numbers of queries, or fewer than two.
    """
    if len(one) != len(other) or len(one) < 2:
        raise ValueError(f"a paired test needs two values or more on both sides, found {len(one)} and {len(other)}")
    differences = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    mean = float(differences.mean())
    if np.ptp(differences) < _ALIKE:
        return PairedTest(mean, float(abs(mean) < _ALIKE), len(differences))
    return PairedTest(mean, float(stats.ttest_1samp(differences, 0.0).pvalue), len(differences))
