"""Changes of single documents after a bundle was built: their parts are checked before anything is written. `upsert`
and `delete` make many; only what changed is written, and only documents with another text are encoded."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.documents.document import Document, document_of
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ConflictError, DocumentError, LightRetrieverError, UnencodedError
from lightretriever.artifacts.sparse.vocabulary import term_problem
from lightretriever.artifacts.tokens.tokenizer import text_of

_ALWAYS: Final = frozenset({"_id", "title", "text"})
_REBUILD: Final = "Build a bundle that has it."
_BATCH: Final = 256


class Encoded(NamedTuple):
    """A document's vector (D,) of length 1, None without a dense leg, its impacts by term, and whether the model read
    its beginning alone."""

    vector: Float32Array | None
    impacts: Mapping[str, int]
    cut: bool = False


Encode = Callable[[Sequence[Document]], Sequence[Encoded]]


@dataclass(frozen=True)
class Change:
    """A document to write whole, or to delete where `document` is None. What is None of `vector` (D,) and `impacts` by
    term stays as it is; with `version`, only the document of that version is written over or deleted."""

    id: str
    document: Document | None = None
    vector: Float32Array | None = None
    impacts: Mapping[str, int] | None = None
    version: str | None = None


@dataclass(frozen=True)
class Written:
    """The result of a change: whether the document is new, and the version that the change made."""

    created: bool
    version: str


Result = Written | LightRetrieverError | None
"""The result of a change: None where there was nothing to delete, and for one that was not made, DocumentError or
ConflictError."""


@dataclass(frozen=True)
class StoredDocument:
    """A document as it is now: its JSON, UTF-8, and its version as one text, for those who write only over what they
    have read."""

    raw: bytes
    version: str

    def equals(self, document: Document) -> bool:
        """True if it is this document, byte for byte."""
        return self.raw == document.raw

    def has_text_of(self, document: Document) -> bool:
        """True if title and text are those of a document."""
        return text_of(orjson.loads(self.raw)) == document.full_text


class LiveDocuments(ABC):
    """Documents that can be written while they are searched. Thread-safe. Calls end by the `perf_counter` time
    `deadline`, which leaves open whether the changes were made."""

    most_impact: int
    """The largest impact that a document can have."""

    problem: str | None = None
    """Why searches can't see changes any more; None if they can."""

    @property
    def written(self) -> int:
        """Number of documents written beside the bundle that take memory here."""
        return 0

    @property
    def warning(self) -> str | None:
        """The remedy if many documents are written beside the bundle; None if few are."""
        return None

    @property
    def position(self) -> int:
        """The number of the last change, for `followed`."""
        return 0

    def followed(self, position: int) -> bool:
        """True if the searches of every process see the changes up to a position. Returns at once."""
        return position <= self.position

    @abstractmethod
    def get(self, document_id: str, deadline: float) -> StoredDocument | None:
        """Read a document as it is now; None if there is none with this id."""

    @abstractmethod
    def seen(self, ids: Sequence[str], deadline: float = inf) -> list[StoredDocument | None]:
        """Return documents, at least with their versions and as far as `equals` and `has_text_of` look at them; None
        for an id that no document has."""

    @abstractmethod
    def write(self, changes: Sequence[Change], deadline: float, *, wait: bool = False) -> list[Result]:
        """Make changes in their order, and return the result of each. All searches see them when `followed` says so; a
        cluster is asked to `wait` for that. TimeoutError or ClusterTimeoutError if they are late, ClusterError or
        DiskError if they can't be made."""

    def refresh(self) -> None:
        """Make what was written visible to searches, where a write does not."""
        return

    def to_encode(self, changes: Sequence[Change], deadline: float) -> list[int]:
        """Return the indexes of the changes that need a vector and impacts and have neither: of new documents, and of
        those whose text is not the one before, in an earlier change or stored."""
        asked = {one.id for one in changes if one.document and one.vector is None and one.impacts is None}
        stored = dict(zip(asked, self.seen([*asked], deadline) if asked else [], strict=True))
        indexes, texts = list[int](), dict[str, str | None]()
        for index, change in enumerate(changes):
            if (document := change.document) is not None and change.vector is None and change.impacts is None:
                there = stored[change.id]
                same = there is not None and there.has_text_of(document)
                if not (texts[change.id] == document.full_text if change.id in texts else same):
                    indexes.append(index)
            texts[change.id] = None if document is None else document.full_text
        return indexes


@dataclass
class Upserted:
    """How many documents were `unchanged`, got other fields, or another text; how many of the last are new."""

    unchanged: int = 0
    fields: int = 0
    encoded: int = 0
    created: int = 0


