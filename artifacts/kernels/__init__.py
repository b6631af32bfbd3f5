"""Compiled arithmetic, in C++ (`cpp/`). What each name does stands in `native.pyi`."""

from lightretriever.artifacts.kernels.native import (
    FLOOR,
    Impacts,
    Table,
    align,
    best_first,
    count,
    count_each,
    extremes,
    fill,
    fuse,
    magnitude,
    unknown,
    weighted_terms,
)

__all__ = [
    "FLOOR",
    "Impacts",
    "Table",
    "align",
    "best_first",
    "count",
    "count_each",
    "extremes",
    "fill",
    "fuse",
    "magnitude",
    "unknown",
    "weighted_terms",
]
