"""A search by brute force over all documents, and random requests for it.

Documents are plain values in the order of writing. There is no index: a condition is tried on each document, each leg
scores each document, and the formulas are those of the docs.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from tests.live.mirror import WORDS, Row

FIELDS: Final[dict[str, Any]] = {
    "year": "number",
    "size": "number",
    "day": "date",
    "title": "keyword",
    "tags": "keyword",
}
TAGS: Final = ("red", "green", "blue", "grün")
_LEGS: Final = ("dense", "sparse")
_EDGES: Final[dict[str, list[Any]]] = {
    "year": [1995, 2005, 2005.5, 2015],
    "size": [10, 20.5, 50, 90],
    "day": ["2003-06-15", "2005-06-15T12:00:00Z", "2010-06-15T14:00:01+02:00", "2012-01-01"],
}

Asked = dict[str, Any]
Scores = npt.NDArray[np.float64]
ByLeg = dict[str, Scores]
ByPlace = dict[int, float]


@dataclass(frozen=True)
class Expected:
    """An answer: the ids of the hits in their order, and of each the score, the scores of the legs, and what else it
    is ordered by."""

    ids: list[str]
    scores: dict[str, float]
    legs: dict[str, dict[str, float]]
    keys: dict[str, Any]
    candidates: int
    facets: dict[str, dict[str, int]]
    ranges: dict[str, list[int]]
    groups: list[tuple[Any, int]] | None


class BruteForce:
    """Answers requests over documents by id, in the order of writing."""

    def __init__(self, bundle: Bundle, rows: dict[str, Row]) -> None:
        self.ids = list(rows)
        self.rows = list(rows.values())
        self._tokenizer = bundle.tokenizer()
        sparse = bundle.manifest.sparse
        self._words = None if sparse.language is None else Vocabulary(None, sparse.language)
        everything = np.arange(bundle.manifest.vocab_size)
        self._tables = {task: bundle.table(task).rows(everything).astype(np.float64) for task in bundle.manifest.tasks}
        idf = bundle.idf()
        self._idf = np.ones(bundle.manifest.vocab_size) if idf is None else idf.astype(np.float64)
        self._vectors = np.array([row.vector for row in self.rows], np.float64)
        assert bundle.manifest.fusion is not None
        self._weights = bundle.manifest.fusion.model_dump(exclude={"feedback"})
        self._feedback = bundle.manifest.fusion.feedback
        background = bundle.background()
        assert background is not None
        self._background = background.astype(np.float64)

    def answer(self, asked: Asked) -> Expected:
        allowed = [place for place, row in enumerate(self.rows) if holds(asked.get("filter"), row.fields)]
        if asked.get("query") is None and "like" not in asked:
            order, keys = self._sorted(asked.get("sort"), allowed)
            return self._expected(asked, order, allowed, dict.fromkeys(allowed, 0.0), {}, keys)
        allowed = [place for place in allowed if self.ids[place] != asked.get("like")]
        legs = self._legs(asked)
        scores = {name: self._scored(name, asked) for name in legs}
        own = {name: self._proposed(name, scores[name], allowed, asked["candidates"]) for name in legs}
        union = sorted({place for places in own.values() for place in places})
        legs = self._weighed(asked, legs, scores, union)
        fused = self._fused(asked, legs, scores, own, union)
        moved = self._moved(asked, fused, scores, union)
        if moved is not None:
            fused = self._fused(asked, legs, scores | {"dense": moved}, own, union)
        if len(legs) == 1:
            (order,) = own.values()
        else:
            order = sorted(union, key=lambda place: (-fused[place], place))
        for boost in asked.get("boosts", []):
            for place in union:
                values = map(as_number, self._values(place, boost["field"]))
                fused[place] += boost["weight"] * max(map(_share_of(boost), values), default=0)
        if asked.get("boosts"):
            order = sorted(order, key=lambda place: -fused[place])
        order, keys = self._sorted(asked.get("sort"), order)
        return self._expected(asked, order, union, fused, scores, keys)

    def _legs(self, asked: Asked) -> dict[str, float]:
        """The legs that are searched, with their weights."""
        weights = self._weights if asked["mode"] == "hybrid" else {asked["mode"]: 1.0}
        fusion = asked.get("fusion", {})
        if asked["mode"] == "hybrid":
            weights = fusion.get("weights") or (dict.fromkeys(_LEGS, 1.0) if fusion.get("method") == "rrf" else weights)
        return {name: weights[name] for name in _LEGS if weights.get(name)}

    def _scored(self, leg: str, asked: Asked) -> Scores:
        """The leg's score of every document, (N,)."""
        if leg == "dense":
            return np.asarray(self._vectors @ self._query(asked))
        weights = self._term_weights(asked)
        return np.array(
            [sum(weight * row.impacts.get(term, 0) for term, weight in weights.items()) for row in self.rows]
        )

    def _query(self, asked: Asked) -> Scores:
        """The query's vector, (D,)."""
        if "like" in asked:
            own = self._vectors[self.ids.index(asked["like"])]
            return np.asarray(own / np.linalg.norm(own))
        table = self._tables[asked.get("task", "default")]
        total = table[self._tokenizer.query_ids(asked["query"])].sum(axis=0)
        return np.asarray(total / np.linalg.norm(total))

    def _term_weights(self, asked: Asked) -> dict[str, float]:
        weights = dict[str, float]()
        if "like" in asked:
            impacts = self.rows[self.ids.index(asked["like"])].impacts
            for term, impact in impacts.items():
                factor = 1.0 if self._words is not None else self._idf[int(term)]
                weights[term] = float(np.float32(impact / max(impacts.values())) * np.float32(factor))
            heaviest = sorted(weights, key=lambda term: (-weights[term], term))[:16]
            return {term: weights[term] for term in heaviest}
        if self._words is None:
            terms = [(f"{token}", self._idf[token]) for token in self._tokenizer.query_ids(asked["query"])]
        else:
            terms = [(term, 1.0) for term in self._words.terms_of([asked["query"]])[0]]
        for term, factor in terms:
            weights[term] = weights.get(term, 0.0) + factor
        return weights

    def _proposed(self, leg: str, scores: Scores, allowed: Sequence[int], count: int) -> list[int]:
        order = sorted(allowed, key=lambda place: (-scores[place], place))
        return [place for place in order if leg == "dense" or scores[place] > 0][:count]

    def _fused(
        self, asked: Asked, legs: dict[str, float], scores: ByLeg, own: dict[str, list[int]], union: Sequence[int]
    ) -> ByPlace:
        if asked["mode"] != "hybrid":
            return {place: float(scores[asked["mode"]][place]) for place in union}
        fusion = {"method": "linear", "normalization": "evidence", "rank_constant": 60.0} | asked.get("fusion", {})
        method = fusion["normalization"] if fusion["method"] == "linear" else "rrf"
        fused = dict.fromkeys(union, 0.0)
        for name, weight in legs.items():
            pool = list(union) if method in ("evidence", "range") else own[name]
            if not pool:
                continue
            known = scores[name][pool]
            low, high = known.min(), known.max()
            for place in pool:
                score = scores[name][place]
                if method == "rrf":
                    share = 1 / (fusion["rank_constant"] + own[name].index(place) + 1)
                elif method in ("evidence", "range"):
                    part = 1.0 if high == low else (score - low) / (high - low)
                    share = 0.001 + 0.999 * (part if method == "range" else part * part)
                else:
                    share = 0.0 if high == low else (score - low) / (high - low)
                fused[place] += weight * float(share)
        return fused

    def _weighed(self, asked: Asked, legs: dict[str, float], scores: ByLeg, union: Sequence[int]) -> dict[str, float]:
        """The weights of the legs, with what each knows of the query where they weigh by evidence."""
        fusion = {"method": "linear", "normalization": "evidence"} | asked.get("fusion", {})
        evidence = fusion["method"] == "linear" and fusion["normalization"] == "evidence"
        if asked["mode"] != "hybrid" or not evidence or len(legs) < 2 or not union:
            return legs
        background = self._background @ self._query(asked)
        known = {"dense": 1.0, "sparse": 0.0}
        if background.std() > 0:
            known["dense"] = max(0.001, (scores["dense"][union].max() - background.mean()) / (8 * background.std()))
        most = sum(sorted(self._added(asked, union))[-4:])
        if most > 0:
            known["sparse"] = min(1.0, scores["sparse"][union].max() / most)
        known["sparse"] = max(0.001, known["sparse"])
        total = sum(weight * known[name] for name, weight in legs.items())
        return {name: weight * known[name] / total for name, weight in legs.items()}

    def _added(self, asked: Asked, union: Sequence[int]) -> list[float]:
        """The most that each term adds to the score of a candidate."""
        weights = self._term_weights(asked).items()
        return [max(weight * self.rows[place].impacts.get(term, 0) for place in union) for term, weight in weights]

    def _moved(self, asked: Asked, fused: ByPlace, scores: ByLeg, union: Sequence[int]) -> Scores | None:
        """The dense scores of all documents for the query moved towards the first document; None without feedback."""
        fusion = asked.get("fusion", {})
        default = 0.0 if fusion.get("normalization") == "paper" else self._feedback
        feedback = fusion.get("feedback", default)
        if asked["mode"] != "hybrid" or fusion.get("method") == "rrf" or len(scores) < 2 or not union or not feedback:
            return None
        first = min(union, key=lambda place: (-fused[place], place))
        most = sum(sorted(self._added(asked, union))[-4:])
        share = min(1.0, max(0.0, float(scores["sparse"][first]) / most)) if most > 0 else 0.0
        vector = self._vectors[first]
        moved = self._query(asked) + feedback * share * vector / np.linalg.norm(vector)
        return np.asarray(self._vectors @ (moved / np.linalg.norm(moved)))

    def _sorted(self, sort: Asked | None, order: list[int]) -> tuple[list[int], dict[int, Any]]:
        if sort is None:
            return order, {}
        descending = sort.get("order", "desc") == "desc"
        keys = {place: self._values(place, sort["field"]) for place in order}
        known = [place for place in order if keys[place]]
        first = max if descending else min
        known.sort(key=lambda place: first(keys[place]), reverse=descending)
        chosen = {place: first(values) if values else None for place, values in keys.items()}
        return known + [place for place in order if not keys[place]], chosen

    def _expected(
        self,
        asked: Asked,
        order: Sequence[int],
        union: Sequence[int],
        fused: ByPlace,
        scores: ByLeg,
        keys: dict[int, Any],
    ) -> Expected:
        groups: dict[Any, list[int]] = {}
        if "group_by" in asked:
            for place in order:
                value = self.rows[place].fields.get(asked["group_by"])
                alone = not isinstance(value, str | int | float) or value == ""
                groups.setdefault(("alone", place) if alone else value, []).append(place)
            order = [places[0] for places in groups.values()]
        page = slice(asked["offset"], asked["offset"] + asked["k"])
        named = [
            (None if isinstance(value, tuple) else value, len(places)) for value, places in list(groups.items())[page]
        ]
        values = {
            name: Counter(value for place in union for value in set(self._values(place, name)))
            for name in asked.get("facets", [])
        }
        return Expected(
            ids=[self.ids[place] for place in order[page]],
            scores={self.ids[place]: fused[place] for place in union},
            legs={name: {self.ids[place]: float(of[place]) for place in union} for name, of in scores.items()},
            keys={self.ids[place]: key for place, key in keys.items()},
            candidates=len(union),
            facets={name: dict(counts) for name, counts in values.items()},
            ranges={name: self._in_ranges(union, name, edges) for name, edges in asked.get("facet_ranges", {}).items()},
            groups=named if "group_by" in asked else None,
        )

    def _in_ranges(self, union: Sequence[int], name: str, edges: Sequence[float]) -> list[int]:
        bounds = [-math.inf, *map(as_number, edges), math.inf]
        return [
            sum(any(low <= as_number(value) < high for value in self._values(place, name)) for place in union)
            for low, high in pairwise(bounds)
        ]

    def _values(self, place: int, name: str) -> list[Any]:
        return values_of(self.rows[place].fields, name)