def upsert(
    live: LiveDocuments, documents: Iterable[Document], encode: Encode, done: Callable[[int], object]
) -> Upserted:
    """Write the documents that are not there or are otherwise; `encode` is asked for those with another title or text.
    `done` is told numbers of documents. A stopped call, made again, writes the rest. Raises what `write` and `encode`
    raise."""
    counts, rest = Upserted(), iter(documents)
    while part := list(islice(rest, _BATCH)):
        pairs = list(zip(part, live.seen([document.id for document in part]), strict=True))
        changed = [(document, old) for document, old in pairs if old is None or not old.equals(document)]
        new = [document for document, old in changed if old is None or not old.has_text_of(document)]
        encoded = dict(zip([document.id for document in new], encode(new) if new else [], strict=True))
        changes = list[Change]()
        for document, _ in changed:
            vector, impacts, _ = encoded.get(document.id) or (None, None, False)
            changes.append(Change(document.id, document, vector, impacts))
        created = sum(result is not None and result.created for result in _made(live, changes))
        counts.unchanged += len(part) - len(changed)
        counts.fields += len(changed) - len(new)
        counts.encoded += len(new)
        counts.created += created
        done(len(part))
    live.refresh()
    return counts


def _made(live: LiveDocuments, changes: Sequence[Change]) -> list[Written | None]:
    """Make all changes, and return their results. Raises the error of the first that was not made."""
    written = list[Written | None]()
    for result in live.write(changes, inf):
        if isinstance(result, LightRetrieverError):
            raise result
        written.append(result)
    return written


def delete(live: LiveDocuments, ids: Iterable[str], done: Callable[[int], object]) -> tuple[int, list[str]]:
    """Delete documents, and return their number and the ids that no document had. Raises what `write` raises."""
    deleted, missing, rest = 0, list[str](), iter(ids)
    while part := list(islice(rest, _BATCH)):
        names = list(dict.fromkeys(part))
        results = _made(live, [Change(name) for name in names])
        missing += [name for name, result in zip(names, results, strict=True) if result is None]
        deleted += len(results) - results.count(None)
        done(len(part))
    live.refresh()
    return deleted, missing


def read_fields(document_id: str, fields: Mapping[str, Any], manifest: Manifest) -> Document:
    """Return the document of the `fields` that `read_object` read. Raise DocumentError for one that a corpus of the
    bundle cannot have."""
    record = {"_id": document_id} | dict(fields) | {"_id": document_id}
    try:
        document = document_of(record, manifest.fields, set(manifest.field_names))
    except ValueError as error:
        raise DocumentError("fields", f"{error}.", remedy="Mend the document.") from error
    check_names(document.names, manifest.field_names)
    return document


def check_names(fields: Iterable[str], names: Sequence[str]) -> None:
    """Raise DocumentError for one of a document's `fields` that no document of the bundle has, and that no request may
    name therefore."""
    unknown = set(fields) - _ALWAYS - set(names)
    if unknown:
        name, listed = min(unknown), ", ".join(sorted(set(names) - {"_id"}))
        raise DocumentError(
            f"fields.{name}", f"no document of the bundle has such a field, only: {listed:.300}.", remedy=_REBUILD
        )


def read_vector(values: Sequence[float], manifest: Manifest) -> Float32Array:
    """Make a vector (D,) of length 1. Raises DocumentError for another size, for one without a direction, and where
    the bundle has no dense leg."""
    if manifest.dense is None:
        raise DocumentError("vector", "the index has no dense leg.", remedy="Leave the vector out.")
    vector = np.array(values, np.float64)
    if vector.shape != (manifest.dimension,):
        size = f"it has {vector.size} values, those of the index have {manifest.dimension}."
        raise DocumentError("vector", size, remedy="Encode the document with the model of the bundle.")
    with np.errstate(over="ignore"):  # the error tells it
        length = float(np.linalg.norm(vector))
    if not 0 < length < np.inf:
        raise DocumentError("vector", f"its length is {length:g}.", remedy="Give finite values, not all 0.")
    unit: Float32Array = (vector / length).astype(np.float32)
    return unit


def read_impacts(impacts: Mapping[str, int], manifest: Manifest, most: int) -> dict[str, int]:
    """Check impacts by term, of 1 to `most`. Raises DocumentError for a term that the vocabulary can't have, and for an
    impact out of bounds."""
    for term, impact in impacts.items():
        if (problem := term_problem(term, manifest.sparse.vocabulary, manifest.sparse_vocab_size)) is not None:
            raise DocumentError(
                f"impacts.{term:.100}", f"{problem}.", remedy="Name the terms of the bundle's vocabulary."
            )
        if not 1 <= impact <= most:
            remedy = "Leave a term without an impact out." if impact < 1 else "Lower it."
            what = f"the impact is {impact}; in this index it is 1 to {most}."
            raise DocumentError(f"impacts.{term}", what, remedy=remedy)
    return dict(impacts)


def check_version(change: Change, stored: StoredDocument | None) -> None:
    """Raise ConflictError where the document that is there does not have the version that the change is for."""
    if change.version is not None and (stored is None or stored.version != change.version):
        now = "is not there" if stored is None else f"has version {stored.version}"
        raise ConflictError(f"Document {change.id!r} {now}, not {change.version}.", remedy="Read it again.")


def unencoded(change: Change, *, new: bool, dense: bool) -> UnencodedError:
    """Return the error of a change without vector or impacts, whose document is `new` or has another text."""
    why = "the document is new" if new else "its title or text is another one"
    name = "vector" if dense and change.vector is None else "impacts"
    remedy = "Send vector and impacts with it, or let `lightretriever upsert` encode it."
    return UnencodedError(name, f"is missing, but {why}.", remedy=remedy)
