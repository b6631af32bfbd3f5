"""All errors that the service answers with: one closed table of kinds, each with status, title and documentation.

`SettingsError` ends the start of the service. A `ServiceError` is answered as application/problem+json (RFC 9457).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from lightretriever.artifacts.errors import LightRetrieverError

# They keep answers small.
MAX_FIELD_ERRORS = 20
_MAX_ECHO = 100

UNAVAILABLE = "The cluster does not answer, or lacks a part of the index. The reason is in the log; try again later."
"""The message for callers; it leaves the cluster's address out."""


class SettingsError(LightRetrieverError):
    """A setting is unknown or has a value that can't be used."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error in one field."""

    field: Annotated[str, Field(description="Path of the field, as in `fusion.weights.dense`.")]
    message: str
    value: Annotated[Any, Field(description="The value, shortened; no lists or objects.")] = None

    def __post_init__(self) -> None:
        value = self.value
        if isinstance(value, int) and abs(value) >= 2**53:
            value = str(value)
        value = shortened(value) if isinstance(value, str) else value
        object.__setattr__(self, "value", value if isinstance(value, str | int | float) else None)


class ServiceError(LightRetrieverError):
    """Base class. `detail` says what is wrong with this request and what to do, `errors` names the fields."""

    kind: ClassVar[str]
    title: ClassVar[str]
    statuses: ClassVar[Sequence[int]]
    """The first is that of an error that names none."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Headers that this error adds to the answer."""

    def __init_subclass__(cls, *, kind: str, status: int | Sequence[int], title: str) -> None:
        cls.kind, cls.title = kind, title
        cls.statuses = (status,) if isinstance(status, int) else status

    def __init__(self, detail: str, errors: Sequence[FieldError] = (), *, status: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)
        self.status = status or self.statuses[0]

    @classmethod
    def of(cls, *errors: FieldError, count: int | None = None) -> Self:
        """Make the error of one or more fields; the first one becomes the detail. Keeps the first twenty; `count` is
        the total where `errors` is incomplete."""
        first, total = errors[0], max(len(errors), count or 0)
        more = f" ({total - 1} more)" if total > 1 else ""
        return cls(f"{first.field}: {first.message}{more}", errors[:MAX_FIELD_ERRORS])

    @classmethod
    def at(cls, field: str, message: str, value: object = None) -> Self:
        """Make the error of one field."""
        return cls.of(FieldError(field, message, value))

    def within(self, path: str) -> Self:
        """Return the same error for a part of the request, such as `searches.3`."""
        errors = [replace(error, field=f"{path}.{error.field}") for error in self.errors]
        return type(self)(f"{path}{'.' if errors else ': '}{self.detail}", errors)


class InvalidBodyError(ServiceError, kind="invalid_body", status=(400, 408, 413, 415), title="The body can't be read"):
    """The body is no JSON or gzip (400), too slow (408), too large (413), or of another media type (415)."""


class UnauthorizedError(ServiceError, kind="unauthorized", status=401, title="An API key is needed"):
    """The request has no API key, or an unknown one."""

    headers = MappingProxyType({"www-authenticate": 'Bearer realm="lightretriever"'})


class ForbiddenError(ServiceError, kind="forbidden", status=403, title="The API key is not for this"):
    """The API key lacks the scope."""


class NotFoundError(ServiceError, kind="not_found", status=404, title="There is no such path"):
    """There is no such path, or no collection of this name."""


class DocumentNotFoundError(ServiceError, kind="document_not_found", status=404, title="No document has this id"):
    """No document has this id."""


class MethodNotAllowedError(ServiceError, kind="method_not_allowed", status=405, title="The method is not allowed"):
    """The path exists, but not for this method."""


class BundleRefusedError(ServiceError, kind="bundle_refused", status=409, title="The bundle was refused"):
    """The bundle in the served folder can't be served; the previous one stays in place."""


class ImmutableError(ServiceError, kind="immutable", status=409, title="A bundle's documents don't change"):
    """The service searches a bundle's own indexes, without a journal of what is written."""


class VersionConflictError(ServiceError, kind="version_conflict", status=412, title="The document has another version"):
    """The document does not have the version that `If-Match` names, or others change it all the time."""


class InvalidRequestError(ServiceError, kind="invalid_request", status=422, title="The request is not valid"):
    """A field is missing, unknown, malformed or out of range."""


class UnsearchableError(ServiceError, kind="unsearchable_query", status=422, title="The query can't be searched"):
    """The query has neither a token nor a term, or its vector is zero, so that no document is nearer than another."""


class SearchFailedError(ServiceError, kind="search_failed", status=500, title="The search failed"):
    """A required leg, or every leg, failed."""


class InternalError(ServiceError, kind="internal_error", status=500, title="The service made a mistake"):
    """A bug in the service."""


class NotReadyError(ServiceError, kind="not_ready", status=503, title="The service is not ready"):
    """The service is warming up, its threads are stuck, or its cluster is not available."""


class OverloadedError(ServiceError, kind="overloaded", status=503, title="The service has too much to do"):
    """Too many requests are waiting."""

    headers = MappingProxyType({"retry-after": "1"})


class WriteFailedError(ServiceError, kind="write_failed", status=503, title="The document was not written"):
    """The cluster or the journal did not take the document, or its deletion."""

    headers = MappingProxyType({"retry-after": "1"})


class NoRoomError(ServiceError, kind="no_room", status=507, title="There is no room for the document"):
    """The disk of the journal is full, or as many documents as it may have are written beside the bundle."""


class DeadlineError(ServiceError, kind="deadline_exceeded", status=504, title="The deadline passed"):
    """The answer was not ready in time."""


KINDS: Mapping[str, type[ServiceError]] = MappingProxyType({kind.kind: kind for kind in ServiceError.__subclasses__()})
"""All error classes by kind."""


def shortened(text: str, length: int = _MAX_ECHO) -> str:
    """Cut a text to `length` characters, the last of them an ellipsis if anything is missing."""
    return text if len(text) <= length else text[: length - 1] + "…"
