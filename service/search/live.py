"""Documents read and written one by one. Only a cluster takes them: the indexes of a bundle on this machine never
change."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import orjson
from lightretriever.artifacts.cluster.documents import read_fields, read_impacts, read_vector
from lightretriever.artifacts.corpus.bounds import check_id
from lightretriever.artifacts.errors import ClusterError, ClusterTimeoutError, ConflictError, DocumentError
from lightretriever.service.backends.base import LegGroup
from lightretriever.service.errors import (
    UNAVAILABLE,
    DeadlineError,
    DocumentNotFoundError,
    FieldError,
    ImmutableError,
    InvalidRequestError,
    NotReadyError,
    VersionConflictError,
    WriteFailedError,
)
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Document, DocumentDeleted, DocumentWrite, DocumentWritten
from lightretriever.service.search.engine import SearchEngine

__all__ = ["REFRESH_S", "delete_document", "get_document", "put_document"]

REFRESH_S: Final = 10.0
"""Time beyond the deadline for a write that waits until searches see it."""

_log = logging.getLogger(__name__)


def get_document(engine: SearchEngine, document_id: str, clock: StageClock) -> Document:
    """Read a document, on a cluster as it is now, with its version. DocumentNotFoundError if none has this id,
    SearchFailedError, DeadlineError, NotReadyError if the cluster is not available."""
    group = engine.parts.group
    if group is None:
        return engine.document(document_id, clock)
    try:
        stored = group.live.get(_checked(document_id), _until(engine, clock))
    except ClusterTimeoutError as error:
        raise _late() from error
    except ClusterError as error:
        _log.error("documents failed", exc_info=error)
        raise NotReadyError(UNAVAILABLE) from error
    if stored is None:
        raise _not_found(document_id)
    fields = orjson.loads(stored.source["raw"])
    del fields["_id"]
    return Document(id=document_id, fields=fields, version=stored.version)


def put_document(
    engine: SearchEngine,
    document_id: str,
    request: DocumentWrite,
    clock: StageClock,
    *,
    version: str | None = None,
    wait: bool = False,
) -> DocumentWritten:
    """Write a document; only over `version`, if that is given, and if `wait`, return when searches see it.

    ImmutableError without a cluster, InvalidRequestError for what the index can't have, VersionConflictError,
    WriteFailedError, and DeadlineError, which leaves open whether the document was written.
    """
    group, manifest = _group(engine), engine.bundle.manifest
    with _writing():
        document = read_fields(document_id, request.fields, group.meta, manifest.field_names)
        vector = None if request.vector is None else read_vector(request.vector, group.meta)
        impacts = None if request.impacts is None else read_impacts(request.impacts, group.meta, manifest)
        until = _until(engine, clock, wait=wait)
        written = group.live.put(document, vector, impacts, until, version=version, wait=wait)
    return DocumentWritten(id=document_id, created=written.created, version=written.version)


def delete_document(
    engine: SearchEngine, document_id: str, clock: StageClock, *, version: str | None = None, wait: bool = False
) -> DocumentDeleted:
    """Delete a document. Errors as in `put_document`, and DocumentNotFoundError if none has this id."""
    group = _group(engine)
    with _writing():
        until = _until(engine, clock, wait=wait)
        deleted = group.live.delete(_checked(document_id), until, version=version, wait=wait)
    if not deleted:
        raise _not_found(document_id)
    return DocumentDeleted(id=document_id)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except DocumentError as error:
        message = f"{error.message.removeprefix(f'{error.field}: ')} {error.remedy}"
        raise InvalidRequestError.of(FieldError(error.field, message)) from error
    except ConflictError as error:
        raise VersionConflictError(str(error)) from error
    except ClusterTimeoutError as error:
        raise _late() from error
    except ClusterError as error:
        _log.error("write failed", exc_info=error)
        raise WriteFailedError(str(error)) from error


def _group(engine: SearchEngine) -> LegGroup:
    group = engine.parts.group
    if group is None:
        raise ImmutableError(
            "This service searches a bundle's own indexes, which never change: build a new bundle, which is swapped "
            "in, or serve from an OpenSearch cluster."
        )
    return group


def _until(engine: SearchEngine, clock: StageClock, *, wait: bool = False) -> float:
    return clock.arrived + engine.settings.deadline_ms / 1e3 + (REFRESH_S if wait else 0.0)


def _checked(document_id: str) -> str:
    """DocumentNotFoundError for an id that no document can have."""
    try:
        return check_id(document_id)
    except ValueError:
        raise _not_found(document_id) from None


def _late() -> DeadlineError:
    return DeadlineError("The cluster did not answer in time. A change may have been made or not: repeat it.")


def _not_found(document_id: str) -> DocumentNotFoundError:
    return DocumentNotFoundError(f"No document has the id {document_id[:100]!r}.")
