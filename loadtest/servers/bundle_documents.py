"""Reads a bundle's content for other systems to index: texts, JSON, dense vectors, sparse vectors."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.bm25 import build_word_index
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.service.search.documents import Documents

__all__ = ["Postings", "Row", "built", "document_texts", "folder_of", "probes", "read_postings", "read_rows"]
__all__ += ["stored_documents", "word_index"]

_CHUNK: Final = 1024
Postings = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Documents' sparse vectors as a CSR matrix: indptr (N + 1,), terms (nnz,) ascending per document, impacts (nnz,)."""
Row = tuple[int, list[float], dict[int, float], bytes]
"""A document: its ordinal, dense vector of length D, impacts by term, and JSON."""


def stored_documents(index: ImpactIndex) -> Iterator[bytes]:
    """Give the JSON of every document, in ordinal order."""
    for start in range(0, index.count, _CHUNK):
        yield from index.documents(np.arange(start, min(start + _CHUNK, index.count)))


def document_texts(index: ImpactIndex) -> Iterator[str]:
    """Give title and text of every document, as encoded, in ordinal order."""
    for raw in stored_documents(index):
        document: dict[str, Any] = orjson.loads(raw)
        yield document_text(document.get("title") or "", document.get("text") or "")


def read_postings(index: ImpactIndex, vocab_size: int) -> Postings:
    """Read the impacts of all documents, term by term: the scores of a search for that term alone."""
    one = np.ones(1, np.float32)
    found = [index.search(np.array([term]), one, max(1, index.count)) for term in range(vocab_size)]
    terms = np.repeat(np.arange(vocab_size, dtype=np.int32), [len(ordinals) for ordinals, _ in found])
    rows = np.concatenate([ordinals for ordinals, _ in found])
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=index.count))]).astype(np.int64)
    return indptr, terms[order], np.concatenate([impacts for _, impacts in found])[order]


def read_rows(bundle: Bundle) -> Iterator[Row]:
    """Read all documents of a bundle, in ordinal order."""
    dense = bundle.dense()
    with bundle.sparse() as index:
        indptr, terms, impacts = read_postings(index, bundle.manifest.sparse_vocab_size)
        for number, raw in enumerate(stored_documents(index)):
            own = slice(indptr[number], indptr[number + 1])
            sparse = dict(zip(terms[own].tolist(), impacts[own].tolist(), strict=True))
            yield number, dense.vectors(np.array([number]))[0].tolist(), sparse, raw


def probes(bundle: Bundle, count: int) -> list[str]:
    """Give up to `count` query-like texts."""
    with bundle.sparse() as index:
        return Documents(index).probes(count)


def folder_of(work: Path, bundle: Bundle, kind: str) -> Path:
    """Give the folder that `built` writes."""
    return work / f"{kind}-{bundle.manifest.digest[:12]}"


def built(work: Path, bundle: Bundle, kind: str, build: Callable[[Path], object]) -> Path:
    """Give the bundle's folder of this kind in `work`; if it is missing, make it atomically with `build`."""
    folder = folder_of(work, bundle, kind)
    if not folder.is_dir():
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{kind}-", dir=work) as scratch:
            build(Path(scratch) / "new")
            (Path(scratch) / "new").rename(folder)
    return folder


def word_index(bundle: Bundle, work: Path) -> Path:
    """Give the folder in `work` of a Lucene index of the words of a bundle's documents; build it if it is missing."""

    def build(path: Path) -> None:
        with bundle.sparse() as index:
            build_word_index(path, index.ids(), document_texts(index))

    return built(work, bundle, "words", build)
