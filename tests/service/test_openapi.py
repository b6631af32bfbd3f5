"""The API against its own description: by its examples, and by the routes there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel

from lightretriever.service import schemas
from lightretriever.service.errors import KINDS
from lightretriever.service.http.openapi import EXAMPLES
from lightretriever.service.http.routes import router
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.written import ENTRIES, KEY

# A valid query may have no token, a valid window may be too small for k, a valid deadline may be too short.
CONFIG = {
    "checks": {
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "422", "504"]},
        "negative_data_rejection": {"expected-statuses": ["400", "404", "406", "413", "415", "422", "429"]},
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "504"]},
    }
}


MODELS = {
    "/search": "SearchRequest",
    "/search/batch": "BatchRequest",
    "/encode": "EncodeRequest",
    "/v1/embeddings": "EmbeddingsRequest",
}


@pytest.fixture(scope="module")
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
        late = path.startswith(("/search", "/documents", "/terms", "/encode", "/v1/embeddings"))
        assert ("504" in operation["responses"]) == late
        assert ("503" in operation["responses"]) == (late or path.startswith(("/readyz", "/admin")))
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


POSTED = {"/search": 15, "/search/batch": 1, "/encode": 1, "/v1/embeddings": 2}
"""Examples of each route."""


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({"vocabulary": "words", "fields": {"year": "number"}}, set()),
        ({"vocabulary": "words", "fields": {"released": "number"}}, {"filter", "groups", "boosts", "sort", "list"}),
        ({"vocabulary": "words"}, {"filter", "groups", "boosts", "sort", "list"}),
        ({"vocabulary": "tokens", "fields": {"year": "number"}}, {"typing"}),
        (
            {"vocabulary": "words", "dense": False, "fields": {"year": "number"}},
            {"dense", "diversity", "rrf", "weights"},
        ),
    ],
)
def test_a_bundle_answers_the_examples_of_its_description(
    tmp_path: Path, options: dict[str, Any], left_out: set[str]
) -> None:
    bundle = make_tiny_bundle(tmp_path / "bundle", **options)
    assert {path: len(EXAMPLES["requests"][model]) for path, model in MODELS.items()} == POSTED
    with client_of(bundle, SETTINGS) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, model in MODELS.items():
            examples = paths[path]["post"]["requestBody"]["content"]["application/json"]["examples"]
            assert EXAMPLES["requests"][model].keys() - examples == (left_out if path == "/search" else set())
            for example in examples.values() if path != "/v1/embeddings" or options.get("dense", True) else ():
                answer = client.post(path, json=example["value"])
                assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("options", [{"vocabulary": "words"}, {"vocabulary": "tokens"}, {"dense": False}])
def test_a_service_writes_the_examples_of_its_description(tmp_path: Path, options: dict[str, Any]) -> None:
    bundle = make_tiny_bundle(tmp_path / "bundle", **options)
    settings = SETTINGS.model_copy(update={"live": tmp_path / "live", "api_keys_file": keys_file(tmp_path, *ENTRIES)})
    with client_of(bundle, settings) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        paths = client.get("/openapi.json").json()["paths"]
        whole = paths["/documents/{id}"]["put"]["requestBody"]["content"]["application/json"]["examples"]
        assert whole.keys() == {"whole"}  # without a model, a text needs its vector or impacts
        assert client.put("/documents/new", json=whole["whole"]["value"]).status_code == 200
        lines = paths["/documents"]["post"]["requestBody"]["content"]["application/x-ndjson"]["examples"]
        body = "".join(json.dumps(example["value"]) + "\n" for example in lines.values())
        answer = client.post("/documents", content=body, headers={"content-type": "application/x-ndjson"})
        assert answer.status_code == 200, answer.text
        assert [done["result"] for done in answer.json()["results"]] == ["created", "deleted"]


def test_examples_of_documents_are_valid() -> None:
    written: dict[str, type[BaseModel]] = {"DocumentWrite": schemas.DocumentWrite, "DocumentLine": schemas.DocumentLine}
    assert EXAMPLES["requests"].keys() - MODELS.values() == written.keys()
    for name, model in written.items():
        for example in EXAMPLES["requests"][name].values():
            model.model_validate(example["value"])


def test_examples_of_answers_are_valid() -> None:
    for name, example in EXAMPLES["answers"].items():
        model: type[BaseModel] = getattr(schemas, name)
        assert model.model_validate(example).model_dump(exclude_unset=True) == example


def test_answers_have_the_documented_shape(client: TestClient) -> None:
    """Strict models, unknown fields refused: more than the description could say. Searches: test_plain_answers.py."""
    for answer, model in (
        (client.post("/encode", json={"text": "music"}), schemas.EncodeResponse),
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
    odd = 'odd id/with "quotes" & ünï'
    for path in (odd, "odd%20id%2Fwith%20%22quotes%22%20%26%20%C3%BCn%C3%AF"):
        assert client.get(f"/documents/{path}").json()["id"] == odd
