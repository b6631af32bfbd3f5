"""Builds the hits of a page from the candidate table and the documents.

Hits are plain dictionaries in the form of `service.schemas`, so that answers are not validated on their way out.
"""

from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.service.schemas import LegName
from lightretriever.service.search.fusion import CandidateTable
from lightretriever.service.search.ranking import Group, Ranked

__all__ = ["Plain", "add_ranking", "in_groups", "list_hits"]

Plain = dict[str, Any]
"""An answer, or a part of it, with the keys of its model in their order."""


def list_hits(
    table: CandidateTable,
    legs: list[LegName],
    scores: npt.NDArray[np.float64],
    page: npt.NDArray[np.intp],
    documents: list[tuple[str, Plain]],
    offset: int,
) -> list[Plain]:
    """Give the hits of a page, as `Hit`. `page`: columns (k,) of the table, best first, after `offset` other hits.
    `legs` names the table's rows; scores: (u,), those of the columns; `documents` are the page's ids and fields."""
    cells = zip(legs, table.scores[:, page].tolist(), table.ranks[:, page].tolist(), strict=True)
    found = {name: list(map(_leg_score, scores, ranks)) for name, scores, ranks in cells}
    nothing: list[Plain | None] = [None] * len(page)
    legs_of = {"dense": nothing, "sparse": nothing} | found
    rows = zip(documents, scores[page].tolist(), *legs_of.values(), strict=True)
    return [
        {"id": document[0], "rank": rank, "score": score}
        | dict(zip(legs_of, of_legs, strict=True))
        | {"fields": document[1]}
        for rank, (document, score, *of_legs) in enumerate(rows, start=offset + 1)
    ]


def add_ranking(hits: list[Plain], ranking: Ranked, columns: list[int]) -> list[Plain]:
    """Add the reranking model's scores to the hits, which have these columns, and to explanations what boosts added."""
    if not ranking.reranked and not len(ranking.boosts):
        return hits
    found = []
    for hit, column in zip(hits, columns, strict=True):
        added = {} if column not in ranking.reranked else {"rerank": ranking.reranked[column]}
        if len(ranking.boosts) and "explanation" in hit:
            added["explanation"] = hit["explanation"] | {"boosts": ranking.boosts[:, column].tolist()}
        found.append(hit | added)
    return found


def in_groups(hits: list[Plain], groups: list[Group], offset: int) -> list[Plain]:
    """Nest hits, which stand group by group, into the best of their groups."""
    rest, found = iter(hits), []
    for rank, group in enumerate(groups, start=offset + 1):
        best, *others = [next(rest) for _ in group.columns]
        further = [hit | {"rank": place} for place, hit in enumerate(others, start=2)]
        about = {"value": group.value, "candidates": group.size, "hits": further}
        found.append(best | {"rank": rank, "group": about})
    return found


def _leg_score(score: float, rank: int) -> Plain | None:
    return None if isnan(score) else {"score": score, "rank": rank or None}
