"""A query that is the id of a document has that document first."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lightretriever.service.search.pipeline import named_ids
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.asking import ask
from tests.support.tiny import make_tiny_bundle

FIELDS: Any = {"year": "number"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("names") / "bundle", vocabulary="words", fields=FIELDS)
    with client_of(bundle, SETTINGS) as client:
        yield client


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
@pytest.mark.parametrize("query", ["doc-77", " DOC-77 "])
def test_it_comes_first_with_its_own_scores(client: TestClient, query: str, mode: str) -> None:
    answer = ask(client, query, mode=mode, k=20, explain=True)
    first, *others = answer["hits"]
    assert (first["id"], first["rank"]) == ("doc-77", 1)
    assert first["explanation"]["note"].startswith("The query is the id")
    assert not any("note" in hit["explanation"] for hit in others)
    assert len({hit["id"] for hit in answer["hits"]}) == len(answer["hits"])
    assert "rules" not in answer


def test_it_passes_the_filter_and_leaves_a_sorted_order_alone(client: TestClient) -> None:
    year = ask(client, "doc-77")["hits"][0]["fields"]["year"]
    others = {"not": {"field": "year", "gte": year, "lte": year}}
    assert "doc-77" not in {hit["id"] for hit in ask(client, "doc-77", k=50, filter=others)["hits"]}
    years = [hit["fields"].get("year") for hit in ask(client, "doc-77", sort={"field": "year"}, k=20)["hits"]]
    assert [year for year in years if year] == sorted((year for year in years if year), reverse=True)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("gimp", ["gimp"]),
        ("\tGIMP\n", ["GIMP", "gimp"]),
        ("c++", ["c++"]),
        ("日本語", ["日本語"]),
        ("1984", []),
        ("…", []),
        ("", []),
        ("gimp photo", []),
        ("a" * 600, []),
    ],
)
def test_what_may_be_an_id(query: str, ids: list[str]) -> None:
    assert named_ids(query) == ids
