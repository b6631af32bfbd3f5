"""The vocabulary of the sparse leg: what a term is, for documents and queries alike.

    tokens   a term is a token id of a tokenizer, in decimal, as a query is read (`TextTokenizer.query_ids`)
    words    a term is a word, as Lucene's analyzer of a language makes it: in lower case, stemmed, no stop word

Words of every language include what the analyzer's own rules leave out: of scripts without spaces, every two
neighbouring signs; of names such as c++, c# and .net, the name with its signs in letters (cplusplus, csharp, dotnet);
of two parts with a hyphen between them, both in one word (wifi). Spellings that look equal are one: Unicode's form
NFKC, without signs that nobody sees, with ' for other apostrophes.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, NamedTuple

from lightretriever.artifacts.sparse.jvm import (
    JavaObject,
    java_call,
    java_class,
    pack_text,
    pack_texts,
    unpack_ints,
    unpack_parts,
    unpack_texts,
)
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

VocabularyKind = Literal["tokens", "words"]

Language = Literal[
    "english",
    "standard",
    "arabic",
    "armenian",
    "basque",
    "bengali",
    "bulgarian",
    "catalan",
    "czech",
    "danish",
    "dutch",
    "estonian",
    "finnish",
    "french",
    "galician",
    "german",
    "greek",
    "hindi",
    "hungarian",
    "indonesian",
    "irish",
    "italian",
    "latvian",
    "lithuanian",
    "norwegian",
    "persian",
    "portuguese",
    "romanian",
    "russian",
    "serbian",
    "spanish",
    "swedish",
    "tamil",
    "telugu",
    "turkish",
]
"""Whose analyzer makes the words; `standard` belongs to no language, and has neither stems nor stop words."""

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,8}")
_MAX_BYTES: Final = 1_024  # of a word; Lucene cuts words of 255 characters


class Place(NamedTuple):
    """An occurrence of a term in a text: the characters from `start` up to the one before `end`."""

    term: str
    start: int
    end: int


@dataclass(frozen=True)
class Vocabulary:
    """The terms are the tokens of `tokenizer` (None: words), or the words of `language` (None: tokens)."""

    tokenizer: TextTokenizer | None
    language: Language | None

    def __post_init__(self) -> None:
        if (self.tokenizer is None) == (self.language is None):
            raise ValueError("a vocabulary has either tokens or words")

    @property
    def kind(self) -> VocabularyKind:
        """What a term is."""
        return "tokens" if self.language is None else "words"

    def terms_of(self, texts: Sequence[str]) -> list[list[str]]:
        """The terms of each text, as often as it has them. ValueError for a text that is no Unicode."""
        if self.language is not None:
            return words_of(texts, self.language)
        return [[f"{token}" for token in ids.tolist()] for ids in self._tokens.as_queries(texts)]

    def places_of(self, texts: Sequence[str], words: Container[str] | None = None) -> list[list[Place]]:
        """The terms of each text and their places in it, by place; of its words only those among `words`, if they are
        given. ValueError for a text that is no Unicode.

        The place of a word in which the analyzer joins parts, such as cplusplus or wifi, may be empty; it is then where
        the first part ends.
        """
        all_places = list[list[Place]]()
        if self.language is None:
            for text in texts:
                all_places.append([Place(f"{token}", *span) for token, *span in self._tokens.query_places(text)])
        else:
            packed = java_call(_java().places, word_analyzer(self.language), pack_texts("text", texts))
            parts = unpack_parts(packed)
            for read, ends in zip(parts[::2], parts[1::2], strict=True):
                spans = unpack_ints(ends).reshape(-1, 2)
                places = [
                    Place(word, *spans[row].tolist())
                    for row, word in enumerate(read.decode().split())
                    if words is None or word in words
                ]
                all_places.append(places)
        return [sorted(places, key=lambda place: place[1:]) for places in all_places]

    @property
    def _tokens(self) -> TextTokenizer:
        if self.tokenizer is None:
            raise ValueError("a vocabulary of words has no tokens")
        return self.tokenizer

    def token_of(self, term: str) -> int | None:
        """The token id of a term; None for a word."""
        return int(term) if self.language is None else None

    def spelt(self, term: str) -> str:
        """A term as people read it: a word, or the token of an id."""
        return term if self.tokenizer is None else self.tokenizer.token(int(term))


def term_problem(term: str, kind: VocabularyKind, tokens: int) -> str | None:
    """Why a text is no term of a vocabulary with so many token ids; None if it may be one."""
    if kind == "tokens":
        is_token = _NUMBER.fullmatch(term) and int(term) < tokens
        return None if is_token else f"{term!r:.100} is no token id; they are 0 to {tokens - 1}"
    if not term or len(term.encode()) > _MAX_BYTES or any(sign.isspace() for sign in term):
        return f"{term!r:.100} is no word: it is empty, has a space, or has more than {_MAX_BYTES:,} bytes"
    return None


def words_of(texts: Sequence[str], language: Language = "english") -> list[list[str]]:
    """The words of each text in their order, each as often as it comes. ValueError for a text that is no Unicode."""
    words = java_call(_java().words, word_analyzer(language), pack_texts("text", texts))
    return [text.split(" ") if text else [] for text in unpack_texts(words)]


@cache
def _java() -> JavaObject:
    return java_class("lightretriever.WordAnalyzer")


@cache
def word_analyzer(language: Language = "english") -> JavaObject:
    """Lucene's analyzer that makes the words of a language; any number of threads may use it."""
    return java_call(_java().create, pack_text("language", language))
