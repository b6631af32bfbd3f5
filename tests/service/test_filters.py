"""Filters and facets: what is found is what brute force finds among the documents that the condition holds for."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.sparse.index import DocumentSet, ImpactIndex
from lightretriever.service.backends.base import DocumentFilter
from lightretriever.service.schemas import Mode, SearchRequest
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.service.live import warm
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents

COUNT = 1000
FIELDS: dict[str, FieldKind] = {"source": "keyword", "share": "number", "published": "date"}
Made = dict[str, Any]


def declared(number: int) -> Made:
    """The fields of a document: share runs from 0 to 999 in no order."""
    made: Made = {"share": number * 7 % COUNT}
    if number % 4:
        made["source"] = ["wiki", ["news", "web"], "wéb"][number % 3]
    if number % 5:
        made["published"] = f"20{number % 25:02}-06-15T12:00:00Z"
    return made


@pytest.fixture(scope="module")
def documents() -> list[TinyDocument]:
    return [replace(one, more=declared(number)) for number, one in enumerate(tiny_documents(COUNT))]


@pytest.fixture(scope="module", params=["Flat", "SQ8"])
def engine(
    request: pytest.FixtureRequest, documents: list[TinyDocument], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SearchEngine]:
    path: Path = tmp_path_factory.mktemp("declared") / "bundle"
    bundle = make_tiny_bundle(path, documents=documents, fields=FIELDS, factory=request.param)
    with warm(bundle, SETTINGS) as engine:
        yield engine


def values(document: TinyDocument, field: str) -> list[Any]:
    value = document.more.get(field, [])
    return value if isinstance(value, list) else [value]


Holds = Callable[[TinyDocument], bool]

LEAVES: list[tuple[Made, Holds]] = [
    ({"field": "source", "eq": "wiki"}, lambda d: "wiki" in values(d, "source")),
    ({"field": "source", "in": ["web", "wéb"]}, lambda d: bool({"web", "wéb"} & {*values(d, "source")})),
    ({"field": "source", "exists": False}, lambda d: not values(d, "source")),
    ({"field": "published", "exists": True}, lambda d: bool(values(d, "published"))),
    ({"field": "share", "lt": 10}, lambda d: d.more["share"] < 10),
    ({"field": "share", "gt": 10, "lte": 500}, lambda d: 10 < d.more["share"] <= 500),
    ({"field": "share", "in": [3, 5.0, 7.5]}, lambda d: d.more["share"] in (3, 5)),
    ({"field": "share", "eq": 12}, lambda d: d.more["share"] == 12),
    (
        {"field": "published", "gte": "2010-06-15T12:00:00Z"},
        lambda d: any(v >= "2010-06-15" for v in values(d, "published")),
    ),
    ({"field": "published", "gt": "2010-06-15T12:00:00Z"}, lambda d: any(v >= "2011" for v in values(d, "published"))),
    (
        {"field": "published", "lt": "2003-06-15T14:00:00+02:00"},
        lambda d: any(v < "2003" for v in values(d, "published")),
    ),
    # A date without a time is its whole day, from the first to the last millisecond.
    ({"field": "published", "lte": "2010-06-15"}, lambda d: any(v < "2011" for v in values(d, "published"))),
    ({"field": "published", "gt": "2010-06-15"}, lambda d: any(v >= "2011" for v in values(d, "published"))),
    ({"field": "published", "gte": "2010-06-15"}, lambda d: any(v >= "2010" for v in values(d, "published"))),
    ({"field": "published", "lt": "2010-06-15"}, lambda d: any(v < "2010" for v in values(d, "published"))),
    ({"field": "published", "eq": "20100615"}, lambda d: any(v.startswith("2010") for v in values(d, "published"))),
    (
        {"field": "published", "in": ["2010-06-15", "2011-06-14", "2012-06-15T12:00"]},
        lambda d: any(v[:4] in ("2010", "2012") for v in values(d, "published")),
    ),
]


def both(parts: list[tuple[Made, Holds]]) -> tuple[Made, Holds]:
    return {"and": [part for part, _ in parts]}, lambda document: all(holds(document) for _, holds in parts)


def either(parts: list[tuple[Made, Holds]]) -> tuple[Made, Holds]:
    return {"or": [part for part, _ in parts]}, lambda document: any(holds(document) for _, holds in parts)


def other(part: tuple[Made, Holds]) -> tuple[Made, Holds]:
    return {"not": part[0]}, lambda document: not part[1](document)


FILTERS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(both)
        | st.lists(inner, min_size=1, max_size=3).map(either)
        | inner.map(other)
    ),
    max_leaves=6,
)
MODES: st.SearchStrategy[Mode] = st.sampled_from(["hybrid", "dense", "sparse"])


def ask(engine: SearchEngine, **fields: Any) -> list[tuple[str, float]]:
    request = SearchRequest.model_validate_json(json.dumps({"query": "play music search", **fields}))
    return [(hit.id, hit.score) for hit in engine.search(request).hits]


@given(chosen=FILTERS, mode=MODES)
def test_legs_find_what_brute_force_finds(
    engine: SearchEngine, documents: list[TinyDocument], chosen: tuple[Made, Holds], mode: Mode
) -> None:
    condition, holds = chosen
    allowed = {document.id for document in documents if holds(document)}
    if mode == "hybrid":
        found = ask(engine, filter=condition, k=COUNT, candidates=COUNT)
        assert {name for name, _ in found} == allowed  # the dense leg proposes every document there is
    else:
        every = ask(engine, mode=mode, k=COUNT, candidates=COUNT)
        expected = [(name, score) for name, score in every if name in allowed]
        assert ask(engine, mode=mode, filter=condition, k=COUNT, candidates=COUNT) == expected
        assert ask(engine, mode=mode, filter=condition, k=7, offset=2, candidates=20) == expected[2:9]


def test_the_same_condition_is_looked_up_once(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Sequence[str]] = []
    where = engine.parts.documents.store.where

    def counted(condition: Sequence[str]) -> DocumentFilter:
        looked.append(condition)
        return where(condition)

    monkeypatch.setattr(engine.parts.documents.store, "where", counted)
    for below in (33, 33, 34, 33):
        ask(engine, filter={"field": "share", "lt": below})
    assert len(looked) == 2
    for below in range(200, 264):
        ask(engine, filter={"field": "share", "lt": below})
    ask(engine, filter={"field": "share", "lt": 33})
    assert len(looked) == 2 + 64 + 1


def test_few_large_sets_are_kept(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.service.search.documents._KEPT_BYTES", 600)  # two sets of a thousand documents
    looked: list[Sequence[str]] = []

    class Counting(ImpactIndex):
        def where(self, condition: Sequence[str]) -> DocumentSet:
            looked.append(condition)
            return super().where(condition)

    with engine.bundle.sparse() as index:
        documents = Documents(Counting(index.handle, index.path), [])
        first, second, third = [("number", "share", "0.0", f"{below}.0") for below in (1, 2, 3)]
        for condition in (first, second, third, second, third, first):
            documents.where(condition)
    assert looked == [first, second, third, first]


def test_what_is_declared_is_told_and_facets_to_who_asks(client: TestClient) -> None:
    """tests/backends/test_random_requests.py compares the counts, of pages too."""
    assert client.get("/info").json()["filters"] == FIELDS
    assert client.post("/search", json={"query": "music", "facets": ["source"]}).json()["timings_ms"]["facets"] > 0
    assert "facets" not in client.post("/search", json={"query": "music"}).json()


def test_dates_of_python_are_written_as_iso_8601() -> None:
    moment = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    asked = SearchRequest.model_validate(
        {"query": "a", "filter": {"or": [{"field": "day", "lte": date(2024, 5, 1)}, {"field": "day", "in": [moment]}]}}
    )
    sent = json.loads(asked.model_dump_json(exclude_unset=True))["filter"]["or"]
    assert sent == [{"field": "day", "lte": "2024-05-01"}, {"field": "day", "in": ["2024-05-01T12:30:00+00:00"]}]
