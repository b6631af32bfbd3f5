"""Documents of older bundles may be nested deeper than the writer takes: they are answered, or clearly refused."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fastapi.testclient import TestClient
from lightretriever.artifacts.corpus import bounds
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine

from tests.service.conftest import SETTINGS
from tests.support.tiny import TinyDocument, make_tiny_bundle


@dataclass(frozen=True)
class Deep(TinyDocument):
    """A document with a list in a list, and so on."""

    depth: int = 0

    @property
    def raw(self) -> bytes:
        fields = {"_id": self.id, "title": self.title, "text": self.text, "year": self.year}
        return json.dumps(fields).encode()[:-1] + b',"deep":' + b"[" * self.depth + b"]" * self.depth + b"}"


@pytest.mark.parametrize("depth", [100, 249, 250, 251, 500, 800])
def test_a_deep_document_is_answered(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.setattr(bounds, "MAX_NESTING", 2_000)  # as of an older writer
    documents = [TinyDocument("flat", "music", "music", 2000), Deep("deep", "music", "music player", 2001, depth)]
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("deep") / "bundle", documents=documents)
    with SearchEngine.open(bundle, SETTINGS) as engine, TestClient(create_app(engine)) as client:
        nested = "[" * depth + "]" * depth
        for answer in (
            client.post("/search", json={"query": "music player", "explain": True}),
            client.post("/search/batch", json={"searches": [{"query": "music"}] * 2}),
            client.get("/documents/deep"),
        ):
            assert answer.status_code == 200
            assert f'"deep":{nested}' in answer.text
        assert client.get("/documents/flat").json()["fields"]["text"] == "music"


@pytest.fixture
def usual_recursion() -> Iterator[None]:
    """Python's own limit on recursion, which other tests' libraries raise."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_recursion")
def test_what_can_not_be_written_is_refused_and_the_rest_is_answered(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_NESTING", 2_000)
    documents = [TinyDocument("flat", "music", "music", 2000), Deep("deep", "music", "music player", 2001, 1_020)]
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("deep") / "bundle", documents=documents)
    with SearchEngine.open(bundle, SETTINGS) as engine, TestClient(create_app(engine)) as client:
        for answer in (client.post("/search", json={"query": "music"}), client.get("/documents/deep")):
            problem = answer.json()
            assert (answer.status_code, problem["errors"][0]["field"]) == (422, "fields")
            assert "nested too deep to be written" in problem["detail"]
        fields = ["title", "text"]
        assert len(client.post("/search", json={"query": "music", "fields": fields}).json()["hits"]) == 2
        assert client.get("/documents/flat").status_code == 200
