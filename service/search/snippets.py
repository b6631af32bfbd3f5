"""Snippets: the part of a document's text that matches the query best, with the query's words marked.

A word is marked if one of its terms, as the bundle's vocabulary makes them, is a term of the query; where the terms are
tokens, if all of its tokens are. So a stem marks all its forms, and a stop word is never marked. A hyphen makes no
difference: wi-fi is marked for wifi, and wifi for wi-fi. A word that several terms stand for, such as c++, is marked as
a whole; in Chinese, Japanese, Thai, Lao, Khmer and Burmese, which have no spaces between words, the signs of each term
are. Words that neither title nor text has, and whose terms a token table added to the document, are nowhere to be
marked.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from lightretriever.artifacts.sparse.vocabulary import Place, Vocabulary
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.schemas import Plain, Snippet
from lightretriever.service.search.words import HYPHENED, SIGN, UNSPACED, WORD

LONGEST_READ: Final = 20_000
"""Most characters of a field that are searched for words."""

_SPACE: Final = re.compile(r"\s")
_AT_ONCE: Final = 10  # documents, for one call into Java
_LONGEST_CUT: Final = 30  # most characters to cut at an end so that a snippet ends between words


class _Match(NamedTuple):
    """The position of a word of the query, or of some of its signs, in a text, and the query's terms in it."""

    start: int
    end: int
    terms: frozenset[str]


class Snippets:
    """Makes the snippets of one query."""

    def __init__(self, vocabulary: Vocabulary, query: EncodedQuery) -> None:
        self._vocabulary = vocabulary
        self._weights = dict(zip(query.terms, query.weights.tolist(), strict=True))

    def of(self, texts: Sequence[str], length: int) -> list[Snippet]:
        """Return each text's best part of up to `length` characters; its beginning if no word matches."""
        spans = self._vocabulary.places_of([text[:LONGEST_READ] for text in texts], self._weights)
        return [self._snippet(text, of_text, length) for text, of_text in zip(texts, spans, strict=True)]

    def _snippet(self, text: str, spans: Sequence[Place], length: int) -> Snippet:
        matches = self._matches(text[:LONGEST_READ], spans)
        start, end = _window(text, self._best(matches, length), length)
        inside = [(match.start - start, match.end - start) for match in matches if start <= match.start < end]
        return Snippet(text=text[start:end], start=start, marks=_joined(inside, end - start))

    def _matches(self, text: str, spans: Sequence[Place]) -> list[_Match]:
        begins, matches = [span.start for span in spans], list[_Match]()
        around, words = range(0), list[tuple[int, int]]()
        for span in spans:
            if (term := span.term) not in self._weights:
                continue
            if not (span.start in around and span.end <= around.stop):
                around = _between_spaces(text, span)
                words = [word.span() for word in WORD.finditer(text, around.start, around.stop)]
            (start, end), terms = _whole(text, words, span), frozenset({term})
            if self._vocabulary.token_of(term) is not None:
                inside = spans[bisect_left(begins, start) : bisect_left(begins, end)]
                if not all(self._is_known(token.term) for token in inside):
                    continue
            if matches and start < matches[-1].end:
                last = matches.pop()
                start, end, terms = min(start, last.start), max(end, last.end), terms | last.terms
            matches.append(_Match(start, end, terms))
        return matches

    def _is_known(self, term: str) -> bool:
        """True if a token is one of the query; a word, whose tokens stand beside it, is none."""
        return term in self._weights or self._vocabulary.token_of(term) is None

    def _best(self, matches: Sequence[_Match], length: int) -> tuple[int, int]:
        """Return start and end of the best part of up to `length` characters: the one whose distinct terms have the
        largest total weight, ties by length, then position. (0, 0) without a match."""
        best, key = (0, 0), (0.0, 0)
        inside = dict.fromkeys(self._weights, 0)
        weight, last = 0.0, 0
        for index, first in enumerate(matches):
            last = max(last, index)
            while last < len(matches) and matches[last].end - first.start <= length:
                for term in matches[last].terms:
                    weight += 0.0 if inside[term] else self._weights[term]
                    inside[term] += 1
                last += 1
            if last == index:  # a word that is longer than a snippet
                continue
            end = matches[last - 1].end
            if (round(weight, 6), first.start - end) > key:
                best, key = (first.start, end), (round(weight, 6), first.start - end)
            for term in first.terms:
                inside[term] -= 1
                weight -= 0.0 if inside[term] else self._weights[term]
        return best


def snippets_of(
    documents: Sequence[Plain],
    vocabulary: Vocabulary,
    query: EncodedQuery,
    names: Sequence[str],
    length: int,
    require_time: Callable[[str], None],
) -> list[dict[str, Snippet]]:
    """Return the snippets of each document's fields of these names. `require_time` is called again and again, and may
    raise."""
    snippets, results = Snippets(vocabulary, query), list[dict[str, Snippet]]()
    for start in range(0, len(documents), _AT_ONCE):
        require_time("make the snippets")
        texts = [
            {name: text for name in names if isinstance(text := fields.get(name), str)}
            for fields in documents[start : start + _AT_ONCE]
        ]
        remaining = iter(snippets.of([text for of_document in texts for text in of_document.values()], length))
        results += [{name: next(remaining) for name in of_document} for of_document in texts]
    return results


def _between_spaces(text: str, span: Place) -> range:
    """The part of a text without a space in which a place is; no word goes beyond."""
    end = text.find(" ", span.end)
    return range(text.rfind(" ", 0, span.start) + 1, len(text) if end < 0 else end)


def _whole(text: str, words: Sequence[tuple[int, int]], span: Place) -> tuple[int, int]:
    """The whole word in which a place is, with the signs of a name such as c++; both parts of a hyphen for a place
    where they are joined; the place itself in a script without spaces."""
    _, start, end = span
    row = bisect_right(words, start, key=itemgetter(0)) - 1
    if row >= 0 and start == end and (joined := HYPHENED.search(text, words[row][0])) and joined.end() - 1 == start:
        return joined.start(), joined.end(2)
    if row < 0 or words[row][1] < end:
        return start, end
    if UNSPACED.fullmatch(text, *words[row]):  # whole signs, with their marks
        signs = [sign.span() for sign in SIGN.finditer(text, *words[row]) if sign.start() < end and sign.end() > start]
        return signs[0][0], signs[-1][1]
    return words[row]


def _window(text: str, core: tuple[int, int], length: int) -> tuple[int, int]:
    """Widen a part of a text to `length` characters, about equally on both sides, and end it between words unless they
    are too long."""
    spare = length - (core[1] - core[0])
    end = min(len(text), core[1] + max(spare // 2, spare - core[0]))
    start = max(0, end - length)
    cut = min(_LONGEST_CUT, length // 3)
    if end < len(text):
        end = max((space.start() for space in _SPACE.finditer(text, max(core[1], end - cut), end + 1)), default=end)
    if start > 0 and (space := _SPACE.search(text, start - 1, min(core[0], start + cut))):
        start = space.end()
    return start, end


def _joined(marks: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in marks:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, min(stop, end)))
    return joined
