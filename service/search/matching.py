"""How well documents match a query: by the bundle's thresholds of the dense score, and by the query's words that they
have.

A document of a strong dense score is a strong match only if it has enough of the query's words, too:

    dense(d) * share(d) >= 0.7 * strong,   share(d) = sum_t impact(t, d) * most(t) / sum_t most(t)^2

over the terms t of the query. most(t) is the largest impact of t among the candidates, times the term's weight in the
query; for a term that none of them has, it is that of the rarest other one. Impacts of words that expansion added are
small, so these count less than the document's own.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.manifest import MatchThresholds
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.schemas import Matched, Plain
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.fusion import CandidateTable
from lightretriever.service.search.words import STOP_WORDS, WORD

__all__ = ["LEVELS", "Levels", "best_match", "matches"]

LEVELS: Final[tuple[Matched, ...]] = ("none", "weak", "strong")
"""From the worst to the best."""

Levels = npt.NDArray[np.int8]
"""The level of each candidate (u,), as its place in `LEVELS`; -1 for one without a dense score."""

_TINY: Final = float(np.finfo(np.float64).tiny)
_STRONG: Final = 0.7  # chosen by the ten visible queries of the demo and by seven collections (docs/lab/results.md)


def matches(
    thresholds: MatchThresholds | None,
    text: str,
    table: CandidateTable,
    encoder: QueryEncoder,
    shares: npt.NDArray[np.float32] | None,
    largest: npt.NDArray[np.float32] | None,
) -> Levels | None:
    """Return the level of each candidate of a query, encoded from the tokens of `text` alone. None without thresholds
    or dense scores.

    Words count where the terms are words and the sparse leg was searched. If no candidate has one of the query, none is
    strong, those of a strong dense score are weak, and if the tokenizer of the tables knows no word of it either, all
    are none: letters typed at random have pieces that are near to something, too. Without `shares` (u, t) and the
    `largest` of each term (t,), none is strong.
    """
    if thresholds is None or "dense" not in table.legs:
        return None
    dense = table.of("dense")
    levels = (dense >= thresholds.weak).astype(np.int8)
    strong = np.flatnonzero(dense >= thresholds.strong)
    if encoder.vocabulary.language is None or "sparse" not in table.legs:
        levels[strong] = 2
    elif not np.any(table.of("sparse") > 0):
        levels[:] = 0
        levels[strong] = int(_knows_a_word(text, encoder.tokenizer))
    elif strong.size and shares is not None and largest is not None:
        had = _share_of_words(shares[strong], largest.astype(np.float64))
        levels[strong[dense[strong] * had >= _STRONG * thresholds.strong]] = 2
    levels[np.isnan(dense)] = -1
    return levels


def _share_of_words(shares: npt.NDArray[np.float32], most: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the share (m,) of the query's words that some candidates (m,) have, from the terms' shares (m, t) of
    theirs and the largest of all candidates (t,)."""
    most[most <= 0] = most.max()
    squares = max(float(most @ most), _TINY)
    had: npt.NDArray[np.float64] = np.einsum("mt,t->m", shares, most) / squares
    return had


def _knows_a_word(text: str, tokenizer: TextTokenizer) -> bool:
    """True if a word of a text, stop words apart, is one token."""
    words = [word for word in WORD.findall(text) if word.lower() not in STOP_WORDS]
    return bool(words) and 1 in tokenizer.query_ids_of(words)[1]


def best_match(levels: Levels | None, unjudged: str | None) -> Plain:
    """Return `matched` of the answer: the level of the best candidate, `none` if there is none. Without levels, return
    `unjudged`, which says why."""
    return {"unjudged": unjudged} if levels is None else {"matched": LEVELS[levels.max(initial=0)]}
