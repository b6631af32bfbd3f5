"""The API against its own description: by its examples, and by the routes there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from lightretriever.service import schemas
from lightretriever.service.errors import KINDS
from lightretriever.service.http.app import create_app
from lightretriever.service.http.openapi import EXAMPLES
from lightretriever.service.http.routes import router
from lightretriever.service.search.engine import SearchEngine
from pydantic import BaseModel

from tests.service.conftest import SETTINGS
from tests.support.tiny import make_tiny_bundle

# A valid query may have no token, a valid window may be too small for k, a valid deadline may be too short.
CONFIG = {
    "checks": {
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "422", "504"]},
        "negative_data_rejection": {"expected-statuses": ["400", "404", "406", "413", "415", "422", "429"]},
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "504"]},
    }
}


@pytest.fixture(scope="session")
def description(client: TestClient) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_every_route_is_described_with_examples(description: dict[str, Any]) -> None:
    routes = {
        (route.path, method.lower())
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    described = {(path, method) for path, methods in description["paths"].items() for method in methods}
    assert described == {(path.replace("{id:any}", "{id}"), method) for path, method in routes}
    for path, method in described:
        operation = description["paths"][path][method]
        assert operation["summary"]
        assert operation["description"]
        assert "500" in operation["responses"]
        can_be_refused = path.startswith(
            ("/search", "/documents", "/terms", "/encode", "/v1/embeddings", "/readyz", "/admin")
        )
        assert ("503" in operation["responses"]) == can_be_refused
        for status, response in operation["responses"].items():
            ((media, content),) = response["content"].items()
            if status != "200":
                assert media == "application/problem+json"
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                for kind, example in content["examples"].items():
                    assert KINDS[kind].status == int(status) == example["value"]["status"]
            elif media == "application/json":
                assert content["example"]
        if method == "post" and not path.startswith("/admin"):
            ((media, content),) = operation["requestBody"]["content"].items()
            assert media == ("application/x-ndjson" if path == "/documents" else "application/json")
            assert content["examples"]


def test_every_reference_leads_to_a_schema(description: dict[str, Any]) -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description)))
    assert names <= description["components"]["schemas"].keys()
    assert {"SearchRequest", "DocumentTerms", "Problem"} <= names


def test_addresses_are_those_beside_the_description(description: dict[str, Any]) -> None:
    """So that they lead to a collection, and through a proxy that takes a prefix off."""
    assert description["servers"] == [{"url": "."}]


def test_every_error_kind_is_listed(description: dict[str, Any]) -> None:
    listed = description["x-error-kinds"]
    assert [error["kind"] for error in listed] == [error["example"]["kind"] for error in listed] == list(KINDS)
    assert all(schemas.Problem.model_validate(error["example"]).status == error["status"] for error in listed)


def test_the_limits_are_those_of_the_settings(description: dict[str, Any]) -> None:
    search = description["components"]["schemas"]["SearchRequest"]["properties"]
    assert search["query"]["maxLength"] == 10_000
    assert search["k"]["maximum"] == search["candidates"]["anyOf"][0]["maximum"] == 1_000
    assert description["components"]["schemas"]["BatchRequest"]["properties"]["searches"]["maxItems"] == 64


def test_examples_of_requests_are_answered(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "years", vocabulary="words", fields={"year": "number"})
    paths = {
        "SearchRequest": "/search",
        "BatchRequest": "/search/batch",
        "EncodeRequest": "/encode",
        "EmbeddingsRequest": "/v1/embeddings",
    }
    written = {"DocumentWrite": schemas.DocumentWrite, "DocumentLine": schemas.DocumentLine}  # this service takes none
    assert EXAMPLES["requests"].keys() - paths == written.keys()
    for name, of_write in written.items():
        for example in EXAMPLES["requests"][name].values():
            of_write.model_validate(example["value"])
    with SearchEngine.open(bundle, SETTINGS) as engine, TestClient(create_app(engine)) as client:
        for model, path in paths.items():
            for example in EXAMPLES["requests"][model].values():
                answer = client.post(path, json=example["value"])
                assert answer.status_code == 200, answer.text


def test_examples_of_answers_are_valid() -> None:
    for name, example in EXAMPLES["answers"].items():
        model: type[BaseModel] = getattr(schemas, name)
        assert model.model_validate(example).model_dump(exclude_unset=True) == example


def test_answers_have_the_documented_shape(client: TestClient) -> None:
    """Strict models, unknown fields refused: more than the description could say."""
    for answer, model in (
        (client.post("/search", json={"query": "music", "fields": []}), schemas.SearchResponse),
        (client.post("/search", json={"query": "music", "mode": "dense"}), schemas.SearchResponse),
        (client.post("/search/batch", json={"searches": [{"query": "music"}]}), schemas.BatchResponse),
        (client.post("/encode", json={"text": "music"}), schemas.EncodeResponse),
        (client.post("/search", json={"query": "music", "explain": True}), schemas.SearchResponse),
        (client.get("/search?q=music"), schemas.SearchResponse),
        (client.post("/v1/embeddings", json={"model": "default", "input": ["music"]}), schemas.EmbeddingsResponse),
        (client.get("/v1/models"), schemas.EmbeddingsModels),
        (client.get("/documents/music"), schemas.Document),
        (client.get("/terms/music"), schemas.DocumentTerms),
        (client.get("/info"), schemas.Info),
        (client.get("/livez"), schemas.Status),
        (client.get("/readyz"), schemas.Status),
        (client.get("/nix"), schemas.Problem),
    ):
        model.model_validate(answer.json())


def test_documents_are_found_by_ids_of_any_kind(client: TestClient) -> None:
    for document_id, path in (
        ("music", "music"),
        ('odd id/with "quotes" & ünï', "odd%20id%2Fwith%20%22quotes%22%20%26%20%C3%BCn%C3%AF"),
        ('odd id/with "quotes" & ünï', 'odd id/with "quotes" & ünï'),
    ):
        assert client.get(f"/documents/{path}").json()["id"] == document_id
