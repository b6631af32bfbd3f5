"""8-bit codes of documents, rounded so that queries see little of the error.

A code is off by up to half a step in each dimension, and a score by e·q, e being what a document's codes are off by.
Rounded each by itself, all dimensions' errors add up along the directions that most queries share. What counts is

    E[(e·q)²] = eᵀ M e        with M = E[q qᵀ] over a sample of queries

so one dimension is rounded after the other, and what it is off by is made up for by those that are not rounded yet:
they move to where, given the errors so far, the rest of eᵀ M e would be least. With M⁻¹ = Uᵀ U, U upper triangular,
that is x_k -= U_jk / U_jj · e_j for all k after j. (GPTQ does the same to a model's weights, arXiv:2210.17323.)
"""

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["rounded_codes"]

_MOST: Final = 255
_TOGETHER: Final = 32  # dimensions whose errors reach the later ones in one product
_CHUNK: Final = 8192  # documents that fit into the processor's caches


def rounded_codes(
    vectors: npt.NDArray[np.float32],
    low: npt.NDArray[np.float32],
    step: npt.NDArray[np.float32],
    moment: npt.NDArray[np.float64],
) -> npt.NDArray[np.uint8]:
    """Codes (n, D) of vectors (n, D), of which code c stands for low + (c + ½)·step, both (D,).

    `moment` (D, D) is M, positive definite. A dimension whose step is 0 has one value alone, and the code 0.
    """
    used = np.flatnonzero(step > 0)
    # What queries look at most is rounded first, when there is most to make up for it with.
    used = used[np.argsort(-moment[used, used], kind="stable")]
    steps = step[used].astype(np.float64)
    in_steps = moment[np.ix_(used, used)] * steps[:, None] * steps
    upper = _root_of_inverse(in_steps)
    passed_on = (upper / np.diag(upper)[:, None]).astype(np.float32)
    codes = np.zeros(vectors.shape, np.uint8)
    for start in range(0, len(vectors), _CHUNK):
        part = np.ascontiguousarray(vectors[start : start + _CHUNK, used].T)
        part = (part - low[used, None]) / step[used, None] - np.float32(0.5)
        codes[start : start + _CHUNK, used] = _rounded(part, passed_on).T
    return codes


def _root_of_inverse(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """U, upper triangular, of a positive definite matrix (D, D) = (Uᵀ U)⁻¹."""
    # Not by np.linalg.inv: what it calls needs more of the stack than Java leaves of the main thread's.
    values, directions = np.linalg.eigh(matrix)
    upper: npt.NDArray[np.float64] = np.linalg.qr(directions.T / np.sqrt(values)[:, None]).R
    return upper


def _rounded(wanted: npt.NDArray[np.float32], passed_on: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Whole numbers (D, n) for wanted ones, which are changed."""
    codes = np.empty(wanted.shape, np.uint8)
    for first in range(0, len(wanted), _TOGETHER):
        last = min(first + _TOGETHER, len(wanted))
        errors = np.empty((last - first, wanted.shape[1]), np.float32)
        for row in range(first, last):
            taken = np.clip(np.rint(wanted[row]), 0, _MOST)
            codes[row] = taken
            errors[row - first] = error = wanted[row] - taken
            wanted[row + 1 : last] -= passed_on[row, row + 1 : last, None] * error
        wanted[last:] -= passed_on[first:last, last:].T @ errors
    return codes
