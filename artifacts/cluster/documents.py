"""A document on its way to an index after the bundle: its parts checked, before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.cluster.schema import (
    LARGEST_PLAIN_IMPACT,
    IndexMeta,
    document_body,
    document_hashes,
    features,
    live_ordinal,
)
from lightretriever.artifacts.corpus.beir import Document, read_document
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import DocumentError, UnencodedError
from lightretriever.artifacts.sparse.vocabulary import term_problem

__all__ = ["Stored", "body_of", "check_names", "read_fields", "read_impacts", "read_vector"]

_ALWAYS: Final = frozenset({"_id", "title", "text"})
_PUSH: Final = "To change the index, push a bundle."


@dataclass(frozen=True)
class Stored:
    """A document as an index has it: its `_source`, or the part of it that was asked for, and its version there."""

    source: Mapping[str, Any]
    index: str
    seq_no: int
    primary_term: int

    @property
    def version(self) -> str:
        """The version as one text, for those who write only what they have read. It has the hash in the index' name,
        because another bundle's index counts from 0 again."""
        return f"{self.seq_no}.{self.primary_term}.{self.index.rpartition('-')[2]}"


def read_fields(document_id: str, fields: Mapping[str, Any], meta: IndexMeta, names: Sequence[str] | None) -> Document:
    """Make a document of its fields, as a line of a corpus is read. `names` are those of the bundle's fields. Raises
    DocumentError."""
    line = {"_id": document_id} | dict(fields) | {"_id": document_id}
    try:
        document = read_document(orjson.dumps(line), meta.fields, set(names or ()))
    except (ValueError, TypeError) as error:  # TypeError: orjson's, for a text that is no Unicode
        raise DocumentError("fields", f"{error}.", remedy="Mend the document.") from error
    check_names(document, names)
    return document


def check_names(document: Document, names: Sequence[str] | None) -> None:
    """Raise DocumentError for a field that no document of the bundle has, and that no request may name therefore."""
    unknown = set() if names is None else orjson.loads(document.raw).keys() - _ALWAYS - set(names)
    if unknown:
        name, known = min(unknown), ", ".join(sorted(set(names or ()) - {"_id"}))
        raise DocumentError(
            f"fields.{name}", f"no document of the bundle has such a field, only: {known:.300}.", remedy=_PUSH
        )


def read_vector(values: Sequence[float], meta: IndexMeta) -> npt.NDArray[np.float32]:
    """Make a vector (D,) of length 1. Raises DocumentError for another size, for one without a direction, and in an
    index without a dense leg."""
    if meta.dimension is None:
        raise DocumentError("vector", "the index has no dense leg.", remedy="Leave the vector out.")
    vector = np.array(values, np.float64)
    if vector.shape != (meta.dimension,):
        size = f"it has {vector.size} values, those of the index have {meta.dimension}."
        raise DocumentError("vector", size, remedy="Encode the document with the model of the bundle.")
    length = float(np.linalg.norm(vector))
    if not 0 < length < np.inf:
        raise DocumentError("vector", f"its length is {length:g}.", remedy="Give finite values, not all 0.")
    unit: npt.NDArray[np.float32] = (vector / length).astype(np.float32)
    return unit


def read_impacts(impacts: Mapping[str, int], meta: IndexMeta, manifest: Manifest) -> dict[str, int]:
    """Make rank features of impacts by term. Raises DocumentError for a term that the vocabulary can't have, and for an
    impact out of bounds."""
    bound = MAX_IMPACT if meta.large else LARGEST_PLAIN_IMPACT
    for term, impact in impacts.items():
        if (problem := term_problem(term, manifest.sparse.vocabulary, manifest.sparse_vocab_size)) is not None:
            raise DocumentError(
                f"impacts.{term:.100}", f"{problem}.", remedy="Name the terms of the bundle's vocabulary."
            )
        if not 1 <= impact <= bound:
            remedy = "Leave a term without an impact out." if impact < 1 else f"Lower it. {_PUSH}"
            what = f"the impact is {impact}; in this index it is 1 to {bound}."
            raise DocumentError(f"impacts.{term}", what, remedy=remedy)
    return features(list(impacts), list(impacts.values()))


def body_of(
    document: Document,
    stored: Stored | None,
    meta: IndexMeta,
    vector: npt.NDArray[np.float32] | None = None,
    impacts: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Give a document as the cluster gets it: whole, with the vector or the rank features of the one that is there if
    there are no new ones. Raises UnencodedError if that one has another text."""
    hashes = document_hashes(document.full_text, document.raw)
    no_vector = vector is None and meta.dimension is not None
    if (no_vector or impacts is None) and (stored is None or stored.source["hashes"][0] != hashes[0]):
        why = "the document is new" if stored is None else "its title or text is another one"
        what = f"is missing, but {why}."
        remedy = "Send vector and impacts with it, or let `lightretriever upsert` encode it."
        raise UnencodedError("vector" if no_vector else "impacts", what, remedy=remedy)
    old = {} if stored is None else stored.source
    ordinal = live_ordinal(document.id) if stored is None else stored.source["ordinal"]
    return document_body(
        ordinal,
        document.raw,
        old["vector"] if no_vector else vector,
        old["impacts"] if impacts is None else impacts,
        meta.fields,
    )
