"""Builds the hits of a page from the candidate table and the documents.

Hits are plain dictionaries in the form of `service.schemas`, so that answers are not validated on their way out.
"""

from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.service.schemas import LegName
from lightretriever.service.search.fusion import CandidateTable, Fused

__all__ = ["Plain", "list_hits"]

Plain = dict[str, Any]
"""An answer, or a part of it, with the keys of its model in their order."""


def list_hits(
    table: CandidateTable,
    legs: list[LegName],
    fused: Fused,
    page: npt.NDArray[np.intp],
    documents: list[tuple[str, Plain]],
    offset: int,
) -> list[Plain]:
    """Give the hits of a page, as `Hit`. `page`: columns (k,) of the table, best first, after `offset` other hits.
    `legs` names the table's rows; `documents` are the page's ids and
    fields."""
    cells = zip(legs, table.scores[:, page].tolist(), table.ranks[:, page].tolist(), strict=True)
    found = {name: list(map(_leg_score, scores, ranks)) for name, scores, ranks in cells}
    nothing: list[Plain | None] = [None] * len(page)
    legs_of = {"dense": nothing, "sparse": nothing} | found
    rows = zip(documents, fused.scores[page].tolist(), *legs_of.values(), strict=True)
    return [
        {"id": document[0], "rank": rank, "score": score}
        | dict(zip(legs_of, of_legs, strict=True))
        | {"fields": document[1]}
        for rank, (document, score, *of_legs) in enumerate(rows, start=offset + 1)
    ]


def _leg_score(score: float, rank: int) -> Plain | None:
    return None if isnan(score) else {"score": score, "rank": rank or None}
