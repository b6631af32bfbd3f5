"""Documents read and written one by one: on a cluster, or beside the bundle, in a journal on this machine."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, cast

import orjson

from lightretriever.artifacts import errors as causes
from lightretriever.artifacts.documents.bounds import check_id
from lightretriever.artifacts.documents.document import Document as CorpusDocument
from lightretriever.artifacts.live.documents import (
    Change,
    Encoded,
    LiveDocuments,
    Result,
    Written,
    read_fields,
    read_impacts,
    read_vector,
)
from lightretriever.service import errors, schemas
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.engine import SearchEngine

REFRESH_S: Final = 10.0
"""Time beyond the deadline for a write that waits until searches see it."""

_NO_MODEL: Final = "Send vector and impacts, use `lightretriever upsert`, or serve with a model (the setting `recipe`)."
_log = logging.getLogger(__name__)


def get_document(engine: SearchEngine, document_id: str, clock: StageClock) -> schemas.Document:
    """Read a document, as it is now and with its version where documents can be written. Errors as in `Documents`, and
    DocumentNotFoundError."""
    live = engine.parts.backends.live
    if live is None:
        return engine.document(document_id, clock)
    try:
        stored = live.get(_checked(document_id), _deadline(engine, clock))
    except (causes.ClusterTimeoutError, TimeoutError) as error:
        raise errors.DeadlineError("The document did not come in time. Allow more time, or try again.") from error
    except (causes.ClusterError, causes.DiskError, causes.JournalError) as error:
        _log.error("documents failed", exc_info=error)
        reason = errors.UNAVAILABLE if isinstance(error, causes.ClusterError) else str(error)
        raise errors.NotReadyError(reason) from error
    if stored is None:
        raise _not_found(document_id)
    fields = orjson.loads(stored.raw)
    del fields["_id"]
    return schemas.Document(id=document_id, fields=fields, version=stored.version)


class DocumentWrites:
    """The changes of a request: what the model has to read is encoded first, then all are made together."""

    def __init__(
        self, engine: SearchEngine, clock: StageClock, changes: Sequence[Change], *, wait: bool, many: bool = False
    ) -> None:
        """With `many`, errors name the line of a change. If `wait`, the request is answered when all searches see the
        changes. ImmutableError where nothing can be written, and errors as of `write`."""
        self.engine, self.changes, self.wait = engine, list(changes), wait
        self.live = _live(engine)
        self._many = many
        self._encoded: dict[int, Encoded] = {}
        self._deadline = _deadline(engine, clock, wait=wait)
        self.new: list[int] = []
        """Indexes of the changes that `encode` has to read; none without a model."""
        if engine.parts.document_encoder is not None:
            with _writing():
                self.new = self.live.to_encode(self.changes, self._deadline)
            self._deadline += engine.settings.encode_timeout_s if self.new else 0.0

    def encode(self, indexes: Sequence[int]) -> None:
        """Encode the documents of some changes by the service's model. InvalidRequestError for what it can't read."""
        encoder = self.engine.parts.document_encoder
        if encoder is None:
            return
        documents = [cast(CorpusDocument, self.changes[index].document) for index in indexes]
        try:
            with _writing():
                encoded = encoder.encode(documents)
        except errors.InvalidRequestError as error:
            if len(indexes) == 1:
                raise (error.within(f"lines.{indexes[0]}") if self._many else error) from error
            for index in indexes:  # the wrong one raises again
                self.encode([index])
            return
        for index, encoding in zip(indexes, encoded, strict=True):
            self.changes[index] = replace(self.changes[index], vector=encoding.vector, impacts=encoding.impacts)
            self._encoded[index] = encoding

    def write(self) -> list[Result]:
        """Make the changes, and return what became of each. WriteFailedError, NoRoomError, and DeadlineError, which
        leaves open whether they were made."""
        with _writing():
            return self.live.write(self.changes, self._deadline, wait=self.wait)

    def changed_one(self, results: Sequence[Result]) -> schemas.DocumentChange:
        """Return the answer for the only change. InvalidRequestError for what the index can't have,
        VersionConflictError, and DocumentNotFoundError where there is nothing to delete."""
        ((change, result),) = zip(self.changes, results, strict=True)
        if isinstance(result, causes.UnencodedError):
            has_encoding = change.vector is not None or change.impacts is not None
            raise _invalid(result, "Send both, or neither." if has_encoding else _NO_MODEL)
        with _writing():
            if isinstance(result, causes.LightRetrieverError):
                raise result
        if result is None:
            raise _not_found(change.id)
        return self.changed(results).results[0]

    def changed(self, results: Sequence[Result]) -> schemas.DocumentChanges:
        """Return the answer for many; what is refused because of the document that is there is told for its line."""
        changes, facts = list[schemas.DocumentChange](), dict[str, Any]()
        for index, (change, result) in enumerate(zip(self.changes, results, strict=True)):
            if isinstance(result, Written):
                done = "deleted" if change.document is None else "created" if result.created else "changed"
                facts = {"result": done, "version": result.version}
                if (encoding := self._encoded.get(index)) is not None:
                    facts |= {"encoded": True, "cut": encoding.cut}
            elif result is None:
                facts = {"result": "missing"}
            else:
                facts = {"result": "refused", "reason": str(result)}
            changes.append(schemas.DocumentChange.model_validate({"id": change.id, **facts}))
        return schemas.DocumentChanges(results=changes)

    def seen(self, position: int) -> bool:
        """True if all searches see the changes up to a position. DeadlineError when it is too late."""
        if self.live.followed(position):
            return True
        if perf_counter() >= self._deadline:
            raise errors.DeadlineError("The change was made, but another process did not search it in time.")
        return False


def read_lines(engine: SearchEngine, lines: Sequence[schemas.DocumentLine]) -> list[Change]:
    """Check documents to write and to delete. ImmutableError, InvalidRequestError."""
    changes = list[Change]()
    for number, line in enumerate(lines):
        try:
            check_id(line.id)
        except ValueError as error:
            raise errors.InvalidRequestError.at(f"lines.{number}.id", f"{error}") from error
        try:
            deletion = Change(line.id, version=line.version)
            changes.append(deletion if line.delete else read_change(engine, line.id, line, line.version))
        except errors.InvalidRequestError as error:
            raise error.within(f"lines.{number}") from error
    return changes


def read_deletion(document_id: str, version: str | None) -> Change:
    """Check an id to delete. DocumentNotFoundError for one that no document can have."""
    return Change(_checked(document_id), version=version)


def read_change(engine: SearchEngine, document_id: str, request: schemas.DocumentWrite, version: str | None) -> Change:
    """Check a document to be written. ImmutableError, InvalidRequestError."""
    live, manifest = _live(engine), engine.bundle.manifest
    with _writing():
        document = read_fields(document_id, request.fields, manifest)
        vector = None if request.vector is None else read_vector(request.vector, manifest)
        impacts = None if request.impacts is None else read_impacts(request.impacts, manifest, live.most_impact)
    return Change(document_id, document, vector, impacts, version)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except causes.DocumentError as error:
        raise _invalid(error, error.remedy) from error
    except (causes.ModelError, causes.TokenizerError) as error:
        raise errors.InvalidRequestError.at("fields", f"the model can't read the document: {error}") from error
    except causes.ConflictError as error:
        raise errors.VersionConflictError(str(error)) from error
    except (causes.ClusterTimeoutError, TimeoutError) as error:
        raise errors.DeadlineError("The write was not confirmed in time, and may have been made: repeat it.") from error
    except causes.DiskError as error:
        _log.error("write refused", exc_info=error)
        raise errors.NoRoomError(str(error)) from error
    except (causes.ClusterError, causes.JournalError) as error:
        _log.error("write failed", exc_info=error)
        raise errors.WriteFailedError(str(error)) from error


def _invalid(error: causes.DocumentError, remedy: str) -> errors.InvalidRequestError:
    message = error.message.removeprefix(f"{error.field}: ")
    return errors.InvalidRequestError.at(error.field, f"{message} {remedy}")


def _live(engine: SearchEngine) -> LiveDocuments:
    live = engine.parts.backends.live
    if live is None:
        remedy = "serve it with a journal (`serve BUNDLE --live DIR`) or from a cluster, or build a new bundle"
        raise errors.ImmutableError(f"A bundle's own indexes never change: {remedy}.")
    return live


def _deadline(engine: SearchEngine, clock: StageClock, *, wait: bool = False) -> float:
    return clock.arrived + engine.settings.deadline_ms / 1e3 + (REFRESH_S if wait else 0.0)


def _checked(document_id: str) -> str:
    """DocumentNotFoundError for an id that no document can have."""
    try:
        return check_id(document_id)
    except ValueError:
        raise _not_found(document_id) from None


def _not_found(document_id: str) -> errors.DocumentNotFoundError:
    return errors.DocumentNotFoundError(f"No document has the id {document_id[:100]!r}.")
