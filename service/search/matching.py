"""How well documents match a query, by the bundle's thresholds of the dense score."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.parts import MatchThresholds
from lightretriever.service.backends.base import CorpusWords, Ordinals
from lightretriever.service.schemas import LegName, Matched
from lightretriever.service.search.documents import reading
from lightretriever.service.search.fusion import CandidateTable
from lightretriever.service.search.hits import Plain

__all__ = ["add_matched", "add_words", "best_match", "stricter_without_words"]


def stricter_without_words(
    thresholds: MatchThresholds | None, table: CandidateTable, legs: Sequence[LegName]
) -> MatchThresholds | None:
    """The thresholds for these candidates: where BM25 was searched and none has a word of the query, a weak match is
    none. Letters typed at random have pieces that are near to something, too."""
    if thresholds is None or "bm25" not in legs:
        return thresholds
    found = np.nanmax(table.scores[legs.index("bm25")], initial=0.0) > 0
    return thresholds if found else thresholds.model_copy(update={"weak": thresholds.strong})


def best_match(table: CandidateTable, legs: Sequence[LegName], thresholds: MatchThresholds | None) -> Plain:
    """Give `matched` of the answer: how well the best candidate matches. Nothing without thresholds or dense scores."""
    if thresholds is None or "dense" not in legs:
        return {}
    scores: npt.NDArray[np.float64] = table.scores[legs.index("dense")]
    return {"matched": _matched(float(np.nanmax(scores, initial=-np.inf)), thresholds)}


def add_matched(hits: Sequence[Plain], thresholds: MatchThresholds | None) -> list[Plain]:
    """Add `matched` to the hits that have a dense score. Nothing is added without thresholds."""
    if thresholds is None:
        return list(hits)
    return [
        hit if hit["dense"] is None else hit | {"matched": _matched(hit["dense"]["score"], thresholds)} for hit in hits
    ]


def add_words(hits: Sequence[Plain], words: CorpusWords | None, query: str, ordinals: Ordinals) -> list[Plain]:
    """Add to the explanations which share of the query's words each of the documents (m,) has, if that is known."""
    with reading():
        shares = None if words is None else words.shares(query, ordinals)
    if shares is None:
        return list(hits)
    return [
        hit | {"explanation": hit["explanation"] | {"words": share}}
        for hit, share in zip(hits, shares.astype(np.float64).round(4).tolist(), strict=True)
    ]


def _matched(score: float, thresholds: MatchThresholds) -> Matched:
    if score >= thresholds.strong:
        return "strong"
    return "weak" if score >= thresholds.weak else "none"
