"""Encoded documents on their way into a bundle: checked, cut to size, normalised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int64Array, IntegerArray
from lightretriever.artifacts.errors import CorpusError

_ENCODE_AGAIN = "Encode the corpus again."


@dataclass(frozen=True)
class EncodedBatch:
    """Documents in corpus order: n ids, n documents as UTF-8 JSON with these ids, as `document_of` makes them, and both
    of their vectors. `dense` (n, H) of any float type, H at least the bundle's dimension D; the sparse vectors in CSR
    form: `indptr` (n+1,) int64, `terms` (nnz,) places in `names`, or token ids where there are no names, no term twice
    in a document, `impacts` (nnz,) integers 1..65535."""

    ids: list[str]
    documents: list[bytes]
    dense: FloatArray
    indptr: Int64Array
    terms: IntegerArray
    impacts: IntegerArray
    names: Sequence[str] | None = None


def check_batch(batch: EncodedBatch, vocab_size: int) -> None:
    """Raise CorpusError, which names the document, for a term that is none of the batch's names or no token id below
    `vocab_size`, or that is twice in a document, and for an impact out of bounds."""
    terms, impacts = batch.terms, batch.impacts
    rows = np.repeat(np.arange(len(batch.ids)), np.diff(batch.indptr))
    size = vocab_size if batch.names is None else len(batch.names)
    for name, values, least, most in (("term", terms, 0, size - 1), ("impact", impacts, 1, MAX_IMPACT)):
        if (outside := np.flatnonzero((values < least) | (values > most))).size:
            what = f"{name} {values[outside[0]]} is outside {least}..{most}"
            raise CorpusError(f'document "{batch.ids[rows[outside[0]]]}": {what}.', remedy=_ENCODE_AGAIN)
    order = np.lexsort((terms, rows))
    if (twice := order[:-1][(np.diff(terms[order]) == 0) & (np.diff(rows[order]) == 0)]).size:
        what = f"term {terms[twice[0]]} occurs twice"
        raise CorpusError(f'document "{batch.ids[rows[twice[0]]]}": {what}.', remedy=_ENCODE_AGAIN)


def dense_prefix(batch: EncodedBatch, dimension: int, *, first: int) -> Float32Array:
    """The first `dimension` values of each dense vector (Matryoshka), L2-normalised again, float32 (n, D). Raises
    CorpusError for a vector that is zero or not finite."""
    prefix = np.asarray(batch.dense[:, :dimension], dtype=np.float32)
    norms = np.linalg.norm(prefix, axis=1, keepdims=True)
    bad = ~(np.isfinite(norms) & (norms > 0))[:, 0]
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise CorpusError(
            f'document "{batch.ids[row]}" (number {first + row}): the first {dimension} values of its dense vector '
            f"have the norm {norms[row, 0]:g}, expected a finite one above 0.",
            remedy=_ENCODE_AGAIN,
        )
    normalised: Float32Array = prefix / norms
    return normalised


def keep_top_terms(batch: EncodedBatch, top_k: int | None) -> EncodedBatch:
    """The `top_k` terms of highest impact of each document, ascending by id. None keeps all terms. Of equal impacts the
    lower token id comes first. The order is total, so cutting in two steps keeps what one would."""
    counts = np.diff(batch.indptr)
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((batch.terms, -batch.impacts.astype(np.int64), rows))
    rank = np.arange(len(order)) - np.repeat(batch.indptr[:-1], counts)
    kept = order if top_k is None else order[rank < top_k]
    kept = kept[np.lexsort((batch.terms[kept], rows[kept]))]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=len(counts)))]).astype(np.int64)
    return replace(batch, indptr=indptr, terms=batch.terms[kept].astype(np.int32), impacts=batch.impacts[kept])
