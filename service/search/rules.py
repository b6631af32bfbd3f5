"""Rules of a search: synonyms, and documents that are pinned or hidden for a query. They are in a file, which is read
again when it changes.

    synonyms:
      - {words: [laptop, notebook]}                       # each brings the others
      - {words: [os], add: [operating system], weight: 0.5}
    pinned:
      - {query: play music, documents: [mpd, cmus]}       # this query, however its words are spaced and capitalised
    hidden:
      - {contains: [games, adult], documents: [xyz]}      # every query that has all of these words

A query's words are compared as they are spelt, in lower case. A rule with `collections` is for these alone.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lightretriever.artifacts.files.reading import MAX_YAML_BYTES, line_of, parse_yaml, read_bounded
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.schemas import Plain
from lightretriever.service.search.words import STOP_WORDS, WORD

__all__ = ["NO_RULES", "AppliedRules", "RulesFile"]

_MOST_ADDED: Final = 50  # words that synonyms add to a query
_MAX_SHARE: Final = 0.5  # of added words, each by its weight, beside those of the query
_REMEDY: Final = "Correct the file; a running service reads it again by itself."

_Words = tuple[str, ...]
_Text = Annotated[str, Field(min_length=1, max_length=200)]
_DocumentId = Annotated[str, Field(min_length=1, max_length=1000)]
R = TypeVar("R", bound="_Rule")


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    collections: Annotated[list[str] | None, Field(min_length=1)] = None


class _Synonyms(_Rule):
    words: Annotated[list[_Text], Field(min_length=1, max_length=50)]
    add: Annotated[list[_Text] | None, Field(min_length=1, max_length=50)] = None
    weight: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0

    _have_words = field_validator("words", "add")(lambda texts: [_with_word(text) for text in texts or ()] or None)

    @model_validator(mode="after")
    def _have_others(self) -> Self:
        if self.add is None and len(self.words) < 2:
            raise ValueError("one word alone has no synonym: name others, or give `add`")
        return self


class _Documents(_Rule):
    query: _Text | None = None
    contains: Annotated[list[_Text] | None, Field(min_length=1, max_length=20)] = None
    documents: Annotated[list[_DocumentId], Field(min_length=1, max_length=100)]

    _has_word = field_validator("query")(lambda text: text and _with_word(text))
    _have_words = field_validator("contains")(lambda texts: texts and [_with_word(text) for text in texts])

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.query is None) == (self.contains is None):
            raise ValueError("give query or contains, one of the two")
        return self


class _RulesModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    synonyms: list[_Synonyms] = []
    pinned: list[_Documents] = []
    hidden: list[_Documents] = []


@dataclass(frozen=True, slots=True)
class AppliedRules:
    """What the rules make of a query: words that count beside it, each with its weight, and the ids of documents that
    are put first, in their order, and that are left out."""

    synonyms: Sequence[tuple[str, float]] = ()
    pinned: Sequence[str] = ()
    hidden: Sequence[str] = ()

    def facts(self, pinned: Sequence[str]) -> Plain:
        """Return `rules` of the answer, in which the documents `pinned` were put first; nothing if no rule is for the
        query."""
        if not (self.synonyms or self.pinned or self.hidden):
            return {}
        synonyms = [{"text": text, "weight": weight} for text, weight in self.synonyms]
        return {"rules": {"synonyms": synonyms, "pinned": list(pinned), "hidden": len(self.hidden)}}


NO_RULES: Final = AppliedRules()


class _Query:
    """The words of a query, to look phrases up in: each time alike, however long and repetitive the query is."""

    def __init__(self, text: str) -> None:
        self.words = _words(text)
        self.different = dict.fromkeys(self.words)
        self._runs: dict[int, frozenset[_Words]] = {}

    def has(self, phrase: _Words) -> bool:
        """True if the words of a phrase stand side by side."""
        length = len(phrase)
        if length not in self._runs:
            starts = range(len(self.words) - length + 1)
            self._runs[length] = frozenset(self.words[start : start + length] for start in starts)
        return phrase in self._runs[length]


class _Rules:
    """The rules of a collection, found by the words of a query."""

    def __init__(self, model: _RulesModel, collection: str) -> None:
        self._phrases: dict[str, list[tuple[_Words, float, list[tuple[str, _Words]]]]] = {}
        for rule in _of(model.synonyms, collection):
            texts = [(text, _words(text)) for text in (rule.words if rule.add is None else rule.add)]
            for phrase in map(_words, rule.words):
                self._phrases.setdefault(phrase[0], []).append((phrase, rule.weight, texts))
        self._pinned = _by_word(_of(model.pinned, collection))
        self._hidden = _by_word(_of(model.hidden, collection))

    def apply(self, text: str) -> AppliedRules:
        """Return what the rules make of a query."""
        query = _Query(text)
        return AppliedRules(self._synonyms(query), _matching(self._pinned, query), _matching(self._hidden, query))

    def _synonyms(self, query: _Query) -> list[tuple[str, float]]:
        """Return the texts to add, each with its weight: lower than in the rule where the words that a phrase brings
        would weigh more than half as much as its own, or all together more than half as much as the query's. Stop words
        don't count."""
        added: dict[str, float] = {}
        for word in query.different:
            for phrase, weight, texts in self._phrases.get(word, ()):
                if not query.has(phrase):
                    continue
                new = [(text, weight) for text, words in texts if not query.has(words)]
                for text, lowered in _bounded(new, phrase):
                    added[text] = max(lowered, added.get(text, 0.0))
        return _bounded(list(added.items())[:_MOST_ADDED], query.words)


