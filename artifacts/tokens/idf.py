"""Inverse document frequencies: how much a token of a query weighs in the sparse leg of a model trained with them.

    IDF_t = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))

where df_t of the N documents of the training corpora contain the token t. It is positive even for a token of every
document. A token of none has the IDF 1, as in the inference-free paper (section 5.1.2).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, Float64Array, Int32Array, Int64Array
from lightretriever.artifacts.errors import BundleError, CorpusError
from lightretriever.artifacts.files.arrays import load_part, write_array

IDF_FILE: Final = "idf.npy"
"""The name of the file, in a bundle and beside an adapter."""

_REMEDY: Final = "Give the idf.npy that was saved with the adapter, or fetch or build it again."


@dataclass(frozen=True)
class TokenStatistics:
    """Counts of a corpus: its N `documents`, and the document `frequencies` df (V,) int64."""

    documents: int
    frequencies: Int64Array

    def idf(self) -> Float32Array:
        """IDF of all tokens (V,), finite and positive; 1 for one of no document."""
        return np.where(self.frequencies > 0, self.bm25_idf(), 1.0).astype(np.float32)

    def bm25_idf(self) -> Float64Array:
        """IDF of all tokens (V,) as BM25 has it: the largest for one of no document."""
        weights: Float64Array = np.log1p((self.documents - self.frequencies + 0.5) / (self.frequencies + 0.5))
        return weights


def count_tokens(documents: Iterable[Int32Array], vocab_size: int) -> TokenStatistics:
    """Count a corpus given as the token ids (n,) of each document; V is `vocab_size`. Raises CorpusError when there are
    no documents."""
    frequencies, count = np.zeros(vocab_size, dtype=np.int64), 0
    for ids in documents:
        frequencies[np.unique(ids)] += 1
        count += 1
    if count == 0:
        raise CorpusError("There are no documents to count tokens in.", remedy="Give at least one document.")
    return TokenStatistics(count, frequencies)


def idf_sha256(idf: Float32Array) -> str:
    """SHA-256 of the values, as hex; the plan of a work directory identifies the weights by it."""
    return hashlib.sha256(idf.tobytes()).hexdigest()


def save_idf(path: Path, idf: Float32Array) -> None:
    """Write the weights (V,) float32 as `.npy`. Raises BundleError for what `load_idf` would refuse."""
    _check(path, idf, idf.size)
    write_array(path, idf)


def load_idf(path: Path, vocab_size: int) -> Float32Array:
    """Read weights that `save_idf` wrote, (V,) float32, with V as `vocab_size`. Raises BundleError for a file that is
    missing, no `.npy`, or of another shape or number type, and for a value that is not finite and positive."""
    idf: Float32Array = load_part(path, _REMEDY)
    _check(path, idf, vocab_size)
    return idf


def _check(path: Path, idf: Float32Array, vocab_size: int) -> None:
    if idf.dtype != np.float32 or idf.shape != (vocab_size,):
        form = f"{idf.dtype.name} of shape {idf.shape}"
        raise BundleError(
            f"{path}: {form} instead of float32 of shape ({vocab_size},), one IDF per token.", remedy=_REMEDY
        )
    bad = ~(np.isfinite(idf) & (idf > 0))
    if bad.any():
        token = int(np.flatnonzero(bad)[0])
        raise BundleError(
            f"{path}: the IDF of token {token} is {idf[token]}; it must be finite and positive.", remedy=_REMEDY
        )