def values_of(fields: Asked, name: str) -> list[Any]:
    """The values of a document's field."""
    value = fields.get(name)
    return value if isinstance(value, list) else [] if value is None else [value]


def holds(condition: Asked | None, fields: Asked) -> bool:
    """Whether a condition holds for a document."""
    if condition is None:
        return True
    if "and" in condition:
        return all(holds(one, fields) for one in condition["and"])
    if "or" in condition:
        return any(holds(one, fields) for one in condition["or"])
    if "not" in condition:
        return not holds(condition["not"], fields)
    values = values_of(fields, condition["field"])
    if "exists" in condition:
        return bool(values) is condition["exists"]
    if FIELDS[condition["field"]] == "keyword":
        return any(value in condition.get("in", [condition.get("eq")]) for value in values)
    numbers = [as_number(value) for value in values]
    if "eq" in condition or "in" in condition:
        spans = [_span(value) for value in condition.get("in", [condition.get("eq")])]
        return any(first <= number <= last for number in numbers for first, last in spans)
    tests = {"gt": (float.__gt__, 1), "gte": (float.__ge__, 0), "lt": (float.__lt__, 0), "lte": (float.__le__, 1)}
    bounds = [(test, _span(condition[name])[end]) for name, (test, end) in tests.items() if name in condition]
    return any(all(test(number, bound) for test, bound in bounds) for number in numbers)


