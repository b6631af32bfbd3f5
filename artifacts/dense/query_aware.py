"""A dense index laid out by a sample of queries: it tells apart the documents that queries tell apart.

If a list or a code stands for two documents x and y alike, the score of a query q is off by q·(x-y). Averaged over
queries, the square of that error is (x-y)ᵀ M (x-y) with M = E[q qᵀ]. Both sides are mapped, without changing a score,
so that it is the distance:

    x' = U M^½ x        q' = U M^-½ q        q'·x' = q·x        (U: main directions of the documents M^½ x)

Lists are clusters of x'. The first 2m directions are kept; the product quantiser encodes the residuals in m codes of 4
bits, each of which pairs a direction of large variance with one of small variance. The best candidates are scored again
with all dimensions in 8 bits.

Error feedback quantises those: a code is off by up to half a step in each dimension, and a score by e·q, where e is the
error of a document's codes. The expected squared error of a score is eᵀ M e, so dimensions are rounded one after the
other, and those not yet rounded make up for the error so far: they move to where the rest of eᵀ M e is least. With
M⁻¹ = Uᵀ U, U upper triangular, that is x_k -= U_jk / U_jj · e_j for all k after j. (GPTQ does the same to the weights
of a model, arXiv:2210.17323.)

Faiss reads and searches the result: an IndexRefine over an IndexPreTransform, which maps queries. The name used here,
`Queries,IVF1024,PQ64x4fsr,Refine(SQ8)`, is not a factory string of Faiss.
"""

from collections.abc import Iterator
from typing import Any, Final

import faiss
import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, Float64Array, UInt8Array

_MAX_CODE: Final = 255
_BLOCK: Final = 32  # dimensions whose errors are passed on to all later ones in one product
_CACHED: Final = 8192  # documents that fit into the processor's caches


def error_feedback_codes(
    vectors: Float32Array, low: Float32Array, step: Float32Array, moment: Float64Array
) -> UInt8Array:
    """Codes, uint8 (n, D), of vectors, float32 (n, D); code c stands for low + (c + ½)·step, both float32 (D,).

    `moment`, float64 (D, D), is M, positive definite. A dimension whose step is 0 holds a single value and gets code 0.
    """
    used = np.flatnonzero(step > 0)
    # The dimensions that queries weigh most come first, while there are many others to make up for their errors.
    used = used[np.argsort(-moment[used, used], kind="stable")]
    steps = step[used].astype(np.float64)
    in_steps = moment[np.ix_(used, used)] * steps[:, None] * steps
    # U of M⁻¹ = Uᵀ U. Not np.linalg.inv: it needs more stack than the JVM leaves to the main thread, and crashes there.
    values, directions = np.linalg.eigh(in_steps)
    upper: Float64Array = np.linalg.qr(directions.T / np.sqrt(values)[:, None]).R
    feedback = (upper / np.diag(upper)[:, None]).astype(np.float32)
    codes = np.zeros(vectors.shape, np.uint8)
    for start in range(0, len(vectors), _CACHED):
        part = np.ascontiguousarray(vectors[start : start + _CACHED, used].T)
        part = (part - low[used, None]) / step[used, None] - np.float32(0.5)
        codes[start : start + _CACHED, used] = _rounded(part, feedback).T
    return codes


def _rounded(targets: Float32Array, feedback: Float32Array) -> UInt8Array:
    """Codes, uint8 (D, n), for targets, float32 (D, n), which are overwritten."""
    codes = np.empty(targets.shape, np.uint8)
    for first in range(0, len(targets), _BLOCK):
        last = min(first + _BLOCK, len(targets))
        errors = np.empty((last - first, targets.shape[1]), np.float32)
        for row in range(first, last):
            rounded = np.clip(np.rint(targets[row]), 0, _MAX_CODE)
            codes[row] = rounded
            errors[row - first] = error = targets[row] - rounded
            targets[row + 1 : last] -= feedback[row, row + 1 : last, None] * error
        targets[last:] -= feedback[first:last, last:].T @ errors
    return codes


MIN_DIMENSION: Final = 16  # with fewer there are no directions to choose from
_ISOTROPIC: Final = 0.1  # added to M in every direction, for queries unlike those of the sample
_TRAINING_DOCUMENTS_PER_LIST: Final = 128
_MIN_TRAINING_DOCUMENTS: Final = 65_536
_CLUSTERING_ITERATIONS: Final = 20
_KEPT_VARIANCE: Final = 0.99  # share of the variance of scores that the kept directions hold
_MAX_PARTS: Final = 256  # Faiss adds up the scores of a document's codes in 16 bits
_CHUNK: Final = 65_536


