"""Two-phase search of the sparse leg, after Geng et al., "Towards Competitive Search Relevance For Inference-Free
Learned Sparse Retrievers", section 5.3.2.

A term t can add at most weight_t * max_d impact(t, d) to a score. The first phase leaves out the terms that can add
least; the second scores the documents that the first found, with all terms.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Leg, ScoredDocuments

__all__ = ["Phases", "TwoPhaseSearch"]


class Phases(NamedTuple):
    """share: of the highest possible score, above 0 to 1, which the first phase's terms make together; depth: number
    of documents that the first phase finds."""

    share: float
    depth: int


class TwoPhaseSearch:
    """Searches a sparse leg in two phases. Thread-safe."""

    def __init__(self, leg: Leg) -> None:
        """The caller closes the leg."""
        self._leg = leg
        self._largest: Final[dict[str, float]] = {}

    def search(self, query: EncodedQuery, count: int, among: DocumentFilter | None, phases: Phases) -> ScoredDocuments:
        """Find the best `count` documents of those that the first phase found. Each has the score that `Leg.search`
        gives. ValueError if `count` or the depth is below 1."""
        light = self._light(query, phases.share)
        if not light.any():
            return self._leg.search(query, count, among)
        kept = [term for term, is_light in zip(query.terms, light.tolist(), strict=True) if not is_light]
        heavy = EncodedQuery.of_model(kept, query.weights[~light], None)
        ordinals = self._leg.search(heavy, phases.depth, among).ordinals
        scores = self._leg.scores(query, ordinals)
        order = np.lexsort((ordinals, -scores))[:count]
        order = order[scores[order] > 0]
        return ScoredDocuments(ordinals[order], scores[order])

    def _light(self, query: EncodedQuery, share: float) -> npt.NDArray[np.bool_]:
        """Tell which terms the first phase leaves out: (t,). Those of negative weight stay, so that they count
        against documents in both phases."""
        possible = np.array([self._of_term(term) for term in query.terms]) * np.maximum(query.weights, 0)
        order = np.argsort(possible, kind="stable")
        rising = np.cumsum(possible[order])
        light = np.zeros(len(query.terms), np.bool_)
        light[order[:-1]] = (rising <= (1 - share) * rising[-1:])[:-1]
        return light & (possible > 0)

    def _of_term(self, term: str) -> float:
        """Give the largest impact of a term: the score of the best document for it alone."""
        if (known := self._largest.get(term)) is not None:
            return known
        alone = EncodedQuery.of_model([term], np.ones(1, np.float32), None)
        scores = self._leg.search(alone, 1).scores
        largest = float(scores[0]) if scores.size else 0.0
        self._largest[term] = largest
        return largest
