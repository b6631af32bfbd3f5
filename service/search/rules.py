"""Rules of a search: synonyms, and documents that are pinned or hidden for a query, in a file (docs/howto/rules.md).

A query's words are compared as they are spelt, in lower case. A rule with `collections` is for these alone.
"""

import unicodedata
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from lightretriever.artifacts.files.reading import line_of, parse_yaml
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.watching import REMEDY, WatchedFile
from lightretriever.service.search.filters import all_of
from lightretriever.service.search.request import Plan
from lightretriever.service.search.words import STOP_WORDS, WORD

_MAX_ADDED: Final = 50  # words that synonyms add to a query
_MAX_SHARE: Final = 0.5  # of added words, each by its weight, beside those of the query


def _words(text: str) -> str:
    return f" {' '.join(WORD.findall(unicodedata.normalize('NFKC', text))).casefold()} "


_Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200, pattern=r"\w")]


class _Rule(BaseModel, extra="forbid", strict=True):
    collections: Annotated[list[str] | None, Field(min_length=1)] = None

    def is_of(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections


class _Synonyms(_Rule):
    words: Annotated[list[_Text], Field(min_length=1, max_length=50)]
    add: Annotated[list[_Text] | None, Field(min_length=1, max_length=50)] = None
    weight: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _have_others(self) -> Self:
        if self.add is None and len(self.words) < 2:
            raise ValueError("one word alone has no synonym: name others, or give `add`")
        return self


class _Documents(_Rule):
    query: _Text | None = None
    contains: Annotated[list[_Text] | None, Field(min_length=1, max_length=20)] = None
    documents: Annotated[list[str], Field(min_length=1, max_length=100)]

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.query is None) == (self.contains is None):
            raise ValueError("give query or contains, one of the two")
        return self


class _RulesModel(BaseModel, extra="forbid", strict=True):
    synonyms: list[_Synonyms] = []
    pinned: list[_Documents] = []
    hidden: list[_Documents] = []


class Rules:
    """The rules of a collection."""

    def __init__(self, model: _RulesModel, collection: str) -> None:
        self._synonyms = [
            (_words(phrase), rule.weight, [(text, _words(text)) for text in rule.add or rule.words])
            for rule in model.synonyms
            for phrase in rule.words
            if rule.is_of(collection)
        ]
        self._pinned, self._hidden = (
            [
                (_words(rule.query or ""), {*_words(" ".join(rule.contains or ())).split()}, rule.documents)
                for rule in rules
                if rule.is_of(collection)
            ]
            for rules in (model.pinned, model.hidden)
        )

    def of(self, text: str) -> tuple[list[tuple[str, float]], list[str], list[str]]:
        """Return what the rules are for a query: texts that count beside it, each with its weight, and the ids of
        documents that come first and of those that are left out.

        The weights are lower than in the rules where the words that a phrase brings would weigh more than half as much
        as its own, or all together more than half as much as the query's. Stop words don't count.
        """
        query, added = _words(text), dict[str, float]()
        different = {*query.split()}
        for phrase, weight, texts in self._synonyms:
            if phrase in query:
                for name, lowered in _bounded([(name, weight) for name, words in texts if words not in query], phrase):
                    added[name] = max(lowered, added.get(name, 0.0))
        pinned, hidden = (
            {
                document_id: None
                for whole, part, ids in rules
                if (part <= different if part else whole == query)
                for document_id in ids
            }
            for rules in (self._pinned, self._hidden)
        )
        return _bounded(list(added.items())[:_MAX_ADDED], query), [*pinned], [*hidden]


def _bounded(added: list[tuple[str, float]], words: str) -> list[tuple[str, float]]:
    """Lower the weights of texts whose words weigh more than half as much together as `words` without stop words."""
    limit = _MAX_SHARE * max(1, sum(word not in STOP_WORDS for word in words.split()))
    total = sum(weight * len(_words(name).split()) for name, weight in added)
    return added if total <= limit else [(name, weight * limit / total) for name, weight in added]


def rewrite(plan: Plan, rules: Rules) -> Plan:
    """Return a search as the rules for its text want it, with the `rules` of its answer; the same if there are none."""
    added, pinned, hidden = rules.of(plan.text)
    if not (added or pinned or hidden):
        return plan
    synonyms = [{"text": text, "weight": weight} for text, weight in added]
    facts = plan.facts | {"rules": {"synonyms": synonyms, "pinned": [], "hidden": len(hidden)}}
    shown = all_of(plan.condition, ("not", "ids", str(len(hidden)), *hidden) if hidden else None)
    return replace(plan, added=[*plan.added, *added], pinned=pinned, condition=shown, facts=facts)


class RulesFile(WatchedFile[Rules]):
    """The rules of a collection in a file. SettingsError if it can't be used."""

    def __init__(self, path: Path, collection: str = "default") -> None:
        super().__init__("rules", [path], partial(_parse, path, collection), collection=collection)


def _parse(path: Path, collection: str, content: bytes) -> Rules:
    """Parse rules, YAML or JSON. SettingsError names line, key, value and remedy."""
    try:
        values = parse_yaml(content)
        return Rules(_RulesModel.model_validate({} if values is None else values), collection)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        line, message = line_of(content, first["loc"]), first["msg"].removeprefix("Value error, ")
        message = "there is no such key" if first["type"] == "extra_forbidden" else message
        value = "" if first["type"] in ("missing", "extra_forbidden") else f" can't be {first['input']!r:.80}"
        raise SettingsError(f"{path}, line {line}: {key}{value}: {message}.", remedy=REMEDY) from error
    except ValueError as error:
        raise SettingsError(f"{path}: not YAML: {error}.", remedy=REMEDY) from error