def build_query_aware_index(vectors: Float32Array, queries: Float32Array, lists: int) -> tuple[Any, str]:
    """Return the Faiss index over documents (N, D), which may be a memory map, laid out by queries (q, D), both float32
    of length 1, D at least 16, with this number of lists; and its name."""
    dimension = vectors.shape[1]
    sample = _sample(vectors, lists)
    parts = code_parts(sample, queries)
    of_documents, of_queries, _ = _maps(sample, queries, parts)
    swig: Any = faiss  # its type stubs lack some of these
    mapping = faiss.LinearTransform(dimension, 2 * parts, False)
    faiss.copy_array_to_vector(of_queries.ravel(), mapping.A)
    mapping.is_trained = True
    inverted = _inverted_lists(vectors, sample, of_documents, lists)
    mapped = swig.IndexPreTransform(_given_away(mapping), _given_away(inverted))
    mapped.own_fields = True
    refined = swig.IndexRefine(_given_away(mapped), _given_away(_scored_again(vectors, queries)))
    refined.own_fields, refined.own_refine_index = True, True
    return refined, f"Queries,IVF{lists},PQ{parts}x4fsr,Refine(SQ8)"


def code_parts(documents: Float32Array, queries: Float32Array) -> int:
    """Return m: the smallest of D/8, D/4 and D/2 whose 2m directions hold 0.99 of the variance of the scores of
    documents (n, D) for queries (q, D), and at most 256."""
    dimension = documents.shape[1]
    _, _, variances = _maps(documents, queries, dimension // 2)
    held = np.cumsum(variances) / variances.sum()
    parts = next((m for m in (dimension // 8, dimension // 4) if held[2 * m - 1] >= _KEPT_VARIANCE), dimension // 2)
    return int(min(parts, _MAX_PARTS))


def _inverted_lists(vectors: Float32Array, sample: Float32Array, of_documents: Float32Array, lists: int) -> Any:
    """Product codes of the mapped documents in inverted lists; maps documents by (2m, D)."""
    mapped = len(of_documents)
    centroids = faiss.IndexFlatL2(mapped)
    swig: Any = faiss
    inverted = swig.IndexIVFPQFastScan(centroids, mapped, lists, mapped // 2, 4, faiss.METRIC_INNER_PRODUCT)
    inverted.by_residual, inverted.cp.spherical, inverted.cp.niter = True, False, _CLUSTERING_ITERATIONS
    inverted.train(sample @ of_documents.T)
    for chunk in _chunks(vectors):
        inverted.add(chunk @ of_documents.T)
    # A document belongs to the nearest centroid, but a query probes those of the largest inner product.
    probed = faiss.IndexFlatIP(mapped)
    probed.add(centroids.reconstruct_n(0, lists))
    inverted.quantizer, inverted.own_fields = _given_away(probed), True
    return inverted


def _scored_again(vectors: Float32Array, queries: Float32Array) -> Any:
    """All documents in 8 bits a dimension, quantised with error feedback."""
    dimension = vectors.shape[1]
    swig: Any = faiss
    quantised = swig.IndexScalarQuantizer(dimension, swig.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    quantised.train(vectors)
    low, span = faiss.vector_to_array(quantised.sq.trained).reshape(2, dimension).astype(np.float32)
    moment = _second_moment(queries)
    for chunk in _chunks(vectors):
        quantised.add_sa_codes(error_feedback_codes(chunk, low, span / np.float32(255), moment))
    return quantised


def _chunks(vectors: Float32Array) -> Iterator[Float32Array]:
    for start in range(0, len(vectors), _CHUNK):
        yield vectors[start : start + _CHUNK]


def _sample(vectors: Float32Array, lists: int) -> Float32Array:
    """Documents from all over the corpus to train the clustering on."""
    count = min(len(vectors), max(_MIN_TRAINING_DOCUMENTS, _TRAINING_DOCUMENTS_PER_LIST * lists))
    return vectors[np.linspace(0, len(vectors) - 1, count).astype(np.int64)]


def _second_moment(queries: Float32Array) -> Float64Array:
    """M = E[q qᵀ] over queries (q, D), scaled to a mean eigenvalue of 1, plus a tenth of the identity: (D, D)."""
    moment = queries.T.astype(np.float64) @ queries
    scaled: Float64Array = moment * len(moment) / np.trace(moment) + _ISOTROPIC * np.eye(len(moment))
    return scaled


def _maps(
    documents: Float32Array, queries: Float32Array, parts: int
) -> tuple[Float32Array, Float32Array, Float64Array]:
    """The maps of documents and of queries, float32 (2·parts, D) each, and the variance in each direction (D,)."""
    values, directions = np.linalg.eigh(_second_moment(queries))
    roots = np.sqrt(np.maximum(values, _ISOTROPIC))
    stretch = (directions * roots) @ directions.T
    variances, axes = np.linalg.eigh(np.cov((documents @ stretch).T))
    largest = axes[:, ::-1].T[: 2 * parts]
    pairs = np.stack([np.arange(parts), np.arange(parts, 2 * parts)[::-1]], axis=1).ravel()
    of_documents, of_queries = largest @ stretch, largest @ (directions / roots) @ directions.T
    return of_documents[pairs].astype(np.float32), of_queries[pairs].astype(np.float32), variances[::-1]


def _given_away(index: Any) -> Any:
    """The same object; the Faiss object that holds it frees it from now on."""
    index.this.disown()
    return index
