"""Who may ask, and how often."""

import ipaddress
import math
from collections import OrderedDict
from threading import Lock
from time import monotonic
from typing import Any, Final, Literal

from lightretriever.service.errors import RateLimitedError, RouteNotFoundError, UnauthorizedError
from lightretriever.service.http.api_keys import ApiKeys, KeyScope
from lightretriever.service.settings import Settings

__all__ = ["Access", "Caller", "RateLimit", "client_address"]

_MOST_CALLERS: Final = 100_000
_IPV6_NETWORK: Final = 64

Caller = tuple[Literal["key", "address"], str]
"""Who asks: an API key by its name, or an address. One can't be taken for the other."""


class RateLimit:
    """A bucket of `burst` tokens for each caller, refilled at `per_s` tokens a second; a request takes what it costs.

    A request passes if there is a token. What it costs beyond that is owed, and refilled before the next one passes.
    At most `callers` buckets are kept: that of whoever was not seen for longest goes first, and a caller without a
    bucket has a full one.
    """

    def __init__(self, per_s: float, burst: int, callers: int = _MOST_CALLERS) -> None:
        self._per_s = per_s
        self._burst = burst
        self._callers = callers
        self._buckets: OrderedDict[Caller, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._buckets)

    def take(self, caller: Caller, now: float | None = None, *, cost: int = 1, passed: bool = False) -> None:
        """Charge the caller for a request. RateLimitedError if there is no token, unless the request has `passed`
        before. `now` is a `monotonic` time in seconds."""
        now = monotonic() if now is None else now
        with self._lock:
            tokens, since = self._buckets.get(caller, (float(self._burst), now))
            tokens = min(float(self._burst), tokens + (now - since) * self._per_s)
            allowed = passed or tokens >= 1
            self._buckets[caller] = (tokens - cost if allowed else tokens, now)
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

    def __init__(self, settings: Settings) -> None:
        """SettingsError if the file of keys can't be used."""
        self.keys = None if settings.api_keys_file is None else ApiKeys(settings.api_keys_file)
        rate = settings.rate_limit_per_s
        self._limit = RateLimit(rate, settings.rate_limit_burst) if rate else None

    def enter(
        self, scope: KeyScope, authorization: str, address: str, about: dict[str, Any], collection: str
    ) -> Caller:
        """Let a request to a collection pass, from the client at this address, with its header `Authorization`, "" if
        it has none. UnauthorizedError, ForbiddenError, RateLimitedError. `about`, which the log line tells, gets the
        key's name.

        Without keys, searching is open to all and the scope `admin` gives RouteNotFoundError.
        """
        caller: Caller = ("address", _network(address))
        if self.keys is not None:
            try:
                about["key"] = self.keys.name(authorization, scope, collection)
            except UnauthorizedError:
                self._take(caller)  # guessing is limited too
                raise
            caller = ("key", about["key"])
        elif scope == "admin":
            raise RouteNotFoundError("The admin routes are off, because there is no file of API keys.")
        self._take(caller)
        return caller

    def charge(self, caller: Caller, cost: int) -> None:
        """Charge for a request that passed, and costs as much as `cost` requests."""
        if self._limit is not None:
            self._limit.take(caller, cost=cost - 1, passed=True)

    def _take(self, caller: Caller) -> None:
        if self._limit is not None:
            self._limit.take(caller)


def client_address(host: str | None) -> str:
    """The address of a client, as a proxy or the connection has it: of an IPv4-mapped IPv6 address the IPv4 address,
    and `unknown` for what is no address."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return "unknown"
    return str(getattr(address, "ipv4_mapped", None) or address)


def _network(address: str) -> str:
    """A client's address; of an IPv6 one the network, since who has one address has them all."""
    return str(ipaddress.ip_network((address, _IPV6_NETWORK), strict=False)) if ":" in address else address
