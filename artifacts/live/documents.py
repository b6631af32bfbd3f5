"""Changes of single documents after a bundle was built: their parts checked, before anything is written."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.documents.document import Document, document_of
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ConflictError, DocumentError, LightRetrieverError, UnencodedError
from lightretriever.artifacts.sparse.vocabulary import term_problem

_ALWAYS: Final = frozenset({"_id", "title", "text"})
_REBUILD: Final = "Build a bundle that has it."


class Encoded(NamedTuple):
    """A document's vector (D,) of length 1, None without a dense leg, its impacts by term, and whether the model read
    its beginning alone."""

    vector: Float32Array | None
    impacts: Mapping[str, int]
    cut: bool = False


Encode = Callable[[Sequence[Document]], Sequence[Encoded]]


@dataclass
class Upserted:
    """How many documents were `unchanged`, got other fields, or another text; how many of the last are new."""

    unchanged: int = 0
    fields: int = 0
    encoded: int = 0
    created: int = 0


@dataclass
class Deleted:
    """How many documents were deleted, how many ids no document had, and the first of these."""

    deleted: int = 0
    missing: int = 0
    examples: list[str] = field(default_factory=list)


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


class LiveDocuments(ABC):
    """Documents that can be written while they are searched. Thread-safe. Calls end by the `perf_counter` time
    `deadline`, which leaves open whether the changes were made.
    """

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
    def compare(self, documents: Sequence[Document]) -> list[tuple[str | None, bool]]:
        """Return for each document the version that is there, None for none, and whether it is the same."""

    @abstractmethod
    def to_encode(self, changes: Sequence[Change], deadline: float) -> list[int]:
        """Return the indexes of the changes that need a vector and impacts and have neither: of new documents, and of
        those with another title or text."""

    @abstractmethod
    def write(self, changes: Sequence[Change], deadline: float, *, wait: bool = False) -> list[Result]:
        """Make changes in their order, and give what became of each. All searches see them when `followed` says so;
        a cluster is asked to `wait` for that.

        TimeoutError or ClusterTimeoutError if they are late, ClusterError or DiskError if they can't be made."""

    def refresh(self) -> None:
        """Make what was written visible to searches, where a write does not."""
        return


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


def with_new_text(changes: Sequence[Change], has_text: Callable[[Document], bool]) -> list[int]:
    """Return the indexes of the changes with neither vector nor impacts whose text is not the one before, in an earlier
    change or stored, as `has_text` says."""
    indexes, texts = list[int](), dict[str, str | None]()
    for index, change in enumerate(changes):
        text = None if change.document is None else change.document.full_text
        if change.document is not None and change.vector is None and change.impacts is None:
            same = texts[change.id] == text if change.id in texts else has_text(change.document)
            if not same:
                indexes.append(index)
        texts[change.id] = text
    return indexes


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
