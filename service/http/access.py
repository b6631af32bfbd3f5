"""Authorisation and rate limits. They run in the event loop alone, so they need no lock."""

import ipaddress
import math
from collections import OrderedDict
from time import monotonic
from typing import Final, Self

from lightretriever.service.errors import RateLimitedError, RouteNotFoundError, UnauthorizedError
from lightretriever.service.http.api_keys import ApiKeys, KeyScope
from lightretriever.service.settings import Settings

__all__ = ["Access", "RateLimit"]

_MOST_CALLERS: Final = 100_000
_IPV6_NETWORK: Final = 64


class RateLimit:
    """A bucket of `burst` tokens for each caller, refilled at `per_s` tokens a second; a request takes one.

    Keeps at most `callers` buckets and evicts the least recently used. A new bucket is full.
    """

    def __init__(self, per_s: float, burst: int, callers: int = _MOST_CALLERS) -> None:
        self._per_s = per_s
        self._burst = burst
        self._callers = callers
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._buckets)

    def take(self, caller: str, now: float | None = None) -> None:
        """Take a token of the caller. RateLimitedError if none is left. `now` is a `monotonic` time in seconds."""
        now = monotonic() if now is None else now
        tokens, before = self._buckets.get(caller, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - before) * self._per_s)
        allowed = tokens >= 1
        self._buckets[caller] = (tokens - 1 if allowed else tokens, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._callers:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = math.ceil((1 - tokens) / self._per_s)
            raise RateLimitedError(
                f"{self._per_s:g} requests a second are allowed, and {self._burst} at once. Try again in {wait} s.",
                retry_after_s=wait,
            )


class Access:
    """Checks the API key and the rate of each request."""

    def __init__(self, keys: ApiKeys | None, limit: RateLimit | None) -> None:
        self._keys = keys
        self._limit = limit

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Read keys and limits from the settings. SettingsError if the file of keys can't be used."""
        keys = None if settings.api_keys_file is None else ApiKeys(settings.api_keys_file)
        rate = settings.rate_limit_per_s
        return cls(keys, RateLimit(rate, settings.rate_limit_burst) if rate else None)

    def enter(self, scope: KeyScope, authorization: str, host: str | None) -> None:
        """Admit a request, given its header `Authorization` ("" if absent) and its client's address.
        UnauthorizedError, ForbiddenError, RateLimitedError.

        Without keys, searching is open to all and the scope `admin` gives RouteNotFoundError.
        """
        name = None
        if self._keys is not None:
            try:
                name = self._keys.name(authorization, scope)
            except UnauthorizedError:
                if self._limit is not None:
                    self._limit.take(_network(host))  # limits the guessing of keys
                raise
        elif scope == "admin":
            raise RouteNotFoundError("The admin routes are off, because there is no file of API keys.")
        if self._limit is not None:
            self._limit.take(_network(host) if name is None else f"key {name}")


def _network(host: str | None) -> str:
    """A client's IPv4 address, or its IPv6 network, since one client has all the addresses of a network."""
    if host is None:
        return "unknown"
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _IPV6_NETWORK), strict=False))
    except ValueError:
        return host