def as_number(value: Any) -> float:
    """A value of a number or a date to compare; a date in days since 1970."""
    if not isinstance(value, str):
        return float(value)
    moment = datetime.fromisoformat(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / 86_400


def _span(value: Any) -> tuple[float, float]:
    """The first and the last value that one of a condition stands for: a date without a time is its whole day."""
    first = as_number(value)
    return first, first + 1 - 1e-9 if isinstance(value, str) and "T" not in value else first


def _share_of(boost: Asked) -> Any:
    if "scale" in boost:
        return lambda value: min(1.0, math.log1p(max(0.0, value)) / math.log1p(boost["scale"]))
    origin = as_number(boost["origin"])
    return lambda value: 0.5 ** (abs(value - origin) / boost["half_life"])


def random_request(random: np.random.Generator) -> Asked:
    """A request that asks for several things at once, from those that go together."""

    def one(values: Sequence[Any]) -> Any:
        return values[int(random.integers(len(values)))]

    def chance(share: float) -> bool:
        return bool(random.random() < share)

    asked: Asked = {"k": one([1, 3, 10, 40]), "offset": one([0, 0, 0, 2, 9])}
    if chance(0.15):
        asked |= {"query": None, "filter": _random_filter(random, 2)}
        if chance(0.6):
            asked["sort"] = {"field": one(list(FIELDS)), "order": one(["asc", "desc"])}
    else:
        asked |= {"query": _words(random), "mode": one(["hybrid"] * 4 + ["dense", "sparse"])}
        asked["task"] = one(["default", "fact"])
        asked["candidates"] = one([50, 60, 100, 1000])
        if chance(0.4):
            asked["filter"] = _random_filter(random, 2)
        if asked["mode"] == "hybrid" and chance(0.7):
            asked["fusion"] = _fusion(one, chance)
        if chance(0.2):
            dated = {"field": "day", "origin": "2006-01-01", "half_life": 500.0}
            scaled, near = {"scale": 50.0}, {"origin": 2005.0, "half_life": 4.0}
            boost = one([{"field": field} | shape for field in ("year", "size") for shape in (scaled, near)] + [dated])
            asked["boosts"] = [boost | {"weight": one([0.3, -0.2, 2.0])}]
        if "boosts" not in asked and chance(0.2):
            asked["sort"] = {"field": one(list(FIELDS)), "order": one(["asc", "desc"])}
        if chance(0.2):
            asked["group_by"] = one(["year", "title", "size"])
    if chance(0.3):
        asked["facets"] = one([["tags"], ["title", "tags"]])
    if chance(0.2):
        name = one(["year", "size", "day"])
        asked["facet_ranges"] = {name: _EDGES[name][: one([1, 2, 4])]}
    return asked


def _words(random: np.random.Generator) -> str:
    words = (*WORDS, "日本語の検索", "Zażółć", "🎵", "<|endoftext|>", "C++", "wi-fi")
    return " ".join(words[place] for place in random.integers(len(words), size=random.integers(1, 5)))


def _fusion(one: Any, chance: Any) -> Asked:
    weights = one([{"dense": 0.3, "sparse": 0.7}, {"dense": 2.0, "sparse": 1.0}, {"dense": 0.0, "sparse": 1.0}])
    if chance(0.3):
        return {"method": "rrf", "rank_constant": one([0.0, 10.0, 60.0])} | (
            {"weights": weights} if chance(0.5) else {}
        )
    fusion = {"method": "linear", "normalization": one(["evidence", "range", "paper"])}
    fusion |= {"weights": weights} if chance(0.5) else {}
    return fusion | ({"feedback": one([0.0, 0.3, 2.0])} if chance(0.5) else {})


def _random_filter(random: np.random.Generator, depth: int) -> Asked:
    kind = int(random.integers(6 if depth else 3))
    if kind == 3:
        return {"not": _random_filter(random, depth - 1)}
    if kind > 3:
        return {"and" if kind == 4 else "or": [_random_filter(random, depth - 1) for _ in range(random.integers(1, 4))]}
    year, size = int(random.integers(1990, 2030)), int(random.integers(100))
    tag = TAGS[int(random.integers(len(TAGS)))]
    leaves: tuple[Asked, ...] = (
        {"field": "year", "gte": year},
        {"field": "year", "lt": year},
        {"field": "year", "gt": year - 8, "lte": year + 8},
        {"field": "year", "in": [year, year + 1, year + 2.0]},
        {"field": "size", "lte": size},
        {"field": "size", "exists": bool(size % 2)},
        {"field": "tags", "eq": tag},
        {"field": "tags", "in": [tag, "no such tag"]},
        {"field": "tags", "exists": bool(size % 2)},
        {"field": "title", "exists": True},
        LEAVES[size % len(LEAVES)],
    )
    return leaves[int(random.integers(len(leaves)))]


_NOON: Final = "2010-06-15T12:00:00Z"
LEAVES: Final[tuple[Asked, ...]] = (
    {"field": "size", "eq": 12},
    {"field": "size", "in": [3, 5.0, 7.5]},
    {"field": "day", "exists": False},
    *({"field": "day", name: value} for name in ("gt", "gte", "lt", "lte", "eq") for value in (_NOON, "2010-06-15")),
    {"field": "day", "eq": "20100615"},
    {"field": "day", "lt": "2003-06-15T14:00:00+02:00"},
    {"field": "day", "in": ["2010-06-15", "2011-06-14", "2012-06-15T12:00"]},
)
"""Conditions whose values are written in every way."""
