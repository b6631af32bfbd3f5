"""How well documents match a query: by the bundle's thresholds of the dense score, and by the query's words that they
have.

A document of a strong dense score is a strong match only if it has enough of the query's words, too:

    dense(d) * share(d) >= 0.7 * strong,   share(d) = sum_t impact(t, d) * most(t) / sum_t most(t)^2

over the terms t of the query. most(t) is the largest impact of t among the candidates, times the term's weight in the
query; for a term that none of them has, it is that of the rarest other one. Impacts of words that expansion added are
small, so these count less than the document's own.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.parts import MatchThresholds
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.schemas import LegName, Matched, Plain
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.fusion import CandidateTable
from lightretriever.service.search.words import STOP_WORDS, WORD

__all__ = ["LEVELS", "Shares", "best_match", "matches", "reaching"]

LEVELS: Final[tuple[Matched, ...]] = ("none", "weak", "strong")
"""From the worst to the best."""

Shares = Callable[[], npt.NDArray[np.float32] | None]
"""Gives each term's share of the sparse score of the candidates (u,): (u, t) float32; None if it can't."""

_STRONG: Final = 0.7  # chosen by the ten visible queries of the demo and by recipes/matched.py


def matches(
    thresholds: MatchThresholds | None,
    text: str,
    query: EncodedQuery,
    table: CandidateTable,
    legs: Sequence[LegName],
    encoder: QueryEncoder,
    shares: Shares,
) -> list[Matched | None] | None:
    """Give the level of each candidate of a query, encoded from `text`; None for one without a dense score. None for
    all without thresholds or dense scores, and for head queries, whose vector is another model's.

    Words count where the terms are words and the sparse leg was searched. If no candidate has one of the query, none is
    strong, those of a strong dense score are weak, and if the tokenizer of the tables knows no word of it either, all
    are none: letters typed at random have pieces that are near to something, too. Without `shares`, none is strong.
    """
    if thresholds is None or query.head or "dense" not in legs:
        return None
    dense: npt.NDArray[np.float64] = table.scores[legs.index("dense")]
    levels = np.where(dense >= thresholds.weak, 1, 0)
    strong = np.flatnonzero(dense >= thresholds.strong)
    if encoder.vocabulary.language is None or "sparse" not in legs:
        levels[strong] = 2
    else:
        sparse = np.nan_to_num(table.scores[legs.index("sparse")])
        if sparse.max(initial=0.0) <= 0:
            levels[:] = 0
            levels[strong] = int(_knows_a_word(text, encoder.tokenizer))
        elif strong.size:
            found = shares()
            if found is not None:
                had = _share_of_words(found)[strong]
                levels[strong[dense[strong] * had >= _STRONG * thresholds.strong]] = 2
    unknown = np.isnan(dense).tolist()
    return [None if missing else LEVELS[level] for missing, level in zip(unknown, levels.tolist(), strict=True)]


def _share_of_words(shares: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Give the share (u,) of the query's words that the candidates have, from their terms' shares (u, t)."""
    most = shares.max(axis=0).astype(np.float64)
    most[most <= 0] = most.max()
    had: npt.NDArray[np.float64] = np.einsum("mt,t->m", shares, most) / max(
        float(most @ most), np.finfo(np.float64).tiny
    )
    return had


def _knows_a_word(text: str, tokenizer: TextTokenizer) -> bool:
    """Whether a word of a text, stop words apart, is one token."""
    words = [word for word in WORD.findall(text) if word.lower() not in STOP_WORDS]
    return bool(words) and 1 in tokenizer.query_ids_of(words)[1]


def reaching(least: Matched, levels: Sequence[Matched | None]) -> npt.NDArray[np.bool_]:
    """Tell which candidates (u,) match at least so well; one without a level does not."""
    good = LEVELS[LEVELS.index(least) :]
    return np.array([level in good for level in levels], bool)


def best_match(levels: Sequence[Matched | None] | None) -> Plain:
    """Give `matched` of the answer: the level of the best candidate, `none` if there is none. Nothing without
    levels."""
    if levels is None:
        return {}
    return {"matched": max((level for level in levels if level is not None), key=LEVELS.index, default="none")}
