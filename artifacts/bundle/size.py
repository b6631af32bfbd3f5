"""The size of a bundle of more documents, extrapolated from the files of an existing one."""

import re
from pathlib import PurePosixPath
from typing import Final, Self

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.dense.build import choose_factory, lists_by_size, product_parts
from lightretriever.artifacts.summary import Part

__all__ = ["PartSize", "part_sizes"]

_FLOAT_BYTES: Final = 4
_ID_BYTES: Final = 8  # that Faiss keeps with each code of an inverted list
_DOCUMENTS: Final = ".dvd"  # Lucene's values by document: the stored JSON, and the declared fields


class PartSize(Part):
    """A part of a bundle: its bytes, and those of one document, 0 for a part that does not grow. `in_memory` says
    whether searches read all over it, so that it belongs into the page cache."""

    name: str
    in_memory: bool
    bytes_per_document: float
    bytes: int

    @classmethod
    def growing(cls, name: str, per_document: float, documents: int, *, in_memory: bool) -> Self:
        """Of a part that takes so many bytes for each document."""
        size, each = round(per_document * documents), round(per_document, 2)
        return cls(name=name, in_memory=in_memory, bytes_per_document=each, bytes=size)


def part_sizes(manifest: Manifest, documents: int) -> list[PartSize]:
    """The parts of a bundle with as many `documents` of the kind of this bundle's, built by the same recipe.

    Everything but the tables grows by the bytes of a document here. Terms repeat, so the postings of a larger corpus
    take a little less. The dense index of a bundle above 5,000 documents, and again above 20,000, is another one than
    that of a smaller one, if the recipe leaves the choice.
    """
    sizes = {"tables": 0, "postings": 0, "documents": 0}
    for name, info in manifest.files.items():
        sizes[_part(manifest, name)] += info.bytes if manifest.dense is None or name != manifest.dense.file else 0
    count, name = manifest.documents, "token tables and tokenizers"
    parts = [
        PartSize(name=name, in_memory=True, bytes_per_document=0, bytes=sizes["tables"]),
        PartSize.growing("dense index", _dense_bytes(manifest, documents), documents, in_memory=True),
        PartSize.growing("postings", sizes["postings"] / count, documents, in_memory=True),
        PartSize.growing("documents", sizes["documents"] / count, documents, in_memory=False),
    ]
    return [part for part in parts if part.bytes]


def _part(manifest: Manifest, name: str) -> str:
    path = PurePosixPath(name)
    if PurePosixPath(manifest.sparse.directory) not in path.parents:
        return "tables"
    return "documents" if path.suffix == _DOCUMENTS else "postings"


def _dense_bytes(manifest: Manifest, documents: int) -> float:
    """Bytes of a document in the dense index."""
    if manifest.dense is None:
        return 0.0
    own = manifest.files[manifest.dense.file].bytes / manifest.documents
    dimension = manifest.dimension
    kind, chosen = (_kind(choose_factory(number, dimension)) for number in (documents, manifest.documents))
    if chosen != _kind(manifest.dense.factory) or chosen == kind:  # the recipe named another one, or it stays the same
        return own
    if kind == "Flat":
        return float(_FLOAT_BYTES * dimension)
    codes = product_parts(dimension) / 2 + dimension
    if kind == "PQ":
        return codes
    return codes + _ID_BYTES + lists_by_size(documents) * dimension * _FLOAT_BYTES / documents


def _kind(factory: str) -> str:
    """The first word of a Faiss factory string, without its number: Flat, PQ, IVF."""
    return re.split(r"[\d,]", factory)[0]
