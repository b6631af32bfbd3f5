"""Error-feedback quantisation: 8-bit codes of documents whose errors queries hardly see.

A code is off by up to half a step in each dimension, and a score by e·q, where e is the error of a document's codes.
If every dimension is rounded to the nearest code, the errors of all dimensions add up along the directions that most
queries share. The expected squared error of a score is

    E[(e·q)²] = eᵀ M e        with M = E[q qᵀ] over a sample of queries

so dimensions are rounded one after the other, and those not yet rounded make up for the error so far: they move to
where the rest of eᵀ M e is least. With M⁻¹ = Uᵀ U, U upper triangular, that is x_k -= U_jk / U_jj · e_j for all k after
j. (GPTQ does the same to the weights of a model, arXiv:2210.17323.)
"""

from typing import Final

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, Float64Array, UInt8Array

__all__ = ["error_feedback_codes"]

_MAX_CODE: Final = 255
_BLOCK: Final = 32  # dimensions whose errors are passed on to all later ones in one product
_CHUNK: Final = 8192  # documents that fit into the processor's caches


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
    upper = _inverse_root(in_steps)
    feedback = (upper / np.diag(upper)[:, None]).astype(np.float32)
    codes = np.zeros(vectors.shape, np.uint8)
    for start in range(0, len(vectors), _CHUNK):
        part = np.ascontiguousarray(vectors[start : start + _CHUNK, used].T)
        part = (part - low[used, None]) / step[used, None] - np.float32(0.5)
        codes[start : start + _CHUNK, used] = _rounded(part, feedback).T
    return codes


def _inverse_root(matrix: Float64Array) -> Float64Array:
    """U, upper triangular, of a positive definite matrix (D, D) = (Uᵀ U)⁻¹."""
    # Not np.linalg.inv: it needs more stack than the JVM leaves to the main thread, and crashes there.
    values, directions = np.linalg.eigh(matrix)
    upper: Float64Array = np.linalg.qr(directions.T / np.sqrt(values)[:, None]).R
    return upper


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
