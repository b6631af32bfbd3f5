"""A dense index laid out by a sample of queries: it tells apart what queries tell apart.

A list or a code that puts two documents x, y together is off by q·(x-y) for a query q. Averaged over queries that is
(x-y)ᵀ M (x-y) with M = E[q qᵀ], not the distance of the documents. So both sides are mapped without changing a score,

    x' = U M^½ x        q' = U M^-½ q        q'·x' = q·x        (U: main directions of the documents M^½ x)

and now the distance is what counts. Lists are clusters of x', chosen as `artifacts.dense.list_spread` says. The first 2m
directions are kept and go, the largest together with the smallest, into m codes of 4 bits, of what a document differs
from its centre. The best candidates are scored again with all dimensions in 8 bits. Queries of a language have much in
common, so M is far from even, and most of a score lies in few directions.

The index is one that Faiss knows, an IndexRefine over an IndexPreTransform, which maps queries. What it is called here,
`Queries,IVF1024,PQ64x4fsr,Refine(SQ8)`, is no factory string of Faiss.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.dense.list_spread import ListSpreads, lists_of, measure_spreads
from lightretriever.artifacts.dense.rounding import rounded_codes
from lightretriever.artifacts.errors import RecipeError

__all__ = ["LEAST_DIMENSION", "asked_factory", "asked_lists", "build_asked_index", "is_asked"]

LEAST_DIMENSION: Final = 16
"""With fewer dimensions there is nothing to choose from."""

_PATTERN: Final = re.compile(r"Queries,IVF([1-9]\d*),PQ([1-9]\d*)x4fsr,Refine\(SQ8\)")
_EVEN: Final = 0.1  # of M is the same in all directions: what the sample has not asked, others may
_TRAINED: Final = 128  # documents per list that the clustering sees
_ROUNDS: Final = 20  # of the clustering
_LEAST: Final = 65_536
_ENOUGH: Final = 0.99  # of what scores differ by lies in the directions that are kept
_MOST_PARTS: Final = 256  # scores of so many codes are 16-bit numbers
_CHUNK: Final = 65_536

Vectors = npt.NDArray[np.float32]


def is_asked(factory: str) -> bool:
    """Whether a factory string is that of an index laid out by queries."""
    return factory.startswith("Queries,")


def asked_factory(vectors: Vectors, queries: Vectors, lists: int) -> str:
    """What to build for documents (N, D) and queries (q, D), D at least 16, with so many lists.

    m is the smallest of D/8, D/4 and D/2 whose 2m directions hold 0.99 of what the documents' scores differ by, but at
    most 256.
    """
    dimension = vectors.shape[1]
    _, _, spread = _maps(_sample(vectors, lists), queries, dimension // 2)
    held = np.cumsum(spread) / spread.sum()
    parts = next((m for m in (dimension // 8, dimension // 4) if held[2 * m - 1] >= _ENOUGH), dimension // 2)
    return f"Queries,IVF{lists},PQ{min(parts, _MOST_PARTS)}x4fsr,Refine(SQ8)"


def asked_lists(factory: str, dimension: int) -> tuple[int, int]:
    """Its lists, and codes per document. Raises RecipeError for another string, or one that doesn't fit D."""
    found = _PATTERN.fullmatch(factory)
    most = min(dimension // 2, _MOST_PARTS)
    if found is None or int(found[2]) > most:
        raise RecipeError(
            f'The factory "{factory}" can\'t be built for {dimension} dimensions.',
            remedy=f"Write Queries,IVFn,PQmx4fsr,Refine(SQ8) with m at most {most}.",
        )
    return int(found[1]), int(found[2])


def build_asked_index(vectors: Vectors, queries: Vectors, factory: str) -> tuple[Any, ListSpreads]:
    """The Faiss index over documents (N, D), may be a memory map, laid out by queries (q, D), float32, of length 1, and
    how the documents of its lists spread."""
    dimension = vectors.shape[1]
    lists, parts = asked_lists(factory, dimension)
    sample = _sample(vectors, lists)
    of_documents, of_queries, _ = _maps(sample, queries, parts)
    centres = faiss.IndexFlatL2(2 * parts)
    swig: Any = faiss
    inverted = swig.IndexIVFPQFastScan(centres, 2 * parts, lists, parts, 4, faiss.METRIC_INNER_PRODUCT)
    inverted.by_residual, inverted.cp.spherical, inverted.cp.niter = True, False, _ROUNDS
    inverted.train(sample @ of_documents.T)
    for chunk in _chunks(vectors):
        inverted.add(chunk @ of_documents.T)
    probed = faiss.IndexFlatIP(2 * parts)  # a document is in the nearest list, a query asks the best
    probed.add(centres.reconstruct_n(0, lists))
    spreads = measure_spreads(
        (chunk @ of_documents.T for chunk in _chunks(vectors)),
        lists_of(inverted, len(vectors)),
        centres.reconstruct_n(0, lists),
        np.arange(0, 2 * parts, 2),  # the larger half
    )
    inverted.quantizer, inverted.own_fields = _given_away(probed), True
    mapping = faiss.LinearTransform(dimension, 2 * parts, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(of_queries).ravel(), mapping.A)
    mapping.is_trained = True
    mapped = swig.IndexPreTransform(_given_away(mapping), _given_away(inverted))
    mapped.own_fields = True
    scored = swig.IndexScalarQuantizer(dimension, swig.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    scored.train(vectors)
    low, span = faiss.vector_to_array(scored.sq.trained).reshape(2, dimension).astype(np.float32)
    moment = _moment(queries)
    for chunk in _chunks(vectors):
        scored.add_sa_codes(rounded_codes(chunk, low, span / np.float32(255), moment))
    refined = swig.IndexRefine(_given_away(mapped), _given_away(scored))
    refined.own_fields, refined.own_refine_index = True, True
    return refined, spreads


def _chunks(vectors: Vectors) -> Iterator[Vectors]:
    for start in range(0, len(vectors), _CHUNK):
        yield vectors[start : start + _CHUNK]


def _sample(vectors: Vectors, lists: int) -> Vectors:
    """Documents from all over the corpus, enough to find so many lists."""
    count = min(len(vectors), max(_LEAST, _TRAINED * lists))
    return vectors[np.linspace(0, len(vectors) - 1, count).astype(np.int64)]


def _moment(queries: Vectors) -> npt.NDArray[np.float64]:
    """E[q qᵀ] over queries (q, D), of which the mean in all directions is 1, and a tenth more in each: (D, D)."""
    moment = queries.T.astype(np.float64) @ queries
    scaled: npt.NDArray[np.float64] = moment * len(moment) / np.trace(moment) + _EVEN * np.eye(len(moment))
    return scaled


def _maps(documents: Vectors, queries: Vectors, parts: int) -> tuple[Vectors, Vectors, npt.NDArray[np.float64]]:
    """What maps documents (n, D), and what maps queries, two arrays (2·parts, D) float32; spread by direction (D,)."""
    values, directions = np.linalg.eigh(_moment(queries))
    roots = np.sqrt(np.maximum(values, _EVEN))
    stretched = (directions * roots) @ directions.T
    spread, main = np.linalg.eigh(np.cov((documents @ stretched).T))
    largest = main[:, ::-1].T[: 2 * parts]
    order = np.stack([np.arange(parts), np.arange(parts, 2 * parts)[::-1]], axis=1).ravel()
    mapped, asked = largest @ stretched, largest @ (directions / roots) @ directions.T
    return mapped[order].astype(np.float32), asked[order].astype(np.float32), spread[::-1]


def _given_away(index: Any) -> Any:
    """The same; whoever holds it frees it from now on."""
    index.this.disown()
    return index
