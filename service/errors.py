"""All errors that the service answers with: one closed table of kinds, each with status, title and documentation.

`SettingsError` ends the start of the service. A `ServiceError` is answered as application/problem+json (RFC 9457).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Self

from lightretriever.artifacts.errors import LightRetrieverError

__all__ = [
    "KINDS",
    "MOST_FIELD_ERRORS",
    "BodyTimeoutError",
    "BodyTooLargeError",
    "BundleRefusedError",
    "DeadlineError",
    "DocumentNotFoundError",
    "FieldError",
    "ForbiddenError",
    "InternalError",
    "InvalidJsonError",
    "InvalidRequestError",
    "MediaTypeError",
    "MethodNotAllowedError",
    "NoDirectionError",
    "NoTokensError",
    "NotReadyError",
    "OverloadedError",
    "RateLimitedError",
    "RouteNotFoundError",
    "SearchFailedError",
    "ServiceError",
    "SettingsError",
    "UnauthorizedError",
    "shortened",
]

# They keep answers small.
MOST_FIELD_ERRORS = 20
_LONGEST_ECHO = 100


class SettingsError(LightRetrieverError):
    """A setting is unknown or has a value that can't be used."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error in one field. `field` is its path (`fusion.weights.dense`), `value` a JSON-safe echo."""

    field: str
    message: str
    value: str | int | float | bool | None = None


class ServiceError(LightRetrieverError):
    """Base class. `detail` says what is wrong with this request and what to do, `errors` names the fields."""

    kind: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]
    headers: Mapping[str, str] = MappingProxyType({})
    """Headers that this error adds to the answer."""

    def __init__(self, detail: str, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)

    @classmethod
    def of(cls, *errors: FieldError, count: int | None = None) -> Self:
        """Make the error of one or more fields; the first one becomes the detail.

        Keeps the first twenty; `count` is the total where `errors` is incomplete.
        """
        first, total = errors[0], max(len(errors), count or 0)
        more = f" ({total - 1} more)" if total > 1 else ""
        return cls(f"{first.field}: {first.message}{more}", errors[:MOST_FIELD_ERRORS])

    def within(self, place: str) -> Self:
        """Give the same error for a part of the request, such as `searches.3`."""
        errors = [replace(error, field=f"{place}.{error.field}") for error in self.errors]
        return type(self)(f"{place}{'.' if errors else ': '}{self.detail}", errors)


class InvalidJsonError(ServiceError):
    """The body is not JSON."""

    kind, status, title = "invalid_json", 400, "The body is not JSON"


class UnauthorizedError(ServiceError):
    """The request has no API key, or an unknown one."""

    kind, status, title = "unauthorized", 401, "An API key is needed"
    headers = MappingProxyType({"www-authenticate": 'Bearer realm="lightretriever"'})


class ForbiddenError(ServiceError):
    """The API key lacks the scope."""

    kind, status, title = "forbidden", 403, "The API key is not for this"


class RouteNotFoundError(ServiceError):
    """There is no such path."""

    kind, status, title = "route_not_found", 404, "There is no such path"


class DocumentNotFoundError(ServiceError):
    """No document has this id."""

    kind, status, title = "document_not_found", 404, "No document has this id"


class MethodNotAllowedError(ServiceError):
    """The path exists, but not for this method."""

    kind, status, title = "method_not_allowed", 405, "The method is not allowed here"


class BodyTimeoutError(ServiceError):
    """The body did not arrive within the deadline."""

    kind, status, title = "body_timeout", 408, "The body came too slowly"
    headers = MappingProxyType({"connection": "close"})  # don't wait for the rest of the body


class BundleRefusedError(ServiceError):
    """The bundle in the served folder can't be served; the previous one stays in place."""

    kind, status, title = "bundle_refused", 409, "The bundle was refused"


class BodyTooLargeError(ServiceError):
    """The body is over the limit."""

    kind, status, title = "body_too_large", 413, "The body is too large"


class MediaTypeError(ServiceError):
    """The body is not declared as JSON, plain or gzipped."""

    kind, status, title = "unsupported_media_type", 415, "The body must be application/json"


class InvalidRequestError(ServiceError):
    """A field is missing, unknown, malformed or out of range."""

    kind, status, title = "invalid_request", 422, "The request is not valid"


class NoTokensError(ServiceError):
    """The tokenizer finds no token in the query."""

    kind, status, title = "query_without_tokens", 422, "The query has no tokens"


class NoDirectionError(ServiceError):
    """The query's vector is zero, so no document is nearer than another."""

    kind, status, title = "query_without_direction", 422, "The query's vector is zero"


class RateLimitedError(ServiceError):
    """The caller exceeded its rate limit."""

    kind, status, title = "rate_limited", 429, "Too many requests"

    def __init__(self, detail: str, errors: Sequence[FieldError] = (), *, retry_after_s: int = 1) -> None:
        super().__init__(detail, errors)
        self.headers = {"retry-after": str(retry_after_s)}


class SearchFailedError(ServiceError):
    """A required leg, or every leg, failed."""

    kind, status, title = "search_failed", 500, "The search failed"


class InternalError(ServiceError):
    """A bug in the service."""

    kind, status, title = "internal_error", 500, "The service made a mistake"


class NotReadyError(ServiceError):
    """The service is warming up, or its threads are stuck."""

    kind, status, title = "not_ready", 503, "The service is not ready"


class OverloadedError(ServiceError):
    """Too many requests are waiting."""

    kind, status, title = "overloaded", 503, "The service has too much to do"
    headers = MappingProxyType({"retry-after": "1"})


class DeadlineError(ServiceError):
    """The answer was not ready in time."""

    kind, status, title = "deadline_exceeded", 504, "The deadline passed"


KINDS: Mapping[str, type[ServiceError]] = MappingProxyType({kind.kind: kind for kind in ServiceError.__subclasses__()})
"""All error classes by kind."""


def shortened(text: str, length: int = _LONGEST_ECHO) -> str:
    """Cut a text to `length` characters, the last of them an ellipsis if anything is missing."""
    return text if len(text) <= length else text[: length - 1] + "…"