def _bounded(added: list[tuple[str, float]], words: _Words) -> list[tuple[str, float]]:
    """Lower the weights of texts whose words weigh more than half as much together as `words` without stop words."""
    most = _MAX_SHARE * max(1, sum(word not in STOP_WORDS for word in words))
    total = sum(weight * len(_words(text)) for text, weight in added)
    return added if total <= most else [(text, weight * most / total) for text, weight in added]


class RulesFile(WatchedFile[_Rules]):
    """The rules in a file, for one collection."""

    def __init__(self, path: Path, collection: str = "default") -> None:
        """SettingsError if the file can't be used."""
        parse = partial(_parse, path, collection)
        super().__init__("rules", partial(_read, path), parse, collection=collection)

    def apply(self, text: str) -> AppliedRules:
        """Return what the rules make of a query."""
        return self.value.apply(text)


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_YAML_BYTES)
    except OSError as error:
        raise SettingsError(f"{path}: the rules can't be read: {error.strerror}.", remedy=_REMEDY) from error


def _parse(path: Path, collection: str, content: bytes) -> _Rules:
    """Parse rules, YAML or JSON. SettingsError names line, key, value and remedy."""
    try:
        values = parse_yaml(content)
    except ValueError as error:
        raise SettingsError(f"{path}: not YAML: {error}.", remedy=_REMEDY) from error
    try:
        return _Rules(_RulesModel.model_validate({} if values is None else values), collection)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        line, message = line_of(content, first["loc"]), first["msg"].removeprefix("Value error, ")
        message = "there is no such key" if first["type"] == "extra_forbidden" else message
        value = "" if first["type"] in ("missing", "extra_forbidden") else f" can't be {first['input']!r:.80}"
        raise SettingsError(f"{path}, line {line}: {key}{value}: {message}.", remedy=_REMEDY) from error


def _of(rules: Sequence[R], collection: str) -> Iterator[R]:
    return (rule for rule in rules if rule.collections is None or collection in rule.collections)


def _by_word(rules: Iterator[_Documents]) -> dict[str, list[tuple[_Words, _Documents]]]:
    """Return the rules, each behind its words, by the first of these."""
    found: dict[str, list[tuple[_Words, _Documents]]] = {}
    for rule in rules:
        words = _words(rule.query if rule.query is not None else " ".join(rule.contains or ()))
        found.setdefault(words[0], []).append((words, rule))
    return found


def _matching(rules: Mapping[str, Sequence[tuple[_Words, _Documents]]], query: _Query) -> list[str]:
    """Return the documents of all rules for a query, without repetitions."""
    found: dict[str, None] = {}
    for word in query.different:
        for of_rule, rule in rules.get(word, ()):
            if of_rule == query.words if rule.query is not None else query.different.keys() >= {*of_rule}:
                found |= dict.fromkeys(rule.documents)
    return list(found)


def _words(text: str) -> _Words:
    return tuple(word.casefold() for word in WORD.findall(unicodedata.normalize("NFKC", text)))


def _with_word(text: str) -> str:
    if not _words(text):
        raise ValueError(f"there is no word in {text!r:.80}")
    return text
