"""Who may ask, and how often. A limit on the rate is asked in the event loop alone, so it needs no lock."""

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

    At most `callers` buckets are kept: that of whoever was not seen for longest goes first, and a caller without a
    bucket has a full one.
    """

    def __init__(self, per_s: float, burst: int, callers: int = _MOST_CALLERS) -> None:
        self._per_s = per_s
        self._burst = burst
        self._callers = callers
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Buckets that are kept."""
        return len(self._buckets)

    def take(self, caller: str, now: float | None = None) -> None:
        """Let the caller's request through, or raise RateLimitedError. `now` is a `monotonic` time in seconds."""
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
    """Lets a request pass, or says why not."""

    def __init__(self, keys: ApiKeys | None, limit: RateLimit | None) -> None:
        self._keys = keys
        self._limit = limit

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Make the access that the settings describe. SettingsError if the file of keys can't be used."""
        keys = None if settings.api_keys_file is None else ApiKeys(settings.api_keys_file)
        rate = settings.rate_limit_per_s
        return cls(keys, RateLimit(rate, settings.rate_limit_burst) if rate else None)

    def enter(self, scope: KeyScope, authorization: str, host: str | None) -> None:
        """Let a request pass, with its header `Authorization`, "" if it has none, from the client at this address.
        UnauthorizedError, ForbiddenError, RateLimitedError.

        Without keys searching is open to all, and what needs the scope `admin` does not exist: RouteNotFoundError.
        """
        name = None
        if self._keys is not None:
            try:
                name = self._keys.name(authorization, scope)
            except UnauthorizedError:
                if self._limit is not None:
                    self._limit.take(_network(host))  # guessing is limited too
                raise
        elif scope == "admin":
            raise RouteNotFoundError("The admin routes are off, because there is no file of API keys.")
        if self._limit is not None:
            self._limit.take(_network(host) if name is None else f"key {name}")


def _network(host: str | None) -> str:
    """A client's address; of an IPv6 one the network, since who has one address has them all."""
    if host is None:
        return "unknown"
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _IPV6_NETWORK), strict=False))
    except ValueError:
        return host
