"""Snippets: the part of a document's text that matches the query best, with the query's words marked.

A word is marked if it has the tokens of a word of the query: those it has there, or would have at the beginning or in
the middle of a text, which may be others. So capitals and accents make a difference where they do for the tokenizer. A
word that the tokenizer does not know is marked if it is spelt as in the query.
"""

import re
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
from lightretriever.service.search.word_pattern import WORD

__all__ = ["LONGEST_READ", "Snippets", "add_snippets"]

LONGEST_READ: Final = 20_000
"""Most characters of a field that are searched for words."""

_SPACE: Final = re.compile(r"\s")
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
    """The position of a query word in a text, and that word."""

    start: int
    end: int
    word: str


class Snippets:
    """Makes the snippets of one query. `texts` are its texts, without those of a weight below 0."""

    def __init__(self, tokenizer: TextTokenizer, query: EncodedQuery, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        own = {t: w for t, w in zip(query.terms.tolist(), query.weights.tolist(), strict=True) if w > 0}
        usual = sum(own.values()) / len(own) if own else 1.0  # a query for BM25 has no tokens with weights
        words = [word for text in texts for word in _words(tokenizer, text)]
        self._weights = {
            text: sum(own.get(token, usual) for token in tokenizer.query_ids(text)) or usual
            for text in dict.fromkeys(word.text for word in words)
        }
        variants = {f"{space}{text}": text for text in self._weights for space in ("", " ")}
        self._known = {word.key: word.text for word in words}
        encoded = ((tuple(tokenizer.encode(variant).tolist()), text) for variant, text in variants.items())
        self._known |= {ids: text for ids, text in encoded if tokenizer.unknown_id not in ids}
        self._known.pop((), None)
        plain = tokenizer.lowercase and all(map(str.isascii, texts))
        self._plain = {word.text for word in words if word.tokens} if plain else set()

    def one(self, text: str, length: int) -> Snippet:
        """Give a text's best part of up to `length` characters; its beginning if no word matches."""
        read = text[:LONGEST_READ]
        matches = self._matches(read)
        start, end = _window(text, self._best(matches, length), length)
        inside = [(match.start - start, match.end - start) for match in matches if start <= match.start < end]
        return Snippet(text=text[start:end], start=start, marks=_joined(inside, end - start))

    def _matches(self, text: str) -> list[_Match]:
        if not (self._plain and text.isascii()):
            found = ((word, self._known.get(word.key)) for word in _words(self._tokenizer, text))
            return [_Match(word.start, word.end, known) for word, known in found if known is not None]
        # ASCII words have the same tokens only if they are equal, so this needs no tokenizer.
        plain = ((word, word.group().lower()) for word in WORD.finditer(text))
        return [_Match(word.start(), word.end(), known) for word, known in plain if known in self._plain]

    def _best(self, matches: Sequence[_Match], length: int) -> tuple[int, int]:
        """Give start and end of the best part of up to `length` characters: the one whose distinct words have the
        largest total weight, ties by length, then position. (0, 0) without a match."""
        best, key = (0, 0), (0.0, 0)
        inside: Counter[str] = Counter()
        weight, last = 0.0, 0
        for place, first in enumerate(matches):
            last = max(last, place)
            while last < len(matches) and matches[last].end - first.start <= length:
                word = matches[last].word
                weight += 0.0 if inside[word] else self._weights[word]
                inside[word] += 1
                last += 1
            if last == place:  # a word that is longer than a snippet
                continue
            end = matches[last - 1].end
            if (round(weight, 6), first.start - end) > key:
                best, key = (first.start, end), (round(weight, 6), first.start - end)
            inside[first.word] -= 1
            weight -= 0.0 if inside[first.word] else self._weights[first.word]
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
