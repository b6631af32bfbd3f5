"""Retries: exponential back-off with jitter, `Retry-After`, and one deadline for all attempts."""

import random
from dataclasses import dataclass
from time import monotonic
from typing import Final

from lightretriever.service.client.errors import ClientError

__all__ = ["Attempts", "Retries"]

_LEAST_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The number of attempts of a call, and the waits between them.

    `attempts` includes the first one. The wait doubles from `first_wait_s` up to `longest_wait_s` seconds, times a
    random factor between 0.5 and 1, plus the time of `Retry-After`.
    """

    attempts: int = 4
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def __post_init__(self) -> None:
        """ClientError for invalid numbers."""
        if self.attempts < 1:
            raise ClientError(f"attempts is {self.attempts}.", remedy="A call is made once at least: name 1 or more.")
        if not 0 < self.first_wait_s <= self.longest_wait_s:
            raise ClientError(
                f"first_wait_s is {self.first_wait_s:g}, longest_wait_s {self.longest_wait_s:g}.",
                remedy="Name times above 0, the longest wait no shorter than the first.",
            )

    def wait_s(self, made: int, retry_after_s: float) -> float:
        """Give the seconds to wait after `made` attempts (from 1), the last with this `Retry-After`."""
        # 2.0**1024 would overflow a float.
        longest = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(made - 1, 100))
        return retry_after_s + longest * random.uniform(0.5, 1)


class Attempts:
    """The attempts of one call, which share `timeout_s` seconds."""

    def __init__(self, retries: Retries, timeout_s: float) -> None:
        self._retries = retries
        self._until = monotonic() + timeout_s
        self._made = 0

    def begin(self) -> float:
        """Count an attempt; give the seconds it may take."""
        self._made += 1
        return max(_LEAST_S, self._until - monotonic())

    def wait_s(self, error: ClientError) -> float:
        """Give the seconds to wait before the next attempt, or raise the last one's error if there is no next one.

        There is none if the error is not passing, all attempts were made, or the time is too short.
        """
        if not error.passing or self._made >= self._retries.attempts:
            raise error
        wait_s = self._retries.wait_s(self._made, error.retry_after_s)
        if monotonic() + wait_s >= self._until:
            raise error
        return wait_s
