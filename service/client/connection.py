"""The common parts of both clients: address, headers, time, retries, and the connections of each process."""

import os
import random
import re
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar, Final, Generic, TypeVar

import httpx2

from lightretriever.service.client.errors import AnswerError, ClientError, UnreachableError

T = TypeVar("T")
_KEY: Final = re.compile(r"[!-~]+")
_MAX_ANSWER_BYTES: Final = 256 << 20
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
_EXAMPLE: Final = "Write it as in http://127.0.0.1:8080."


class Connection(Generic[T]):
    """Address, headers, time limit and attempts of a client, and its client of httpx2, a `_kind` of which each process
    opens its own. ClientError for invalid values."""

    _kind: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8080",
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        attempts: int = 4,
    ) -> None:
        try:
            self._url = httpx2.URL(base_url)
        except httpx2.InvalidURL as error:
            raise ClientError(f"The base URL {base_url!r} is no address: {error}.", remedy=_EXAMPLE) from error
        if self._url.scheme not in ("http", "https") or not self._url.host or self._url.query or self._url.fragment:
            raise ClientError(f"The base URL {base_url!r} is no address of a service.", remedy=_EXAMPLE)
        if api_key is not None and not _KEY.fullmatch(api_key):
            raise ClientError("The API key has characters that no key has.", remedy="Look for spaces around it.")
        if not timeout_s > 0:
            raise ClientError(f"timeout_s is {timeout_s:g}.", remedy="Name a number of seconds above 0.")
        if attempts < 1:
            raise ClientError(f"attempts is {attempts}.", remedy="Name 1 or more.")
        headers = {"accept": "application/json", "user-agent": "lightretriever-client"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        # Where neither `repr` nor `vars` shows the key.
        self._open: Callable[[], T] = lambda: self._kind(base_url=str(self._url).rstrip("/"), headers=headers)
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._opened: dict[int, T] | None = {}
        self._http()

    def _http(self) -> T:
        """Return this process's client of httpx2. After a fork, parent and child would otherwise read each other's
        answers from the same sockets. The child leaves the parent's open: its locks may be held."""
        if self._opened is None:
            raise ClientError("The client is closed.", remedy="Make a new one, or close it later.")
        if (opened := self._opened.get(os.getpid())) is not None:
            return opened
        try:
            opened = self._open()
        except (ValueError, ImportError, httpx2.InvalidURL) as error:
            raise ClientError(
                f"The proxy of the environment can't be used: {error}",
                remedy="Correct or unset HTTP_PROXY, HTTPS_PROXY and ALL_PROXY.",
            ) from error
        return self._opened.setdefault(os.getpid(), opened)

    def _pop(self) -> T | None:
        opened, self._opened = self._opened or {}, None
        return opened.get(os.getpid())

    def _check(self, size: int, deadline: float) -> None:
        """Raise the error of an answer that is too late, or has more than 256 MiB."""
        if monotonic() > deadline:
            raise self._failed(TimeoutError())
        if size > _MAX_ANSWER_BYTES:
            detail = f"The answer has more than {_MAX_ANSWER_BYTES:,} bytes. Ask for fewer hits, or name `fields`."
            raise AnswerError.unexpected(200, detail)

    def _failed(self, error: Exception) -> ClientError:
        if isinstance(error, httpx2.DecodingError):
            return AnswerError.unexpected(200, f"The answer can't be decoded: {error}.")
        reason = str(error).rstrip(".") or type(error).__name__
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            reason = f"no answer within {self._timeout_s:g} s (timeout_s)"
        return UnreachableError(
            f"{self._url} can't be reached: {reason}.",
            remedy="Does the service run there, and the proxy, if HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names one?",
        )

    def _pause_s(self, error: ClientError, attempts: int, deadline: float, *, once: bool = False) -> float:
        """Return the seconds to wait after `attempts`, doubled each time, with jitter, or raise the last error."""
        longest = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 100))
        pause_s = error.retry_after_s + longest * random.uniform(0.5, 1)
        if once or not error.passing or attempts >= self._attempts or monotonic() + pause_s >= deadline:
            raise error
        return pause_s
