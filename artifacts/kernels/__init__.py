"""Compiled arithmetic, in C++ (`cpp/`). What each name does stands in `native.pyi`."""

from lightretriever.artifacts.kernels.native import (
    FLOOR,
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
