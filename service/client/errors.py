"""The clients' errors.

LightRetrieverError
└── ClientError               the arguments are invalid
    ├── AnswerError           the service, or something else at its address, answered with an error
    └── UnreachableError      there was no answer
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Self

from pydantic import ValidationError

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.errors import (
    BodyTooLargeError,
    DeadlineError,
    FieldError,
    InvalidRequestError,
    shortened,
)
from lightretriever.service.http.problems import field_errors
from lightretriever.service.schemas import FieldProblem, Problem

__all__ = ["AnswerError", "ClientError", "UnreachableError", "document_place"]

# Temporary: too many requests, a proxy without its service, and a service that is not ready or overloaded.
_PASSING: Final = frozenset({429, 502, 503})
_LONGEST_ANSWER: Final = 200
_POSITION: Final = re.compile(r"^searches\.(\d+)")
_LINE: Final = re.compile(r"^lines\.(\d+)")
# All others are about the caller or the state of the service.
_OF_A_DOCUMENT: Final = frozenset({InvalidRequestError.kind, BodyTooLargeError.kind, DeadlineError.kind})


class ClientError(LightRetrieverError):
    """Base class. `passing` says whether a retry may succeed."""

    passing = False
    retry_after_s = 0.0


class UnreachableError(ClientError):
    """There was no answer: no server listens, the connection broke, or the call timed out (then `passing` is false)."""

    def __init__(self, message: str, *, remedy: str, passing: bool = True) -> None:
        super().__init__(message, remedy=remedy)
        self.passing = passing

    @classmethod
    def late(cls, address: str, timeout_s: float) -> Self:
        """The whole call timed out."""
        message = f"No answer from {address} within {timeout_s:g} s."
        return cls(message, remedy="Allow more time with timeout_s.", passing=False)

    @classmethod
    def broken(cls, address: str, error: Exception, *, by_proxy: bool = False) -> Self:
        """No server listens, or the connection broke, perhaps that to a proxy."""
        reason = str(error).rstrip(".") or type(error).__name__
        remedy = "Do the proxy and the service run? NO_PROXY names hosts without a proxy." if by_proxy else ""
        return cls(f"{address} can't be reached: {reason}.", remedy=remedy or "Does the service run there?")


class AnswerError(ClientError):
    """An error answer, with all fields of the RFC 9457 problem.

    `status` is the HTTP status and `kind` the stable name (docs/service.md). The client does not send a request that
    doesn't fit the schema, and raises the error that the service would answer with (`invalid_request`, 422). An answer
    that is not from this service has the kind `unexpected_answer`.
    """

    def __init__(
        self,
        *,
        status: int,
        kind: str,
        detail: str,
        title: str = "",
        errors: Iterable[FieldProblem] = (),
        request_id: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(f"{detail} ({status} {kind})")
        self.status = status
        self.kind = kind
        self.title = title
        self.detail = detail
        self.errors = tuple(errors)
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.passing = status in _PASSING

    @classmethod
    def of_answer(
        cls, status: int, headers: Mapping[str, str], body: bytes, *, first: int = 0, ids: Sequence[str] = ()
    ) -> Self:
        """Read an error answer; `first` is the position of a batch's first search among all searches, `ids` are those
        of the documents that were sent, a line each."""
        wait_s = _retry_after_s(headers.get("retry-after", ""))
        try:
            problem = Problem.model_validate_json(body, extra="ignore")
        except ValidationError:
            detail = _unknown_answer(status, headers, body)
            return cls(status=status, kind="unexpected_answer", detail=detail, retry_after_s=wait_s)
        error = cls(
            status=status,
            kind=problem.kind,
            title=problem.title,
            detail=_moved(problem.detail, first, ids),
            errors=[error.model_copy(update={"field": _moved(error.field, first, ids)}) for error in problem.errors],
            request_id=problem.request_id,
            retry_after_s=wait_s,
        )
        return error.of_document(ids[0]) if len(ids) == 1 and not _LINE.match(problem.detail) else error

    def of_document(self, document_id: str) -> Self:
        """Name the document in an error that may be due to it."""
        if self.kind not in _OF_A_DOCUMENT:
            return self
        place = document_place(document_id)
        return type(self)(
            status=self.status,
            kind=self.kind,
            title=self.title,
            detail=f"{place}.{self.detail}" if self.errors else f"{place}: {self.detail}",
            errors=[error.model_copy(update={"field": f"{place}.{error.field}"}) for error in self.errors],
            request_id=self.request_id,
            retry_after_s=self.retry_after_s,
        )

    @classmethod
    def of_request(cls, error: ValidationError, *, place: str = "") -> Self:
        """Make the error of a request that was not sent; `place` is its position in a batch."""
        refused = InvalidRequestError.of(*field_errors(error), count=error.error_count())
        if place:
            refused = refused.within(place)
        errors = [
            FieldProblem(field=_sendable(item.field), message=item.message, value=_echo(item.value))
            for item in refused.errors
        ]
        return cls(
            status=refused.status,
            kind=refused.kind,
            title=refused.title,
            detail=_sendable(refused.detail),
            errors=errors,
        )

    @classmethod
    def unsendable(cls, field: str) -> Self:
        """A text has lone surrogates, which UTF-8, and so JSON, can't express."""
        wrong = FieldError(field, "unable to parse the text as Unicode: remove its lone surrogates")
        refused = InvalidRequestError.of(wrong)
        return cls(
            status=refused.status,
            kind=refused.kind,
            title=refused.title,
            detail=refused.detail,
            errors=[FieldProblem(field=wrong.field, message=wrong.message)],
        )

    @classmethod
    def unreadable(cls, model: str, error: ValidationError) -> Self:
        """An answer with status 200 does not fit the expected model."""
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        detail = f"The answer is no {model} of this version: {place}: {first['msg']}. Is this the search service?"
        return cls(status=HTTPStatus.OK, kind="unexpected_answer", detail=detail)


def _unknown_answer(status: int, headers: Mapping[str, str], body: bytes) -> str:
    if 300 <= status < 400:
        return f"The address leads to {headers.get('location', 'another place')!r}. Name that one as the base URL."
    text = " ".join(body.decode("utf-8", "replace").split())
    return f"No answer of the search service: {shortened(text, _LONGEST_ANSWER) or 'an empty body'}"


def _retry_after_s(header: str) -> float:
    """Read seconds to wait from a number of seconds or a date; 0 for anything else."""
    text = header.strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def document_place(document_id: str) -> str:
    """Give the beginning of the paths of a document's fields."""
    return f"documents.{shortened(document_id)}"


def _moved(text: str, first: int, ids: Sequence[str]) -> str:
    """Shift the position in a path: `searches.3.query` becomes `searches.67.query` if `first` is 64. Of lines with ids,
    `lines.3.vector` becomes `documents.p-17.vector`."""
    if ids:
        return _LINE.sub(lambda found: document_place(ids[int(found[1])]), text)
    return _POSITION.sub(lambda found: f"searches.{int(found[1]) + first}", text)


def _echo(value: str | int | float | bool | None) -> str | int | float | bool | None:
    return _sendable(value) if isinstance(value, str) else value


def _sendable(text: str) -> str:
    """Escape lone surrogates, which can be neither sent nor printed."""
    return text.encode("utf-8", "backslashreplace").decode()
