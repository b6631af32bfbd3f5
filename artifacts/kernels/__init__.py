"""Compiled arithmetic, in C++ (`cpp/`). What each name does stands in `native.pyi`."""

from lightretriever.artifacts.kernels.native import (
    FLOOR,
    ByteCodes,
    Impacts,
    Lists,
    Table,
    Texts,
    Words,
    align,
    best_first,
    count,
    count_each,
    extremes,
    fill,
    fuse,
    magnitude,
    unknown,
)

__all__ = [
    "FLOOR",
    "ByteCodes",
    "Impacts",
    "Lists",
    "Table",
    "Texts",
    "Words",
    "align",
    "best_first",
    "count",
    "count_each",
    "extremes",
    "fill",
    "fuse",
    "magnitude",
    "unknown",
]
