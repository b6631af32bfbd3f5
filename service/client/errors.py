"""The clients' errors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from pydantic import ValidationError

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.errors import shortened
from lightretriever.service.schemas import Problem

# Temporary: too many requests, a proxy without its service, and a service that is not ready or overloaded.
_PASSING: Final = frozenset({429, 502, 503})
_ITEM: Final = re.compile(r"^(?:searches|lines)\.(\d+)")
_MAX_QUOTE: Final = 200


class ClientError(LightRetrieverError):
    """The arguments are invalid, or a subclass. `passing` says whether a retry may succeed."""

    passing = False
    retry_after_s = 0.0


class UnreachableError(ClientError):
    """There was no answer: no server listens, the connection broke, or the call timed out."""

    passing = True


class AnswerError(ClientError):
    """An error answer, with the fields of the RFC 9457 problem: `kind` is one of `service.errors.KINDS`, and
    `unexpected_answer` for an answer that is not from this service."""

    def __init__(self, problem: Problem, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{problem.detail} ({problem.status} {problem.kind})")
        self.status, self.kind, self.title, self.detail = problem.status, problem.kind, problem.title, problem.detail
        self.errors, self.request_id, self.retry_after_s = tuple(problem.errors), problem.request_id, retry_after_s
        self.passing = problem.status in _PASSING

    @classmethod
    def of_answer(cls, status: int, headers: Mapping[str, str], body: bytes, items: Sequence[str] = ()) -> Self:
        """Read an error answer; `items` are the names of the searches or documents that were sent."""
        retry_after = headers.get("retry-after", "").strip()
        wait_s = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0
        try:
            problem = Problem.model_validate_json(body, extra="ignore")
        except ValidationError:
            return cls.unexpected(status, _quoted(status, headers, body), wait_s)
        alone = f"{items[0]}{'.' if problem.errors else ': '}" if len(items) == 1 else ""

        def named(text: str) -> str:
            """Name the item in a path: `lines.3.vector` becomes `documents.p-17.vector`."""
            text, count = _ITEM.subn(lambda match: items[int(match[1])], text) if items else (text, 1)
            return text if count else f"{alone}{text}"

        errors = [replace(error, field=named(error.field)) for error in problem.errors]
        facts = {"status": status, "detail": named(problem.detail), "errors": errors}
        return cls(problem.model_copy(update=facts), wait_s)

    @classmethod
    def unexpected(cls, status: int, detail: str, retry_after_s: float = 0.0) -> Self:
        """An answer that is none of this service."""
        facts: dict[str, Any] = {"status": status, "kind": "unexpected_answer", "detail": detail}
        return cls(Problem.model_construct(**facts, title="", request_id="", errors=[]), retry_after_s)


def _quoted(status: int, headers: Mapping[str, str], body: bytes) -> str:
    if 300 <= status < 400:
        return f"The address leads to {headers.get('location', 'another place')!r}. Name that one as the base URL."
    text = " ".join(body[: 8 * _MAX_QUOTE].decode("utf-8", "replace").split())
    return f"No answer of the search service: {shortened(text, _MAX_QUOTE) or 'an empty body'}"
