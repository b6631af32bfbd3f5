"""Numbers of many texts in CSR form: whole numbers by text, terms counted, and what models make of texts."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from lightretriever.artifacts.dtypes import BoolArray, Float16Array, Int32Array, Int64Array, UInt16Array

ImpactRow: TypeAlias = tuple[Int32Array, UInt16Array]
"""Terms (n,), ascending, and impacts (n,) of a document."""


@dataclass(frozen=True)
class Rows:
    """Whole numbers of n texts: those of text i are `values[at[i]:at[i + 1]]`. `at` (n + 1,) int64, `values` int32."""

    at: Int64Array
    values: Int32Array

    @classmethod
    def of(cls, rows: Sequence[Int32Array]) -> Self:
        """Join the numbers (n_i,) of each text."""
        return cls(np.cumsum([0, *map(len, rows)]).astype(np.int64), np.concatenate([np.empty(0, np.int32), *rows]))

    def __len__(self) -> int:
        return len(self.at) - 1

    def __getitem__(self, row: int) -> Int32Array:
        return self.values[self.at[row] : self.at[row + 1]]

    def __iter__(self) -> Iterator[Int32Array]:
        return (self[row] for row in range(len(self)))

    def places(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Where the values of texts are, one text after the other, and `at` of them."""
        lengths = self.at[rows + 1] - self.at[rows]
        at = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return np.repeat(self.at[rows] - at[:-1], lengths) + np.arange(at[-1]), at

    def take(self, rows: Int64Array) -> "Rows":
        """Copy the rows of some texts."""
        places, at = self.places(rows)
        return Rows(at, self.values[places])


@dataclass(frozen=True)
class TermCounts:
    """The terms of n texts as numbers, in the order of the text and as often as it has them. `names` are the terms by
    number, in the order in which the texts have them first."""

    terms: Rows
    names: list[str]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], numbers: dict[str, int] | None = None) -> Self:
        """Number the terms of texts; new terms get new `numbers`."""
        numbers = {} if numbers is None else numbers
        at, values = array("q", [0]), array("i")
        for terms in texts:
            values.extend([numbers.setdefault(term, len(numbers)) for term in terms])
            at.append(len(values))
        return cls(Rows(np.asarray(at, np.int64), np.asarray(values, np.int32)), [*numbers])

    def __len__(self) -> int:
        return len(self.terms)

    def sorted(self, start: int, stop: int) -> tuple[Int64Array, Int32Array, Int32Array]:
        """The texts from `start` on up to `stop` in CSR form: `indptr` (n + 1,), different terms (nnz,), ascending in
        each text, and how often it has them, counts (nnz,)."""
        at, size = self.terms.at[start : stop + 1], max(1, len(self.names))
        rows = np.repeat(np.arange(stop - start), np.diff(at))
        pairs, counts = np.unique(rows * size + self.terms.values[at[0] : at[-1]], return_counts=True)
        indptr = np.searchsorted(pairs, np.arange(stop - start + 1) * size)
        return indptr.astype(np.int64), (pairs % size).astype(np.int32), counts.astype(np.int32)


@dataclass(frozen=True)
class ImpactRows:
    """Impacts of n texts: the `terms` of each, ascending, and beside them `impacts` (nnz,) uint16."""

    terms: Rows
    impacts: UInt16Array

    @classmethod
    def of(cls, rows: Sequence[ImpactRow]) -> Self:
        """Join the terms and impacts of each text."""
        impacts = np.concatenate([np.empty(0, np.uint16), *(impacts for _, impacts in rows)])
        return cls(Rows.of([terms for terms, _ in rows]), impacts)

    def __len__(self) -> int:
        return len(self.terms)

    def __getitem__(self, row: int) -> ImpactRow:
        return self.terms[row], self.impacts[self.terms.at[row] : self.terms.at[row + 1]]

    def __iter__(self) -> Iterator[ImpactRow]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True)
class ModelRows:
    """What the models made of n texts: `dense` (n, H) float16, L2-normalised before rounding; impacts of token ids;
    `cut` (n,) bool, whether a text is longer than one reads."""

    dense: Float16Array
    sparse: ImpactRows
    cut: BoolArray

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join the rows of several calls, one or more."""
        sparse = ImpactRows.of([row for part in parts for row in part.sparse])
        return cls(np.concatenate([part.dense for part in parts]), sparse, np.concatenate([part.cut for part in parts]))

    def __len__(self) -> int:
        return len(self.cut)
