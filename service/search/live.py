"""Documents read and written one by one. Only a cluster takes them: the indexes of a bundle on this machine never
change."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self, cast

import numpy as np
import numpy.typing as npt
import orjson
from lightretriever.artifacts.cluster.documents import read_fields, read_impacts, read_vector
from lightretriever.artifacts.corpus.beir import Document as CorpusDocument
from lightretriever.artifacts.corpus.bounds import check_id
from lightretriever.artifacts.errors import (
    ClusterError,
    ClusterTimeoutError,
    ConflictError,
    DocumentError,
    ModelError,
    TokenizerError,
    UnencodedError,
)
from lightretriever.service.backends.base import ClusterIndex
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
from lightretriever.service.search.document_encoder import DocumentEncoder, EncodedDocument
from lightretriever.service.search.engine import SearchEngine

__all__ = ["REFRESH_S", "DocumentPut", "delete_document", "get_document"]

REFRESH_S: Final = 10.0
"""Time beyond the deadline for a write that waits until searches see it."""

_NO_MODEL: Final = (
    "Send vector and impacts with it, or let `lightretriever upsert` encode it. This service has no model, which the "
    "setting `recipe` would name."
)
_log = logging.getLogger(__name__)


def get_document(engine: SearchEngine, document_id: str, clock: StageClock) -> Document:
    """Read a document, on a cluster as it is now, with its version. DocumentNotFoundError if none has this id,
    SearchFailedError, DeadlineError, NotReadyError if the cluster is not available."""
    group = engine.parts.backends.cluster
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


@dataclass
class DocumentPut:
    """A document to write, only over `version`, if that is given; if `wait`, `write` returns when searches see it."""

    engine: SearchEngine
    clock: StageClock
    document: CorpusDocument
    vector: npt.NDArray[np.float32] | None
    impacts: Mapping[str, int] | None
    version: str | None = None
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
        """Check what is to be written. ImmutableError without a cluster, InvalidRequestError."""
        group, manifest = _group(engine), engine.bundle.manifest
        with _writing():
            document = read_fields(document_id, request.fields, group.meta, manifest.field_names)
            vector = None if request.vector is None else read_vector(request.vector, group.meta)
            impacts = None if request.impacts is None else read_impacts(request.impacts, group.meta, manifest)
        return cls(engine, clock, document, vector, impacts, version, wait)

    def write(self) -> DocumentWritten:
        """Write the document. UnencodedError if `encode` has to be called first, InvalidRequestError for what the index
        can't have, VersionConflictError, WriteFailedError, and DeadlineError, which leaves open whether it was written.
        """
        until = _until(self.engine, self.clock, wait=self.wait)
        until += 0.0 if self.encoded is None else self.engine.settings.encode_timeout_s
        live = _group(self.engine).live
        try:
            with _writing():
                written = live.put(
                    self.document, self.vector, self.impacts, until, version=self.version, wait=self.wait
                )
        except UnencodedError as error:
            if self.vector is not None or self.impacts is not None:
                raise _invalid(error, "Send both, or neither.") from error
            if self.engine.parts.document_encoder is None:
                raise _invalid(error, _NO_MODEL) from error
            raise
        return DocumentWritten(
            id=self.document.id,
            created=written.created,
            version=written.version,
            encoded=self.encoded is not None,
            cut=self.encoded is not None and self.encoded.cut,
        )

    def encode(self) -> None:
        """Let the service's model encode the document. InvalidRequestError for what it can't read."""
        encoder = cast(DocumentEncoder, self.engine.parts.document_encoder)  # else `write` does not ask for it
        with _writing():
            self.encoded = encoder.encode(self.document)
        self.vector, self.impacts = self.encoded.vector, self.encoded.impacts


def delete_document(
    engine: SearchEngine, document_id: str, clock: StageClock, *, version: str | None = None, wait: bool = False
) -> DocumentDeleted:
    """Delete a document. Errors as in `DocumentPut`, and DocumentNotFoundError if none has this id."""
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
    except UnencodedError:
        raise
    except DocumentError as error:
        raise _invalid(error, error.remedy) from error
    except (ModelError, TokenizerError) as error:
        raise InvalidRequestError.of(FieldError("fields", f"the model can't read the document: {error}")) from error
    except ConflictError as error:
        raise VersionConflictError(str(error)) from error
    except ClusterTimeoutError as error:
        raise _late() from error
    except ClusterError as error:
        _log.error("write failed", exc_info=error)
        raise WriteFailedError(str(error)) from error


def _invalid(error: DocumentError, remedy: str) -> InvalidRequestError:
    message = error.message.removeprefix(f"{error.field}: ")
    return InvalidRequestError.of(FieldError(error.field, f"{message} {remedy}"))


def _group(engine: SearchEngine) -> ClusterIndex:
    group = engine.parts.backends.cluster
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
