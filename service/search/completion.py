"""Completions of a query's last word: words of the corpus that begin with it.

    score(w) = sqrt(documents(w)) * exp(8 * cos(rest, w))

documents(w) is the number of documents that have the word w; the cosine is that of the query vectors of w and of the
query's other words. Without other words or a dense leg, frequency alone decides. A beginning that is a word itself has
four times its score, because it may be typed to its end. Forms of a word that have the same
term, such as photo and photos, are one completion, spelt as the best of them, whose score is the sum of theirs. A
completion counts in the search by the square of its share of the best one's score, and not at all below a tenth.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.sparse.vocabulary import words_of
from lightretriever.service.backends.base import Spellings
from lightretriever.service.search.encoder import QueryEncoder

__all__ = ["MAX_COMPLETIONS", "Completion", "completions_of"]

MAX_COMPLETIONS: Final = 12
"""Most completions of a word."""

_CONSIDERED: Final = 100  # most frequent words that are compared with the rest of the query
_NEARNESS: Final = 8.0
_WHOLE: Final = 4.0  # factor of a beginning that is a word
_LEAST_SHARE: Final = 0.05  # of the best score; what has less is not suggested
_LEAST_WEIGHT: Final = 0.1


class Completion(NamedTuple):
    """A word that the last one may become. `weight` is how much it counts in the search, 1 for the best one and 0 for
    one that is suggested only."""

    word: str
    weight: float


def completions_of(beginning: str, rest: str, words: Spellings, encoder: QueryEncoder, task: str) -> list[Completion]:
    """Give the completions of a beginning in lower case behind the `rest` of a query, best first.

    A beginning that is itself a word of the corpus is among them. A stop word, and a beginning that no other word has,
    have none.
    """
    listed = words.completions(beginning, _CONSIDERED)
    if not listed or encoder.vocabulary.language is None:
        return []
    names = [word for word, _ in listed]
    documents = np.array([count for _, count in listed], np.float64)
    terms = dict(zip(names, words_of(names, encoder.vocabulary.language), strict=True))
    if terms.get(beginning) == []:
        return []
    factors = np.sqrt(documents) * _nearness(rest, names, encoder, task)
    scores = dict(zip(names, factors.tolist(), strict=True))
    if beginning in scores:
        scores[beginning] *= _WHOLE
    totals = dict[tuple[str, ...], float]()
    spelt = dict[tuple[str, ...], str]()
    for name in sorted(names, key=lambda name: -scores[name]):
        if key := tuple(terms[name]):
            totals[key] = totals.get(key, 0.0) + scores[name]
            spelt.setdefault(key, name)
    best = sorted(totals, key=lambda key: -totals[key])[:MAX_COMPLETIONS]
    shares = [(spelt[key], totals[key] / totals[best[0]]) for key in best]
    likely = [(word, share**2) for word, share in shares if share >= _LEAST_SHARE]
    kept = [Completion(word, weight if weight >= _LEAST_WEIGHT else 0.0) for word, weight in likely]
    return [] if [one.word for one in kept] == [beginning] else kept


def _nearness(rest: str, names: Sequence[str], encoder: QueryEncoder, task: str) -> npt.NDArray[np.float64]:
    """Give the factor of each word (n,) by its nearness to the rest of the query: 1 where it is not known."""
    if not rest.strip() or task not in encoder.tables:
        return np.ones(len(names))
    try:
        vectors = encoder.vectors([rest, *names], task)
    except TokenizerError:
        return np.ones(len(names))
    cosines = np.einsum("nd,d->n", vectors[1:], vectors[0])  # `@` would start BLAS's threads
    factors: npt.NDArray[np.float64] = np.exp(_NEARNESS * cosines.astype(np.float64))
    return factors
