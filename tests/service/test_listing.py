"""Searches without a query: all documents that match a filter, in the order of a field or of writing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.sparse.index import DocumentSet, ImpactIndex
from lightretriever.service.errors import DeadlineError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.conftest import SETTINGS
from tests.service.live import client_of, warm
from tests.support.asking import ask, ids
from tests.support.tiny import make_tiny_bundle, tiny_documents
from tests.support.wordings import raises

FIELDS: dict[str, FieldKind] = {"source": "keyword", "year": "number", "day": "date"}
COUNT = 300


SOURCES: tuple[list[str], ...] = (["wiki"], ["news", "web"], [])
DOCUMENTS = [
    replace(one, more={"source": SOURCES[number % 3], "day": f"{1960 + number % 30}-03-01"})
    for number, one in enumerate(tiny_documents(COUNT))
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path: Path = tmp_path_factory.mktemp("listing") / "bundle"
    with warm(make_tiny_bundle(path, documents=DOCUMENTS, fields=FIELDS), SETTINGS) as engine:
        yield engine


def test_a_filter_alone_lists_what_matches_in_the_order_of_writing(client: TestClient) -> None:
    answer = ask(client, filter={"field": "source", "eq": "wiki"}, k=7, offset=3, fields=["year"])
    expected = [one for one in DOCUMENTS if "wiki" in one.more["source"]]
    assert ids(answer) == [one.id for one in expected[3:10]]
    assert [hit["rank"] for hit in answer["hits"]] == list(range(4, 11))
    assert [hit["fields"] for hit in answer["hits"]] == [{"year": one.year} for one in expected[3:10]]
    assert all((hit["score"], hit["dense"], hit["sparse"]) == (0.0, None, None) for hit in answer["hits"])
    assert answer["total"] == answer["candidates"] == len(expected)
    assert answer["degraded"] == []
    assert answer["timings_ms"]["dense"] is None
    assert "matched" not in answer


def test_pages_go_on_beyond_the_candidates_of_a_search(tmp_path: Path) -> None:
    settings = Settings(deadline_ms=60_000, max_candidates=20)
    bundle = make_tiny_bundle(tmp_path / "bundle", documents=DOCUMENTS, fields=FIELDS)
    every = {"field": "year", "gte": 0}
    with client_of(bundle, settings) as client:
        for asked in ({"filter": every}, {"filter": every, "sort": {"field": "day"}}):
            pages = [ask(client, **asked, k=20, offset=start) for start in range(0, COUNT, 20)]
            found = [one for page in pages for one in ids(page)]
            assert len(found) == len(set(found)) == COUNT
            assert ids(ask(client, **asked, offset=2**31 - 11 if "sort" not in asked else COUNT)) == []
        refused = client.post("/search", json={"query": "music", "offset": 15}).json()
        assert refused["errors"][0]["field"] == "k"


def test_ranges_have_their_edges(client: TestClient) -> None:
    ranges = {"year": [2010, 2020.5], "day": ["1970-03-01"]}
    told = ask(client, filter={"field": "year", "gte": 2003}, facet_ranges=ranges)["facet_ranges"]
    edges = {name: [{key: one[key] for key in one if key != "count"} for one in found] for name, found in told.items()}
    assert edges == {
        "year": [{"lt": 2010}, {"gte": 2010, "lt": 2020.5}, {"gte": 2020.5}],
        "day": [{"lt": "1970-03-01"}, {"gte": "1970-03-01"}],
    }


def test_it_says_that_there_is_no_query(client: TestClient) -> None:
    sorted_by_day = ask(client, sort={"field": "day", "order": "asc"}, explain=True, k=2)
    written = ask(client, filter={"field": "day", "exists": True}, explain=True, k=2)
    for answer, order in ((sorted_by_day, "ordered by day, ascending"), (written, "in the order of writing")):
        for hit in answer["hits"]:
            explanation = hit["explanation"]
            assert explanation["words"] == []
            assert explanation["note"].startswith("There is no query: ")
            assert order in explanation["note"]


def test_snippets_are_beginnings(client: TestClient) -> None:
    answer = ask(
        client, filter={"field": "year", "gte": 0}, fields=[], snippets={"fields": ["text"], "length": 40}, k=3
    )
    for hit, document in zip(answer["hits"], DOCUMENTS, strict=False):
        snippet = hit["snippets"]["text"]
        assert document.text.startswith(snippet["text"])
        assert (snippet["start"], snippet["marks"]) == (0, [])
        assert hit["fields"] == {}


def test_what_a_search_box_sends_along_changes_nothing(client: TestClient) -> None:
    plain = ask(client, filter={"field": "source", "eq": "web"})
    more = ask(client, filter={"field": "source", "eq": "web"}, mode="sparse", fusion={"method": "rrf"}, query=None)
    assert ids(plain) == ids(more)
    batch = client.post("/search/batch", json={"searches": [{"filter": {"field": "source", "eq": "web"}}]}).json()
    assert ids(batch["results"][0]) == ids(plain)


def test_no_further_range_is_counted_after_the_deadline(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the search goes on by a day with each condition that is looked up."""
    looked: list[Sequence[str]] = []
    where = ImpactIndex.where

    def slow(index: ImpactIndex, condition: Sequence[str]) -> DocumentSet:
        looked.append(condition)
        return where(index, condition)

    monkeypatch.setattr(ImpactIndex, "where", slow)
    monkeypatch.setattr(
        "lightretriever.service.search.request.perf_counter", lambda: perf_counter() + 86_400 * len(looked)
    )
    asked = {"sort": {"field": "year"}, "facet_ranges": {"year": [2000, 2010]}}
    with raises(DeadlineError, naming="60000"):
        engine.search(SearchRequest.model_validate(asked))
    assert len(looked) == 1
