"""Snippets: the part of a document's text that matches the query best, with the query's words marked.

A word is marked if it has the tokens of a word of the query: those it has there, or would have at the beginning or in
the middle of a text, which may be others. So capitals and accents make a difference where they do for the tokenizer. A
word that the tokenizer does not know is marked if it is spelt as in the query. A hyphen makes no difference: wi-fi is
marked for wifi, and wifi for wi-fi. English stop words are marked only if the query has no other words. Thai, Lao,
Khmer and Burmese have no spaces between words: four signs in a row are marked that the query has in a row, or all of a
shorter query.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.errors import DeadlineError
from lightretriever.service.schemas import SearchRequest, Snippet
from lightretriever.service.search.hits import Plain
from lightretriever.service.search.word_pattern import HYPHENED, SIGN, STOP_WORDS, UNSPACED, WORD

__all__ = ["LONGEST_READ", "Snippets", "add_snippets"]

LONGEST_READ: Final = 20_000
"""Most characters of a field that are searched for words."""

_SPACE: Final = re.compile(r"\s")
_IN_A_ROW: Final = 4  # signs of a script without spaces
_LONGEST_CUT: Final = 30  # most characters to cut at an end so that a snippet ends between words


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a text: its characters from `start` to `end`, in lower case, and its tokens; `known` tells whether the
    tokenizer knows all of it."""

    start: int
    end: int
    text: str
    tokens: tuple[int, ...]
    known: bool

    @property
    def key(self) -> tuple[int, ...] | str:
        """What equal words share."""
        return self.tokens if self.known else self.text


@dataclass(frozen=True, slots=True)
class _Match:
    """The position of a query word, or of a part of one, in a text, its spelling in the query and its weight."""

    start: int
    end: int
    word: str
    weight: float


