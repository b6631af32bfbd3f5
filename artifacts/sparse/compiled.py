"""The accelerator of the sparse leg: posting lists as plain numbers in a file beside Lucene's, searched in C++.

An index has the file if it was written with `accelerate`. Answers are those of `ImpactIndex`, to the last bit.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.arguments import check_k, check_ordinals, check_terms, weighted_ids

__all__ = ["ASKED_IF_BM25", "ASKED_IF_LEARNED", "IMPACTS_FILE", "CompiledImpacts"]

IMPACTS_FILE: Final = "impacts.plain"
"""Name of the file in the folder of the Lucene index."""

ASKED_IF_LEARNED: Final = 0.1
ASKED_IF_BM25: Final = 0.35
"""Good values of `asked`: BM25's long lists add little, so it pays to ask them for single documents."""

_RESTORE: Final = "Restore the file from a copy, or build the bundle again."


class CompiledImpacts:
    """The posting lists in a file `impacts.plain`. A document's ordinal is its place in the order of writing.

    Any number of threads may search at once. The file is memory-mapped, so processes share it. `close()` may come while
    another thread searches: that search ends well, every later call raises BundleError.
    """

    def __init__(self, path: Path, count: int, *, asked: float = ASKED_IF_LEARNED) -> None:
        """Open the file `path` of `count` documents. Raises BundleError when it is missing or damaged.

        Posting lists that together can add at most the share `asked`, 0 to 1, of the last hit's score are not added up,
        but asked for the documents that the others make promising. This changes the speed, and no answer.
        """
        self.path = path
        self.count = count
        self._asked = asked
        self._open: kernels.Impacts | None
        try:
            self._open = kernels.Impacts(np.memmap(path, np.uint8, "r"), count)
        except (OSError, ValueError) as error:
            raise BundleError(f"{path} can't be opened ({error}).", remedy=_RESTORE) from error

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        self._open = None

    def search(
        self,
        terms: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.floating[Any]],
        k: int,
        among_bits: npt.NDArray[np.uint8] | None = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The exact best `k` documents that score above 0, ordinals (m,) int64 and scores (m,) float32, as
        `ImpactIndex.search` gives them.

        With `among_bits`, (b,) uint8 with a bit for every ordinal, the lowest first, only documents whose bit is set.
        Raises ValueError on bad arguments.
        """
        query = weighted_ids(terms, weights)
        check_k(k)
        return self._lists().search(*query, k, among_bits, self._asked)

    def scores(
        self,
        terms: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.floating[Any]],
        ordinals: npt.NDArray[np.integer[Any]],
    ) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of the documents `ordinals` (m,), as `search` gives them; 0.0 where no term matches.

        Raises ValueError on bad arguments, such as an ordinal that no document has.
        """
        query = weighted_ids(terms, weights)
        check_ordinals(ordinals, self.count, self.path)
        return self._lists().scores(*query, np.ascontiguousarray(ordinals, np.int64))

    def impacts(
        self, terms: npt.NDArray[np.integer[Any]], ordinals: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int32]:
        """The impact of each term (t,) in each document (m,), (m, t) int32: 0 where the document lacks the term.

        Raises ValueError on bad arguments.
        """
        check_terms(terms)
        check_ordinals(ordinals, self.count, self.path)
        return self._lists().impacts(np.ascontiguousarray(terms, np.int32), np.ascontiguousarray(ordinals, np.int64))

    def _lists(self) -> kernels.Impacts:
        lists = self._open
        if lists is None:
            raise BundleError(f"{self.path} is closed.", remedy="Open it again.")
        return lists
