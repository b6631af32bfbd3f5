"""Builds the hits of an answer, each once, from the candidate table, the documents and what the request asks for.

Hits are plain dictionaries in the form of `service.schemas`, so that answers are not validated on their way out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np
import numpy.typing as npt
from lightretriever.service.schemas import LegName, Matched, Plain, Snippet
from lightretriever.service.search.fusion import CandidateTable
from lightretriever.service.search.ranking import Ranked

__all__ = ["Page", "build_hits"]


@dataclass(slots=True)
class Page:
    """The hits of a page, best first: columns (k,) of the table, the documents' ids and fields, and where the request
    asks for them the snippets and explanations, one for each hit. `matched` has the level of every column of the table.
    """

    columns: npt.NDArray[np.intp]
    documents: Sequence[tuple[str, Plain]]
    snippets: Sequence[dict[str, Snippet]] | None = None
    explanations: Sequence[Plain] | None = None
    matched: Sequence[Matched | None] | None = None


def build_hits(page: Page, table: CandidateTable, legs: Sequence[LegName], ranking: Ranked, offset: int) -> list[Plain]:
    """Give the hits of a page, as `Hit`, after `offset` other hits; of groups each one's best, with the others below.

    `legs` names the table's rows.
    """
    columns = page.columns
    scores = ranking.scores[columns].tolist()
    of_legs: dict[LegName, Sequence[Plain | None]] = {"dense": [None] * columns.size, "sparse": [None] * columns.size}
    for row, name in enumerate(legs):
        cells = zip(table.scores[row, columns].tolist(), table.ranks[row, columns].tolist(), strict=True)
        of_legs[name] = [None if isnan(score) else {"score": score, "rank": rank or None} for score, rank in cells]
    hits = []
    for place, (document_id, fields) in enumerate(page.documents):
        hit: Plain = {
            "id": document_id,
            "rank": offset + place + 1,
            "score": scores[place],
            "dense": of_legs["dense"][place],
            "sparse": of_legs["sparse"][place],
            "fields": fields,
        }
        if page.matched is not None and (level := page.matched[columns[place]]) is not None:
            hit["matched"] = level
        if page.snippets is not None:
            hit["snippets"] = page.snippets[place]
        if page.explanations is not None:
            hit["explanation"] = page.explanations[place]
        column = int(columns[place])
        if column in ranking.reranked:
            hit["rerank"] = ranking.reranked[column]
        hits.append(hit)
    return hits if ranking.groups is None else _in_groups(hits, ranking, offset)


def _in_groups(hits: list[Plain], ranking: Ranked, offset: int) -> list[Plain]:
    """Put the further hits of each group into its best one. The page begins with the group of rank `offset` + 1."""
    rest, found = iter(hits), list[Plain]()
    for group in (ranking.groups or [])[offset:]:
        of_group = [hit for _, hit in zip(group.columns, rest, strict=False)]
        if not of_group:
            break
        best, *others = of_group
        for rank, hit in enumerate(others, start=2):
            hit["rank"] = rank
        best["rank"] = offset + len(found) + 1
        best["group"] = {"value": group.value, "candidates": group.size, "hits": others}
        found.append(best)
    return found