class Snippets:
    """Makes the snippets of one query. `texts` are its texts, without those of a weight below 0."""

    def __init__(self, tokenizer: TextTokenizer, query: EncodedQuery, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        own = {t: w for t, w in zip(query.terms.tolist(), query.weights.tolist(), strict=True) if w > 0}
        usual = sum(own.values()) / len(own) if own else 1.0  # a query for BM25 has no tokens with weights
        all_words = [word for text in texts for word in _words(tokenizer, text)]
        words = [word for word in all_words if word.text not in STOP_WORDS] or all_words
        joined = [word for text in texts for _, _, word in _hyphened(text)]
        self._weights = {
            text: sum(own.get(token, usual) for token in tokenizer.query_ids(text)) or usual
            for text in dict.fromkeys([*(word.text for word in words), *joined])
        }
        variants = {f"{space}{text}": text for text in self._weights for space in ("", " ")}
        self._known = {word.key: word.text for word in words} | {text: text for text in joined}
        encoded = ((tuple(tokenizer.encode(variant).tolist()), text) for variant, text in variants.items())
        self._known |= {ids: text for ids, text in encoded if tokenizer.unknown_id not in ids}
        self._known.pop((), None)
        plain = tokenizer.lowercase and all(map(str.isascii, texts))
        self._plain = {word.text for word in words if word.tokens}.union(joined) if plain else set()
        rows = {text: [row for signs in _runs(text) for row in _rows(signs)] for text in self._weights}
        self._rows = {row: self._weights[text] / len(found) for text, found in rows.items() for row in found}

    def one(self, text: str, length: int) -> Snippet:
        """Give a text's best part of up to `length` characters; its beginning if no word matches."""
        read = text[:LONGEST_READ]
        matches = self._matches(read)
        start, end = _window(text, self._best(matches, length), length)
        inside = [(match.start - start, match.end - start) for match in matches if start <= match.start < end]
        return Snippet(text=text[start:end], start=start, marks=_joined(inside, end - start))

    def _matches(self, text: str) -> list[_Match]:
        """Give the matches in a text, by their places; none overlap."""
        hyphened: list[_Match] = []
        for start, end, word in _hyphened(text):
            if word in self._weights and not (hyphened and start < hyphened[-1].end):
                hyphened.append(_Match(start, end, word, self._weights[word]))
        if not hyphened:
            return list(self._words_found(text))
        inside = {place for match in hyphened for place in range(match.start, match.end)}
        outside = (match for match in self._words_found(text) if match.start not in inside)
        return sorted([*hyphened, *outside], key=lambda match: match.start)

    def _words_found(self, text: str) -> Iterator[_Match]:
        if self._plain and text.isascii():
            # ASCII words have the same tokens only if they are equal, so this needs no tokenizer.
            for plain in WORD.finditer(text):
                if (known := plain.group().lower()) in self._plain:
                    yield _Match(plain.start(), plain.end(), known, self._weights[known])
            return
        for word in _words(self._tokenizer, text):
            if (query_word := self._known.get(word.key)) is not None:
                yield _Match(word.start, word.end, query_word, self._weights[query_word])
            elif self._rows:
                yield from self._rows_found(text, word)

    def _rows_found(self, text: str, word: _Word) -> Iterator[_Match]:
        """Give the longest parts of a word of a script without spaces whose rows of signs are all in the query."""
        for signs in _runs(text, word.start, word.end):
            start = end = 0
            weight = 0.0
            for place in range(len(signs)):
                row = next((row for row in _rows_at(signs, place) if row in self._rows), None)
                if row is None:
                    continue
                if weight and signs[place].start() > end:
                    yield _Match(start, end, text[start:end], weight)
                    weight = 0.0
                start = start if weight else signs[place].start()
                end = max(end, signs[place + len(row) - 1].end())
                weight += self._rows[row]
            if weight:
                yield _Match(start, end, text[start:end], weight)

    def _best(self, matches: Sequence[_Match], length: int) -> tuple[int, int]:
        """Give start and end of the best part of up to `length` characters: the one whose distinct words have the
        largest total weight, ties by length, then position. (0, 0) without a match."""
        best, key = (0, 0), (0.0, 0)
        inside: Counter[str] = Counter()
        weight, last = 0.0, 0
        for place, first in enumerate(matches):
            last = max(last, place)
            while last < len(matches) and matches[last].end - first.start <= length:
                match = matches[last]
                weight += 0.0 if inside[match.word] else match.weight
                inside[match.word] += 1
                last += 1
            if last == place:  # a word that is longer than a snippet
                continue
            end = matches[last - 1].end
            if (round(weight, 6), first.start - end) > key:
                best, key = (first.start, end), (round(weight, 6), first.start - end)
            inside[first.word] -= 1
            weight -= 0.0 if inside[first.word] else first.weight
        return best


def add_snippets(
    hits: Sequence[Plain],
    tokenizer: TextTokenizer,
    query: EncodedQuery,
    request: SearchRequest,
    arrived: float,
    deadline_ms: float,
) -> list[Plain]:
    """Add the snippets that a request asks for to the hits, and drop the fields that it does not ask for.

    DeadlineError if this takes until `deadline_ms` milliseconds after the `perf_counter` time `arrived`.
    """
    if request.snippets is None:
        return list(hits)
    texts = [request.query, *(term.text for term in request.terms if term.weight > 0)]
    snippets = Snippets(tokenizer, query, texts)
    found = []
    for hit in hits:
        fields: dict[str, Any] = hit["fields"]
        made: dict[str, Snippet] = {}
        for name in request.snippets.fields:
            if perf_counter() >= arrived + deadline_ms / 1e3:
                late = f"The snippets were not made within {deadline_ms:g} ms."
                raise DeadlineError(f"{late} Ask for fewer hits or fields.")
            if isinstance(text := fields.get(name), str):
                made[name] = snippets.one(text, request.snippets.length)
        if request.fields is not None:
            fields = {name: fields[name] for name in request.fields if name in fields}
        found.append(hit | {"fields": fields, "snippets": made})
    return found


def _words(tokenizer: TextTokenizer, text: str) -> Iterator[_Word]:
    """Give the words of a text, each with the tokens that overlap it."""
    spans = tokenizer.spans(text)
    first = 0
    for word in WORD.finditer(text):
        while first < len(spans) and spans[first][2] <= word.start():
            first += 1
        last = first
        while last < len(spans) and spans[last][1] < word.end():
            last += 1
        tokens = tuple(token for token, _, _ in spans[first:last])
        known = tokenizer.unknown_id not in tokens
        yield _Word(word.start(), word.end(), word.group().lower(), tokens, known)


def _hyphened(text: str) -> Iterator[tuple[int, int, str]]:
    """Give start and end of two parts with a hyphen between them, and both as one word in lower case."""
    for found in HYPHENED.finditer(text):
        yield found.start(), found.end(2), (found[1] + found[2]).lower()


def _runs(text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[list[re.Match[str]]]:
    """Give the signs of each run of a script without spaces."""
    for run in UNSPACED.finditer(text, start, end):
        yield list(SIGN.finditer(text, *run.span()))


def _rows_at(signs: Sequence[re.Match[str]], place: int) -> Iterator[tuple[str, ...]]:
    """Give the rows of signs that begin at a place, the longest first."""
    row = tuple(sign.group() for sign in signs[place : place + _IN_A_ROW])
    for length in range(len(row), 0, -1):
        yield row[:length]


def _rows(signs: Sequence[re.Match[str]]) -> Iterator[tuple[str, ...]]:
    """Give all rows of so many signs, or the one row of fewer."""
    for place in range(max(1, len(signs) - _IN_A_ROW + 1)):
        yield next(_rows_at(signs, place))


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
    """Join adjacent marks, and clip them at the end."""
    joined: list[tuple[int, int]] = []
    for start, stop in marks:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, min(stop, end)))
    return joined
