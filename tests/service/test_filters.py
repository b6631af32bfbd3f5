"""Filters and facets: what is looked up once, and what is told. tests/backends/test_random_requests.py compares the
documents that are found."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.sparse.index import DocumentSet, ImpactIndex
from lightretriever.service.backends.base import DocumentFilter
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.service.live import warm
from tests.support.tiny import make_tiny_bundle

FIELDS: dict[str, FieldKind] = {"title": "keyword", "year": "number"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path = tmp_path_factory.mktemp("declared") / "bundle"
    with warm(make_tiny_bundle(path, documents=1000, fields=FIELDS), SETTINGS) as engine:
        yield engine


def ask(engine: SearchEngine, below: int) -> None:
    condition = {"field": "year", "lt": below}
    engine.search(SearchRequest.model_validate({"query": "play music search", "filter": condition}))


def test_the_same_condition_is_looked_up_once(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Sequence[str]] = []
    where = engine.parts.documents.store.where

    def counted(condition: Sequence[str]) -> DocumentFilter:
        looked.append(condition)
        return where(condition)

    monkeypatch.setattr(engine.parts.documents.store, "where", counted)
    for below in (33, 33, 34, 33):
        ask(engine, below)
    assert len(looked) == 2
    for below in range(200, 264):
        ask(engine, below)
    ask(engine, 33)
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
        first, second, third = [("number", "year", "0.0", f"{below}.0") for below in (1, 2, 3)]
        for condition in (first, second, third, second, third, first):
            documents.where(condition)
    assert looked == [first, second, third, first]


def test_what_is_declared_is_told_and_facets_to_who_asks(client: TestClient) -> None:
    assert client.get("/info").json()["filters"] == FIELDS
    assert client.post("/search", json={"query": "music", "facets": ["title"]}).json()["timings_ms"]["facets"] > 0
    assert "facets" not in client.post("/search", json={"query": "music"}).json()


def test_dates_of_python_are_written_as_iso_8601() -> None:
    moment = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    asked = SearchRequest.model_validate(
        {"query": "a", "filter": {"or": [{"field": "day", "lte": date(2024, 5, 1)}, {"field": "day", "in": [moment]}]}}
    )
    sent = json.loads(asked.model_dump_json(exclude_unset=True))["filter"]["or"]
    assert sent == [{"field": "day", "lte": "2024-05-01"}, {"field": "day", "in": ["2024-05-01T12:30:00+00:00"]}]
