"""How well documents match a query, by the bundle's thresholds of the dense score."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.parts import MatchThresholds
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.schemas import LegName, Matched
from lightretriever.service.search.answer import Plain
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.fusion import CandidateTable
from lightretriever.service.search.words import STOP_WORDS, WORD

__all__ = ["best_match", "match_of", "thresholds_of"]


def thresholds_of(
    thresholds: MatchThresholds | None,
    text: str,
    query: EncodedQuery,
    table: CandidateTable,
    legs: Sequence[LegName],
    encoder: QueryEncoder,
) -> MatchThresholds | None:
    """The thresholds for these candidates of a query, encoded from `text`; None for head queries, whose vector is
    another model's.

    They are stricter where the terms are words, the sparse leg was searched and no candidate has one of the query: a
    weak match is none then, and if the tokenizer of the tables knows no word of it either, every match is. Letters
    typed at random have pieces that are near to something, too.
    """
    if thresholds is None or query.head or encoder.vocabulary.language is None or "sparse" not in legs:
        return None if query.head else thresholds
    if np.fmax.reduce(table.scores[legs.index("sparse")], initial=0.0) > 0:
        return thresholds
    strong = thresholds.strong if _knows_a_word(text, encoder.tokenizer) else np.inf
    return thresholds.model_copy(update={"weak": strong, "strong": strong})


def _knows_a_word(text: str, tokenizer: TextTokenizer) -> bool:
    """Whether a word of a text, stop words apart, is one token."""
    words = [word for word in WORD.findall(text) if word.lower() not in STOP_WORDS]
    return bool(words) and 1 in tokenizer.query_ids_of(words)[1]


def best_match(table: CandidateTable, legs: Sequence[LegName], thresholds: MatchThresholds | None) -> Plain:
    """Give `matched` of the answer: how well the best candidate matches. Nothing without thresholds or dense scores."""
    if thresholds is None or "dense" not in legs:
        return {}
    scores: npt.NDArray[np.float64] = table.scores[legs.index("dense")]
    return {"matched": match_of(float(np.fmax.reduce(scores, initial=-np.inf)), thresholds)}


def match_of(score: float, thresholds: MatchThresholds) -> Matched:
    """Tell how well a document of this dense score matches."""
    if score >= thresholds.strong:
        return "strong"
    return "weak" if score >= thresholds.weak else "none"
