"""Documents read and written one by one: on a cluster, or beside the bundle, in a journal on this machine."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, Self, cast

import orjson

from lightretriever.artifacts.documents.bounds import check_id
from lightretriever.artifacts.documents.document import Document as CorpusDocument
from lightretriever.artifacts.errors import (
    ClusterError,
    ClusterTimeoutError,
    ConflictError,
    DiskError,
    DocumentError,
    JournalError,
    LightRetrieverError,
    ModelError,
    TokenizerError,
    UnencodedError,
)
from lightretriever.artifacts.live.documents import (
    Change,
    LiveDocuments,
    Result,
    Written,
    read_fields,
    read_impacts,
    read_vector,
)
from lightretriever.service.errors import (
    UNAVAILABLE,
    DeadlineError,
    DocumentNotFoundError,
    FieldError,
    ImmutableError,
    InvalidRequestError,
    NoRoomError,
    NotReadyError,
    VersionConflictError,
    WriteFailedError,
)
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import (
    Document,
    DocumentChange,
    DocumentChanges,
    DocumentDeleted,
    DocumentLine,
    DocumentWrite,
    DocumentWritten,
)
from lightretriever.service.search.encoder import DocumentEncoder, EncodedDocument
from lightretriever.service.search.engine import SearchEngine

__all__ = ["REFRESH_S", "DocumentPut", "change_documents", "delete_document", "get_document"]

REFRESH_S: Final = 10.0
"""Time beyond the deadline for a write that waits until searches see it."""

_NO_MODEL: Final = (
    "Send vector and impacts with it, or let `lightretriever upsert` encode it. This service has no model, which the "
    "setting `recipe` would name."
)
_log = logging.getLogger(__name__)


def get_document(engine: SearchEngine, document_id: str, clock: StageClock) -> Document:
    """Read a document, as it is now and with its version where documents can be written. DocumentNotFoundError if none
    has this id, SearchFailedError, DeadlineError, NotReadyError if the cluster is not available or the journal can't be
    read."""
    live = engine.parts.backends.live
    if live is None:
        return engine.document(document_id, clock)
    try:
        stored = live.get(_checked(document_id), _until(engine, clock))
    except (ClusterTimeoutError, TimeoutError) as error:
        raise DeadlineError("The document did not come in time. Allow more time, or try again.") from error
    except ClusterError as error:
        _log.error("documents failed", exc_info=error)
        raise NotReadyError(UNAVAILABLE) from error
    except (DiskError, JournalError) as error:
        _log.error("documents failed", exc_info=error)
        raise NotReadyError(str(error)) from error
    if stored is None:
        raise _not_found(document_id)
    fields = orjson.loads(stored.raw)
    del fields["_id"]
    return Document(id=document_id, fields=fields, version=stored.version)


@dataclass
class DocumentPut:
    """A document to write; if `wait`, `write` returns when searches see it."""

    engine: SearchEngine
    clock: StageClock
    change: Change
    wait: bool = False
    encoded: EncodedDocument | None = None

    @classmethod
    def read(
        cls,
        engine: SearchEngine,
        document_id: str,
        request: DocumentWrite,
        clock: StageClock,
        *,
        version: str | None = None,
        wait: bool = False,
    ) -> Self:
        """Check what is to be written, only over `version`, if that is given. ImmutableError where nothing can be
        written, InvalidRequestError."""
        return cls(engine, clock, _change(engine, document_id, request, version), wait)

    def write(self) -> DocumentWritten:
        """Write the document. UnencodedError if `encode` has to be called first, InvalidRequestError for what the index
        can't have, VersionConflictError, WriteFailedError, NoRoomError, and DeadlineError, which leaves open whether it
        was written."""
        until = _until(self.engine, self.clock, wait=self.wait)
        until += 0.0 if self.encoded is None else self.engine.settings.encode_timeout_s
        try:
            written = cast(Written, _write(self.engine, self.change, until, wait=self.wait))  # None is for a deletion
        except UnencodedError as error:
            if self.change.vector is not None or self.change.impacts is not None:
                raise _invalid(error, "Send both, or neither.") from error
            if self.engine.parts.document_encoder is None:
                raise _invalid(error, _NO_MODEL) from error
            raise
        return DocumentWritten(
            id=self.change.id,
            created=written.created,
            version=written.version,
            encoded=self.encoded is not None,
            cut=self.encoded is not None and self.encoded.cut,
        )

    def encode(self) -> None:
        """Let the service's model encode the document. InvalidRequestError for what it can't read."""
        # Else `write` does not ask for it.
        encoder = cast(DocumentEncoder, self.engine.parts.document_encoder)
        document = cast(CorpusDocument, self.change.document)
        with _writing():
            self.encoded = encoder.encode(document)
        self.change = replace(self.change, vector=self.encoded.vector, impacts=self.encoded.impacts)


def delete_document(
    engine: SearchEngine, document_id: str, clock: StageClock, *, version: str | None = None, wait: bool = False
) -> DocumentDeleted:
    """Delete a document. Errors as in `DocumentPut`, and DocumentNotFoundError if none has this id."""
    _live(engine)
    change = Change(_checked(document_id), version=version)
    if _write(engine, change, _until(engine, clock, wait=wait), wait=wait) is None:
        raise _not_found(document_id)
    return DocumentDeleted(id=document_id)


def change_documents(
    engine: SearchEngine, lines: Sequence[DocumentLine], clock: StageClock, *, wait: bool = False
) -> DocumentChanges:
    """Write and delete documents in the order of the lines. Errors as in `DocumentPut`; what is refused because of the
    document that is there is told for its line."""
    live, changes = _live(engine), list[Change]()
    for number, line in enumerate(lines):
        try:
            check_id(line.id)
        except ValueError as error:
            raise InvalidRequestError.of(FieldError(f"lines.{number}.id", f"{error}")) from error
        try:
            deletion = Change(line.id, version=line.version)
            changes.append(deletion if line.delete else _change(engine, line.id, line, line.version))
        except InvalidRequestError as error:
            raise error.within(f"lines.{number}") from error
    with _writing():
        results = live.write(changes, _until(engine, clock, wait=wait), wait=wait)
    return DocumentChanges(results=[_told(*one) for one in zip(changes, results, strict=True)])


def _told(change: Change, result: Result) -> DocumentChange:
    if isinstance(result, Written):
        done: Literal["created", "changed", "deleted"] = "created" if result.created else "changed"
        done = "deleted" if change.document is None else done
        return DocumentChange(id=change.id, result=done, version=result.version)
    if result is None:
        return DocumentChange(id=change.id, result="missing")
    return DocumentChange(id=change.id, result="refused", reason=str(result))


def _change(engine: SearchEngine, document_id: str, request: DocumentWrite, version: str | None) -> Change:
    """Check a document to be written. ImmutableError, InvalidRequestError."""
    live, manifest = _live(engine), engine.bundle.manifest
    with _writing():
        document = read_fields(document_id, request.fields, manifest)
        vector = None if request.vector is None else read_vector(request.vector, manifest)
        impacts = None if request.impacts is None else read_impacts(request.impacts, manifest, live.most_impact)
    return Change(document_id, document, vector, impacts, version)


def _write(engine: SearchEngine, change: Change, until: float, *, wait: bool) -> Written | None:
    """Make one change; None for a deletion of what is not there. UnencodedError passes."""
    with _writing():
        (result,) = _live(engine).write([change], until, wait=wait)
        if isinstance(result, LightRetrieverError):
            raise result
    return result


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except UnencodedError:
        raise
    except DocumentError as error:
        raise _invalid(error, error.remedy) from error
    except (ModelError, TokenizerError) as error:
        raise InvalidRequestError.of(FieldError("fields", f"the model can't read the document: {error}")) from error
    except ConflictError as error:
        raise VersionConflictError(str(error)) from error
    except (ClusterTimeoutError, TimeoutError) as error:
        raise DeadlineError(
            "The write was not confirmed in time. The change may have been made or not: repeat it."
        ) from error
    except DiskError as error:
        _log.error("write refused", exc_info=error)
        raise NoRoomError(str(error)) from error
    except (ClusterError, JournalError) as error:
        _log.error("write failed", exc_info=error)
        raise WriteFailedError(str(error)) from error


def _invalid(error: DocumentError, remedy: str) -> InvalidRequestError:
    message = error.message.removeprefix(f"{error.field}: ")
    return InvalidRequestError.of(FieldError(error.field, f"{message} {remedy}"))


def _live(engine: SearchEngine) -> LiveDocuments:
    live = engine.parts.backends.live
    if live is None:
        raise ImmutableError(
            "This service searches a bundle's own indexes, which never change: serve it with a folder for a journal "
            "(`serve BUNDLE --live DIR`) or from an OpenSearch cluster, or build a new bundle, which is swapped in."
        )
    return live


def _until(engine: SearchEngine, clock: StageClock, *, wait: bool = False) -> float:
    return clock.arrived + engine.settings.deadline_ms / 1e3 + (REFRESH_S if wait else 0.0)


def _checked(document_id: str) -> str:
    """DocumentNotFoundError for an id that no document can have."""
    try:
        return check_id(document_id)
    except ValueError:
        raise _not_found(document_id) from None


def _not_found(document_id: str) -> DocumentNotFoundError:
    return DocumentNotFoundError(f"No document has the id {document_id[:100]!r}.")
