"""Document vectors from a file, as an index of a bi-encoder already holds them."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, FloatArray, UInt8Array
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.pipeline.columns import Digests, text_digests
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder

__all__ = ["GivenVectors"]

_PROBES = 64
"""Drawn rows that are compared with the encoder's own, beside the first and the last."""
_MIN_COSINE = 0.9
"""Below it, a row is another document's or another encoder's; rounding and cutting cost far less."""
_MAX_BAD = 0.05
"""The share of the compared rows that may be: some documents may have changed since they were encoded."""

_CHUNK = 65_536


@dataclass(frozen=True)
class GivenVectors:
    """Document vectors (N, H), float16 or float32, of a file with this `sha256`, in the order of the corpus' `texts`.
    Equal texts have the vector of the first of them.

    `doubt` says which compared rows are not the encoder's.
    """

    vectors: FloatArray
    texts: Digests
    sha256: str
    doubt: str = ""

    @classmethod
    def open(cls, path: Path, encoder: Encoder, corpus: EncodedCorpus) -> Self:
        """Map the vectors of the corpus' documents, checked against corpus and encoder.

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
        return cls(vectors, Digests(corpus.digests), file_sha256(path), _compare(vectors, encoder, corpus))

    def encode_documents(self, texts: Sequence[str]) -> Encoded:
        """The vectors of documents of the corpus, (n, H), made of length 1."""
        return Encoded(_unit(self.vectors[self.texts.find(text_digests(texts))]))

    def digests(self, texts: UInt8Array) -> UInt8Array:
        """Digests (N, 16) of texts together with their vectors, of the texts' own digests: another vector of a text
        counts as another text."""
        digests = bytearray()
        for start in range(0, len(texts), _CHUNK):
            part = texts[start : start + _CHUNK]
            for text, vector in zip(part, _unit(self.vectors[self.texts.find(part)]).astype(np.float16), strict=True):
                digests += blake2b(text.tobytes() + vector.tobytes(), digest_size=part.shape[1]).digest()
        return np.frombuffer(bytes(digests), np.uint8).reshape(texts.shape)


def _unit(vectors: FloatArray) -> Float32Array:
    rows = np.asarray(vectors, dtype=np.float32)
    unit: Float32Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _compare(vectors: FloatArray, encoder: Encoder, corpus: EncodedCorpus) -> str:
    """Compare some rows with the encoder's own: what to say of bad ones. Raises RecipeError where they are too many."""
    last = len(vectors) - 1
    drawn = np.random.default_rng(0).choice(last + 1, size=min(_PROBES, last + 1), replace=False)
    rows = np.unique([0, last, *drawn])
    documents = [corpus.document(row) for row in rows.tolist()]
    read = _unit(vectors[rows])
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
