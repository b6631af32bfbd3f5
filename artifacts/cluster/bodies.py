"""A document on its way to an index on a cluster, over the one that is there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightretriever.artifacts.cluster.schema import (
    LARGEST_PLAIN_IMPACT,
    IndexMeta,
    document_body,
    document_hashes,
    features,
    live_ordinal,
)
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT
from lightretriever.artifacts.live.documents import Change, unencoded

__all__ = ["Stored", "body_of", "most_impact"]


@dataclass(frozen=True)
class Stored:
    """A document as an index has it: its `_source`, or the part of it that was asked for, and its version there."""

    source: Mapping[str, Any]
    index: str
    seq_no: int
    primary_term: int

    @property
    def raw(self) -> bytes:
        """The document's JSON, UTF-8."""
        raw: str = self.source["raw"]
        return raw.encode()

    @property
    def version(self) -> str:
        """The version as one text, for those who write only what they have read. It has the hash in the index' name,
        because another bundle's index counts from 0 again."""
        return f"{self.seq_no}.{self.primary_term}.{self.index.rpartition('-')[2]}"


def most_impact(meta: IndexMeta) -> int:
    """Give the largest impact that an index can have."""
    return MAX_IMPACT if meta.large else LARGEST_PLAIN_IMPACT


def body_of(change: Change, stored: Stored | None, meta: IndexMeta) -> dict[str, Any]:
    """Give a document to write as the cluster gets it: whole, with the vector or the rank features of the one that is
    there if there are no new ones. Raises UnencodedError if that one has another text."""
    document = change.document
    if document is None:
        raise ValueError("a document to delete has no body")
    hashes = document_hashes(document.full_text, document.raw)
    no_vector = change.vector is None and meta.dimension is not None
    if (no_vector or change.impacts is None) and (stored is None or stored.source["hashes"][0] != hashes[0]):
        raise unencoded(change, new=stored is None, dense=meta.dimension is not None)
    old = {} if stored is None else stored.source
    ordinal = live_ordinal(document.id) if stored is None else stored.source["ordinal"]
    impacts = change.impacts
    return document_body(
        ordinal,
        document.raw,
        old["vector"] if no_vector else change.vector,
        old["impacts"] if impacts is None else features([*impacts], [*impacts.values()]),
        meta.fields,
    )
