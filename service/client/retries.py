"""When a call is made again: exponential back-off with jitter, what the service asks for, and one deadline for all."""

import random
from dataclasses import dataclass
from time import monotonic
from typing import Final

from lightretriever.service.client.errors import ClientError

__all__ = ["Attempts", "Retries"]

_LEAST_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a call is made, and how long is waited in between.

    `attempts` counts the first one. The wait before the next one doubles from `first_wait_s` up to `longest_wait_s`
    seconds, of which a random share between a half and all is taken; the time of `Retry-After` comes on top.
    """

    attempts: int = 4
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def __post_init__(self) -> None:
        """ClientError for numbers that make no sense."""
        if self.attempts < 1:
            raise ClientError(f"attempts is {self.attempts}.", remedy="A call is made once at least: name 1 or more.")
        if not 0 < self.first_wait_s <= self.longest_wait_s:
            raise ClientError(
                f"first_wait_s is {self.first_wait_s:g}, longest_wait_s {self.longest_wait_s:g}.",
                remedy="Name times above 0, the longest wait no shorter than the first.",
            )

    def wait_s(self, made: int, retry_after_s: float) -> float:
        """Seconds to wait after `made` attempts (from 1), the last of which was told to wait `retry_after_s`."""
        # 2.0**1024 would be too large for a float, and no wait is that many doublings long.
        longest = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(made - 1, 100))
        return retry_after_s + longest * random.uniform(0.5, 1)


class Attempts:
    """The attempts of one call, which have `timeout_s` seconds together."""

    def __init__(self, retries: Retries, timeout_s: float) -> None:
        self._retries = retries
        self._until = monotonic() + timeout_s
        self._made = 0

    def begin(self) -> float:
        """Count an attempt; give the seconds it may take."""
        self._made += 1
        return max(_LEAST_S, self._until - monotonic())

    def wait_s(self, error: ClientError) -> float:
        """Give the seconds to wait before the next attempt, or raise the error of the last one if there is none.

        There is none when the error is not a passing one, when all attempts were made, and when there is no time left.
        """
        if not error.passing or self._made >= self._retries.attempts:
            raise error
        wait_s = self._retries.wait_s(self._made, error.retry_after_s)
        if monotonic() + wait_s >= self._until:
            raise error
        return wait_s
