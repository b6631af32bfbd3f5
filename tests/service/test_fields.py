"""Fields of documents: filters, facets, listing without a query, boosts and groups; what is told of them, and what is
looked up once. tests/backends/test_random_requests.py compares the documents that are found, and their order."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.service.errors import DeadlineError
from lightretriever.service.schemas import Hit, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS, Noted
from tests.service.live import client_of, warm
from tests.support.asking import ask, ids
from tests.support.tampering import copy_of, edit_manifest
from tests.support.tiny import make_tiny_bundle, tiny_documents
from tests.support.wordings import raises

COUNT = 300
QUERY = "play music from the terminal"
NOW = datetime.now(UTC)
KINDS: dict[str, FieldKind] = {
    **{"source": "keyword", "year": "number", "day": "date"},
    **{"stars": "number", "added": "date", "kind": "keyword"},
}


def fields_of(number: int) -> dict[str, Any]:
    """The fields of a document, which may lack some."""
    made: dict[str, Any] = {"source": [["wiki"], ["news", "web"], []][number % 3], "kind": ["a", "b"][number % 2]}
    made |= {"day": f"{1960 + number % 30}-03-01", "part_of": f"book-{number % 7}"}
    if number % 3:
        made["stars"] = number % 50
    if number % 3 != 1:
        made["added"] = (NOW - timedelta(days=number % 100)).isoformat()
    if number % 11 == 0:
        del made["part_of"]
    if number % 13 == 0:
        made["part_of"] = number % 26 == 0
    return made


DOCUMENTS = [replace(one, more=fields_of(number)) for number, one in enumerate(tiny_documents(COUNT))]
FIELDS = {one.id: one.more for one in DOCUMENTS}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path: Path = tmp_path_factory.mktemp("fields") / "bundle"
    with warm(make_tiny_bundle(path, documents=DOCUMENTS, fields=KINDS), SETTINGS) as engine:
        yield engine


def test_the_same_condition_is_looked_up_once(engine: SearchEngine, noted: Noted) -> None:
    looked = noted(engine.parts.documents.store, "where")
    for years, lookups in (((33, 33, 34, 33), 2), (range(200, 216), 18), ((33,), 19)):
        for below in years:
            hits(engine, filter={"field": "year", "lt": below})
        assert len(looked) == lookups


def test_what_is_declared_and_what_took_time_is_told_to_who_asks(client: TestClient) -> None:
    assert client.get("/info").json()["filters"] == KINDS
    plain = ask(client, QUERY)
    assert "facets" not in plain
    for stage, asked in (("facets", {"facets": ["kind"]}), ("rank", {"group_by": "year"})):
        assert ask(client, QUERY, **asked)["timings_ms"][stage] > 0
        assert stage not in plain["timings_ms"]


def test_dates_of_python_are_written_as_iso_8601() -> None:
    moment = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    asked = SearchRequest.model_validate(
        {"query": "a", "filter": {"or": [{"field": "day", "lte": date(2024, 5, 1)}, {"field": "day", "in": [moment]}]}}
    )
    sent = json.loads(asked.model_dump_json(exclude_unset=True))["filter"]["or"]
    assert sent == [{"field": "day", "lte": "2024-05-01"}, {"field": "day", "in": ["2024-05-01T12:30:00+00:00"]}]


def test_a_filter_alone_lists_what_matches_in_the_order_of_writing(client: TestClient) -> None:
    """What a search box sends along changes nothing; snippets are beginnings."""
    wiki = {"field": "source", "eq": "wiki"}
    answer = ask(client, filter=wiki, k=7, offset=3, fields=["year"], snippets={"fields": ["text"], "length": 40})
    expected = [one for one in DOCUMENTS if "wiki" in one.more["source"]]
    assert ids(answer) == [one.id for one in expected[3:10]]
    for hit, document, rank in zip(answer["hits"], expected[3:10], range(4, 11), strict=True):
        assert (hit["rank"], hit["fields"]) == (rank, {"year": document.year})
        assert (hit["score"], hit["dense"], hit["sparse"]) == (0.0, None, None)
        snippet = hit["snippets"]["text"]
        assert document.text.startswith(snippet["text"])
        assert (snippet["start"], snippet["marks"]) == (0, [])
    assert answer["total"] == answer["candidates"] == len(expected)
    assert answer["degraded"] == []
    assert answer["timings_ms"]["dense"] is None
    assert "matched" not in answer
    plain = ids(ask(client, filter=wiki))
    assert plain == ids(ask(client, filter=wiki, mode="sparse", fusion={"method": "rrf"}, query=None))
    (batched,) = client.post("/search/batch", json={"searches": [{"filter": wiki}]}).json()["results"]
    assert plain == ids(batched)


def test_pages_go_on_beyond_the_candidates_of_a_search(engine: SearchEngine) -> None:
    every = {"field": "year", "gte": 0}
    with client_of(engine.bundle, SETTINGS.model_copy(update={"max_candidates": 20})) as client:
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
            assert hit["explanation"]["words"] == []
            assert hit["explanation"]["note"].startswith("There is no query: ")
            assert order in hit["explanation"]["note"]


def test_no_further_range_is_counted_after_the_deadline(engine: SearchEngine, noted: Noted) -> None:
    looked = noted(ImpactIndex, "where", by_days=True)
    with raises(DeadlineError, naming="60000"):
        search(engine, query=None, candidates=None, sort={"field": "year"}, facet_ranges={"year": [2000, 2010]})
    assert len(looked) == 1


def search(engine: SearchEngine, **fields: Any) -> list[Hit]:
    return engine.search(SearchRequest.model_validate(fields)).hits


def hits(engine: SearchEngine, **fields: Any) -> list[Hit]:
    return search(engine, **{"query": QUERY, "candidates": 100, **fields})


def test_boosts_are_explained_and_a_date_without_an_origin_is_near_now(engine: SearchEngine) -> None:
    boosts = [
        {"field": "added", "half_life": 10, "weight": 0.3},
        {"field": "stars", "half_life": 5, "origin": 30, "weight": -0.2},
    ]
    for hit in hits(engine, k=100, boosts=boosts, explain=True):
        added, stars = FIELDS[hit.id].get("added"), FIELDS[hit.id].get("stars")
        expected = [0.0, 0.0]
        if added is not None:
            expected[0] = 0.3 * 0.5 ** ((datetime.now(UTC) - datetime.fromisoformat(added)) / timedelta(days=10))
        if stars is not None:
            expected[1] = -0.2 * 0.5 ** (abs(stars - 30) / 5)
        assert hit.explanation is not None
        assert hit.explanation.boosts == pytest.approx(expected, abs=1e-5)


def test_a_value_that_an_older_version_let_pass_is_none(engine: SearchEngine, tmp_path: Path) -> None:
    path = copy_of(engine.bundle.path, tmp_path)
    edit_manifest(path, lambda record: record["fields"].update(stars="date"))
    with SearchEngine.open(Bundle.open(path), SETTINGS) as other:
        assert [hit.id for hit in hits(other, sort={"field": "stars"})] == [hit.id for hit in hits(other)]


def test_hits_tell_their_groups(engine: SearchEngine) -> None:
    """Texts, truth values and none. Their sizes: tests/backends/test_random_requests.py."""
    found = hits(engine, k=100, mode="dense", group_by="part_of")
    assert [hit.group and hit.group.value for hit in found] == [FIELDS[hit.id].get("part_of") for hit in found]
