"""Boosts and groups: what is told of them. tests/backends/test_random_requests.py compares the order."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.service.schemas import Hit, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.support.tampering import copy_of, edit_manifest
from tests.support.tiny import make_tiny_bundle, tiny_documents

COUNT = 300
QUERY = "play music from the terminal"
NOW = datetime.now(UTC)


def to_rank_by(number: int) -> dict[str, Any]:
    """The fields of a document; each third lacks one of them."""
    made: dict[str, Any] = {"part_of": f"book-{number % 7}", "kind": ["a", "b"][number % 2]}
    if number % 3:
        made["stars"] = [number % 50, 1] if number % 4 == 0 else number % 50
    if number % 3 != 1:
        made["added"] = (NOW - timedelta(days=number % 100)).isoformat()
    if number % 11 == 0:
        del made["part_of"]
    if number % 13 == 0:
        made["part_of"] = number % 26 == 0
    return made


DOCUMENTS = [replace(one, more=to_rank_by(number)) for number, one in enumerate(tiny_documents(COUNT))]
FIELDS = {one.id: one.more for one in DOCUMENTS}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path = tmp_path_factory.mktemp("ranking") / "bundle"
    kinds: dict[str, FieldKind] = {"stars": "number", "added": "date", "kind": "keyword"}
    bundle = make_tiny_bundle(path, documents=DOCUMENTS, fields=kinds)
    with SearchEngine.open(bundle, SETTINGS) as engine:
        yield engine


def hits(engine: SearchEngine, **fields: Any) -> list[Hit]:
    return engine.search(SearchRequest.model_validate({"query": QUERY, "candidates": 100, **fields})).hits


def values(document_id: str, name: str) -> list[Any]:
    value = FIELDS[document_id].get(name)
    return value if isinstance(value, list) else [] if value is None else [value]


def test_boosts_are_explained_and_a_date_without_an_origin_is_near_now(engine: SearchEngine) -> None:
    boosts = [
        {"field": "added", "half_life": 10, "weight": 0.3},
        {"field": "stars", "half_life": 5, "origin": 30, "weight": -0.2},
    ]
    after = hits(engine, k=100, boosts=boosts, explain=True)
    for hit in after:
        added = [datetime.now(UTC) - datetime.fromisoformat(value) for value in values(hit.id, "added")]
        expected = [
            0.3 * max((0.5 ** (age / timedelta(days=10)) for age in added), default=0.0),
            -0.2 * max((0.5 ** (abs(value - 30) / 5) for value in values(hit.id, "stars")), default=0.0),
        ]
        assert hit.explanation is not None
        assert hit.explanation.boosts == pytest.approx(expected, abs=1e-5)
        legs = [share for share in hit.explanation.fusion.model_dump().values() if share is not None]
        assert hit.score == pytest.approx(sum(legs) + sum(expected), abs=1e-5)
    assert [hit.rank for hit in after] == list(range(1, 101))


def test_a_value_that_an_older_version_let_pass_is_none(engine: SearchEngine, tmp_path: Path) -> None:
    path = copy_of(engine.bundle.path, tmp_path)
    edit_manifest(path, lambda record: record["fields"].update(stars="date"))
    with SearchEngine.open(Bundle.open(path), SETTINGS) as other:
        assert [hit.id for hit in hits(other, sort={"field": "stars"})] == [hit.id for hit in hits(other)]


def test_hits_tell_their_groups(engine: SearchEngine) -> None:
    scores = {hit.id: hit.score for hit in hits(engine, k=100, mode="dense")}
    found = hits(engine, k=100, mode="dense", group_by="part_of")
    assert [hit.rank for hit in found] == list(range(1, len(found) + 1))
    assert {str(hit.group.value) for hit in found if hit.group} == {
        *(f"book-{number}" for number in range(7)),
        *("True", "False", "None"),
    }
    for hit in found:
        assert hit.group is not None
        assert hit.group.value == FIELDS[hit.id].get("part_of")
        assert hit.score == scores[hit.id]


def test_groups_of_sorted_and_boosted_candidates_with_snippets_and_explanations(engine: SearchEngine) -> None:
    found = hits(engine, k=3, group_by="kind", sort={"field": "stars"}, explain=True, snippets={"fields": ["text"]})
    assert [hit.group.value for hit in found if hit.group] == [FIELDS[hit.id]["kind"] for hit in found]
    for hit in found:
        assert hit.group is not None
        assert hit.explanation is not None
        assert hit.explanation.boosts is None
        assert hit.snippets is not None
        assert hit.fields["kind"] == hit.group.value


def test_the_order_takes_its_share_of_the_time(client: TestClient) -> None:
    timings = client.post("/search", json={"query": QUERY, "group_by": "year"}).json()["timings_ms"]
    assert timings["rank"] > 0
    assert "rank" not in client.post("/search", json={"query": QUERY}).json()["timings_ms"]
