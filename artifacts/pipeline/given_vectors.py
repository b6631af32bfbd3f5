"""Document vectors from a file, as an index of a bi-encoder already holds them."""

from pathlib import Path

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, FloatArray
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.encoder import Encoder

_PROBES = 64
"""Drawn rows that are compared with the encoder's own, beside the first and the last."""
_MIN_COSINE = 0.9
"""Below it, a row is another document's or another encoder's; rounding and cutting cost far less."""
_MAX_BAD = 0.05
"""The share of the compared rows that may be: some documents may have changed since they were encoded."""

_CHUNK = 65_536


def given_vectors(path: Path, encoder: Encoder, corpus: EncodedCorpus) -> tuple[FloatArray, str]:
    """Map the vectors (N, H) of the corpus' documents, checked against corpus and encoder, and say which compared rows
    are not the encoder's, "" for none.

    Raises RecipeError for another shape or number type, and when they are not what the encoder makes of the first,
    the last and drawn documents; CorpusError for one that is zero or not finite.
    """
    try:
        vectors: FloatArray = load_npy(path)
    except UNREADABLE as error:
        raise RecipeError(
            f"distil.vectors: {path} can't be read as .npy: {error}.", remedy="Give a file that numpy.save wrote."
        ) from error
    shape = (len(corpus), encoder.hidden_size)
    if vectors.shape != shape or vectors.dtype.type not in (np.float16, np.float32):
        raise RecipeError(
            f"distil.vectors: {path} is {vectors.dtype.name} of shape {vectors.shape}, expected float16 or float32 "
            f"of shape {shape}: one row per document of the corpus.",
            remedy="Give all the vectors, in the corpus' order, saved as vectors.astype(numpy.float32).",
        )
    _check_norms(vectors, corpus)
    return vectors, _compare(vectors, encoder, corpus)


def unit_rows(vectors: FloatArray) -> Float32Array:
    """Vectors (n, H) made of length 1, float32."""
    rows = np.asarray(vectors, dtype=np.float32)
    unit: Float32Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _compare(vectors: FloatArray, encoder: Encoder, corpus: EncodedCorpus) -> str:
    """Compare some rows with the encoder's own: what to say of bad ones. Raises RecipeError where they are too many."""
    last = len(vectors) - 1
    drawn = np.random.default_rng(0).choice(last + 1, size=min(_PROBES, last + 1), replace=False)
    rows = np.unique([0, last, *drawn])
    documents = [corpus.document(row) for row in rows.tolist()]
    read = unit_rows(vectors[rows])
    encoded = encoder.encode_documents([document.full_text for document in documents]).dense
    cosines = (read * encoded).sum(axis=1)
    bad = np.flatnonzero(cosines < _MIN_COSINE)
    if not len(bad):
        return ""
    doubt = (
        f"distil.vectors: {len(bad)} of {len(rows)} compared rows are not what {encoder.name} makes of the corpus' "
        f'documents. The first of them is row {rows[bad[0]]}, document "{documents[bad[0]].id}", with a cosine of '
        f"{cosines[bad[0]]:.2f} (at least {_MIN_COSINE})."
    )
    if len(bad) > _MAX_BAD * len(rows):
        remedy = "Give the vectors of this bi-encoder and this corpus (title, one space, text), in its order."
        raise RecipeError(doubt, remedy=remedy)
    return doubt


def _check_norms(vectors: FloatArray, corpus: EncodedCorpus) -> None:
    for start in range(0, len(vectors), _CHUNK):
        norms = np.linalg.norm(np.asarray(vectors[start : start + _CHUNK], dtype=np.float32), axis=1)
        bad = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
        if len(bad):
            document = corpus.document(start + int(bad[0]))
            raise CorpusError(
                f'distil.vectors: the vector of document "{document.id}" has the norm {norms[bad[0]]:g}.',
                remedy="Encode that document again.",
            )
