"""What docs/reliability.md promises, key by key; the tests in tests/faults measure it."""

from typing import Final

from loadtest.record import Goals

__all__ = ["PROMISES"]

PROMISES: Final[Goals] = {
    "soak_growth_mb": ("memory gained under mixed load at 70 % of capacity, after the first tenth of the time", "≤ 16"),
}
"""Every key, what it measures, and what is promised."""
