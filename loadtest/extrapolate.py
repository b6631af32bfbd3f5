"""From measured sizes and times to those of larger corpora: formulas and straight lines, nothing hidden."""

import math
import re
from collections.abc import Sequence

from lightretriever.artifacts.dense.list_spread import spread_bytes
from lightretriever.loadtest.wire import LoadError

__all__ = ["dense_bytes", "line", "power"]

Points = Sequence[tuple[float, float]]


def dense_bytes(factory: str, dimension: int, documents: int) -> float:
    """Bytes of a Faiss index with D dimensions and N documents, and of the spreads of its lists.

        Flat                          4·D·N
        SQ8                           D·N
        HNSWm,X                       X + N·(4·(2·m + m/(m-1)) + 12)      links of all levels, level and offset
        IVFn,PQqx4fsr,Refine(SQ8)     N·(q/2 + 8 + D) + 4·D·n             codes, ids, refinement, centroids
        Queries,IVFn,…                the same + 8·q·(D + n) - 4·D·n      centroids of 2·q values, map of queries
                                      + n·(2·min(64, q) + 8)              spreads

    A node has 2·m links at the bottom, and m at each higher level, which 1/m of the level below reach. Raises LoadError
    for another factory.
    """
    plain = {"Flat": 4.0 * dimension, "SQ8": float(dimension)}
    if factory in plain:
        return plain[factory] * documents
    if graph := re.fullmatch(r"HNSW(\d+),(Flat|SQ8)", factory):
        links = int(graph[1])
        return (plain[graph[2]] + 4 * (2 * links + links / (links - 1)) + 12) * documents
    if lists := re.fullmatch(r"(Queries,)?IVF(\d+),PQ(\d+)x4fsr?,Refine\(SQ8\)", factory):
        count, parts = int(lists[2]), int(lists[3])
        mapped = 8 * parts * (dimension + count) + count * (spread_bytes(parts) + 8)
        tables = mapped if lists[1] else 4 * dimension * count
        return (parts / 2 + 8 + dimension) * documents + tables
    raise LoadError(f"The size of a Faiss index {factory!r} has no formula here.", remedy="Use a factory by size.")


def line(points: Points) -> tuple[float, float]:
    """The straight line `fixed + slope·x` of least squares, as (fixed, slope). LoadError without two different x."""
    if len({x for x, _ in points}) < 2:
        raise LoadError("A line needs measurements at two sizes.", remedy="Give bundles of different size.")
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return mean_y - slope * mean_x, slope


def power(points: Points) -> tuple[float, float]:
    """The power law `a·x^b` through the two largest x, as (a, b): how a time grows where it grows most.

    LoadError without two different x, or for values that are not above 0.
    """
    last = sorted(dict(points).items())[-2:]
    if len(last) < 2 or min(y for _, y in last) <= 0:
        raise LoadError(
            "A power law needs measurements above 0 at two sizes.", remedy="Give bundles of different size."
        )
    (x0, y0), (x1, y1) = last
    exponent = math.log(y1 / y0) / math.log(x1 / x0)
    return y1 / x1**exponent, exponent
