"""The connection settings that both clients share."""

import os
import re
from collections.abc import Callable
from functools import cache
from ssl import SSLContext
from typing import Final, Generic, TypedDict, TypeVar

import httpx2

from lightretriever.service.client.errors import AnswerError, ClientError, UnreachableError
from lightretriever.service.client.proxies import EnvironmentProxy
from lightretriever.service.client.retries import Attempts, Retries

__all__ = ["Connection", "HttpOptions", "PerProcess", "check_process"]

T = TypeVar("T")

_KEY: Final = re.compile(r"[!-~]+")


class HttpOptions(TypedDict):
    """Arguments of httpx2's clients."""

    base_url: str
    headers: dict[str, str]
    verify: SSLContext
    proxy: httpx2.Proxy | None
    trust_env: bool


class Connection:
    """Address, headers, time limit and retries of a client. ClientError for invalid values."""

    def __init__(self, base_url: str, *, api_key: str | None, timeout_s: float, retries: Retries | None) -> None:
        self.address = _address(base_url)
        self._proxy = EnvironmentProxy.of(self.address)
        self.headers = {"accept": "application/json", "user-agent": "lightretriever-client"}
        if api_key is not None:
            if not _KEY.fullmatch(api_key):
                raise ClientError("The API key has characters that no key has.", remedy="Look for spaces around it.")
            self.headers["authorization"] = f"Bearer {api_key}"
        if not timeout_s > 0:
            raise ClientError(f"timeout_s is {timeout_s:g}.", remedy="Name a number of seconds above 0.")
        self.timeout_s = timeout_s
        self.retries = retries or Retries()

    def http_options(self) -> HttpOptions:
        """Give the arguments of httpx2's clients."""
        proxy = None if self._proxy is None else self._proxy.proxy
        # What it would take from the environment is the proxy; of one that it can't use it makes a ValueError.
        return {
            "base_url": self.address,
            "headers": self.headers,
            "verify": _tls(),
            "proxy": proxy,
            "trust_env": False,
        }

    def attempts(self, *, once: bool) -> Attempts:
        """Begin a call."""
        return Attempts(Retries(attempts=1) if once else self.retries, self.timeout_s)

    def late(self) -> UnreachableError:
        """The whole call timed out."""
        return UnreachableError.late(self._way(), self.timeout_s)

    def failed(self, error: httpx2.HTTPError) -> ClientError:
        """Convert an error of httpx2."""
        if isinstance(error, httpx2.TimeoutException):
            return self.late()
        if isinstance(error, httpx2.DecodingError):
            return AnswerError(status=200, kind="unexpected_answer", detail=f"The answer can't be decoded: {error}.")
        return UnreachableError.broken(self._way(), error, by_proxy=self._proxy is not None)

    def _way(self) -> str:
        """The address, and the proxy on the way to it."""
        if self._proxy is None:
            return self.address
        return f"{self.address} by the proxy {self._proxy} ({self._proxy.variable})"


class PerProcess(Generic[T]):
    """A resource with sockets and locks, opened anew in each process that uses it.

    After a fork, parent and child would otherwise read each other's answers from the same sockets, and a lock that
    another thread of the parent held would stay held in the child.
    """

    def __init__(self, open_resource: Callable[[], T]) -> None:
        self._open = open_resource
        self._opened: tuple[int, T] | None = (os.getpid(), open_resource())

    def get(self) -> T:
        """Return this process's resource. ClientError after `pop`."""
        opened = self._opened
        if opened is None:
            raise ClientError("The client is closed.", remedy="Make a new one, or close it later.")
        if opened[0] != os.getpid():
            # The parent's is dropped, not closed: its locks may be held, and its sockets are the parent's.
            self._opened = opened = (os.getpid(), self._open())
        return opened[1]

    def pop(self) -> T | None:
        """Return this process's resource, to be closed; None if it has none."""
        opened, self._opened = self._opened, None
        return opened[1] if opened is not None and opened[0] == os.getpid() else None


def check_process(process: int) -> None:
    """Raise ClientError in another process than the one with this id, where a stream's threads don't exist."""
    if os.getpid() != process:
        raise ClientError("The stream was begun in another process.", remedy="Begin one in each process.")


@cache
def _tls() -> SSLContext:
    """Read the system's trusted certificates, which takes longer than a search."""
    return httpx2.create_ssl_context()


def _address(base_url: str) -> str:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ClientError(f"The base URL {base_url!r} is no address: {error}.", remedy=_EXAMPLE) from error
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise ClientError(f"The base URL {base_url!r} is no address of a service.", remedy=_EXAMPLE)
    return base_url.rstrip("/")


_EXAMPLE: Final = "Write it as in http://127.0.0.1:8080."
