"""Encoded documents on their way into a bundle: checked, cut to size, normalised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int64Array, IntegerArray
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.sparse.arguments import check_rows

__all__ = ["EncodedBatch", "check_batch", "dense_prefix", "keep_top_terms"]

_ENCODE_AGAIN = "Encode the corpus again."


@dataclass(frozen=True)
class EncodedBatch:
    """Documents in corpus order: n ids, n documents as UTF-8 JSON with these ids, as `document_of` makes them, and both
    of their vectors.

    `dense` (n, H) of any float type, H at least the bundle's dimension D; the sparse vectors in CSR form: `indptr`
    (n+1,) int64, `terms` (nnz,) places in `names`, or token ids where there are no names, no term twice in a document,
    `impacts` (nnz,) integers 1..65535.
    """

    ids: list[str]
    documents: list[bytes]
    dense: FloatArray
    indptr: Int64Array
    terms: IntegerArray
    impacts: IntegerArray
    names: Sequence[str] | None = None


def check_batch(batch: EncodedBatch, *, vocab_size: int, dimension: int, first: int) -> None:
    """Raise CorpusError when the parts of a batch don't fit each other or hold impossible values.

    `first` is the ordinal of the batch's first document, for the messages.
    """
    where = f"documents {first}..{first + len(batch.ids) - 1}"
    lengths = (len(batch.ids), len(batch.documents), len(batch.dense), len(batch.indptr) - 1)
    if len(set(lengths)) != 1:
        raise CorpusError(
            f"{where}: {lengths[0]} ids, {lengths[1]} documents, {lengths[2]} dense and {lengths[3]} sparse vectors; "
            "the numbers must be equal.",
            remedy=_ENCODE_AGAIN,
        )
    if batch.dense.ndim != 2 or batch.dense.shape[1] < dimension:
        raise CorpusError(
            f"{where}: dense vectors of shape {batch.dense.shape}, expected at least {dimension} values each.",
            remedy="Lower the dimension, or encode with a larger model.",
        )
    size = vocab_size if batch.names is None else len(batch.names)
    try:
        check_rows(batch.ids, batch.indptr, batch.terms, batch.impacts, vocab_size=size)
    except ValueError as error:
        raise CorpusError(f"{where}: {error}.", remedy=_ENCODE_AGAIN) from error


def dense_prefix(batch: EncodedBatch, dimension: int, *, first: int) -> Float32Array:
    """The first `dimension` values of each dense vector (Matryoshka), L2-normalised again, float32 (n, D).

    Raises CorpusError for a vector that is zero or not finite.
    """
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
    """The `top_k` terms of highest impact of each document, ascending by id. None keeps all terms.

    Of equal impacts the lower token id comes first. The order is total, so cutting in two steps keeps what one would.
    """
    counts = np.diff(batch.indptr)
    rows = np.repeat(np.arange(len(counts)), counts)
    if top_k is None or counts.max(initial=0) <= top_k:
        ascending = (np.diff(batch.terms) > 0) | (np.diff(rows) > 0)
        if ascending.all():
            return replace(batch, terms=batch.terms.astype(np.int32, copy=False))
    order = np.lexsort((batch.terms, -batch.impacts.astype(np.int64), rows))
    rank = np.arange(len(order)) - np.repeat(batch.indptr[:-1], counts)
    kept = order if top_k is None else order[rank < top_k]
    kept = kept[np.lexsort((batch.terms[kept], rows[kept]))]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=len(counts)))]).astype(np.int64)
    return replace(batch, indptr=indptr, terms=batch.terms[kept].astype(np.int32), impacts=batch.impacts[kept])
