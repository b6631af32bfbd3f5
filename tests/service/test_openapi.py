"""The API against its own description: by its examples, and by the routes there are."""

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from lightretriever.service import schemas
from lightretriever.service.errors import KINDS
from lightretriever.service.http.routes import ROUTES
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.tiny import BundleOf

# A valid query may have no token, a valid window may be too small for k, a valid deadline may be too short.
CONFIG = {
    "checks": {
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "422", "504"]},
        "negative_data_rejection": {"expected-statuses": ["400", "404", "406", "413", "415", "422", "429"]},
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "504"]},
    }
}


@pytest.fixture(scope="module")
def description(client: TestClient) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_every_route_is_described(description: dict[str, Any]) -> None:
    routes = {(route.path, route.method.lower()) for route in ROUTES}
    described = {(path, method) for path, methods in description["paths"].items() for method in methods}
    assert described == {(path.replace("{id:any}", "{id}"), method) for path, method in routes}
    for path, method in described:
        operation = description["paths"][path][method]
        assert operation["summary"]
        assert operation["description"]
        assert "500" in operation["responses"]
        late = path.startswith(("/search", "/documents", "/terms", "/encode"))
        assert ("504" in operation["responses"]) == late
        assert ("503" in operation["responses"]) == (late or path.startswith(("/readyz", "/admin")))
        for status, response in operation["responses"].items():
            ((media, content),) = response["content"].items()
            if status != "200":
                assert media == "application/problem+json"
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                kinds = re.findall(r"`(\w+)`: ", response["description"])
                assert kinds
                assert all(int(status) in KINDS[kind].statuses for kind in kinds)
        if method == "post" and not path.startswith("/admin"):
            ((media, content),) = operation["requestBody"]["content"].items()
            assert media == ("application/x-ndjson" if path == "/documents" else "application/json")
            assert description["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]["examples"]


def test_references_addresses_kinds_and_limits(description: dict[str, Any]) -> None:
    """Addresses lead to a collection, and through a proxy that takes a prefix off."""
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description)))
    assert names <= description["components"]["schemas"].keys()
    assert {"SearchRequest", "DocumentTerms", "Problem"} <= names
    assert description["servers"] == [{"url": "."}]
    listed = {kind: error["statuses"] for kind, error in description["x-error-kinds"].items()}
    assert listed == {kind: [*error.statuses] for kind, error in KINDS.items()}


MODELS: dict[str, type[BaseModel]] = {
    "/search": schemas.SearchRequest,
    "/search/batch": schemas.BatchRequest,
    "/encode": schemas.EncodeRequest,
}


@pytest.mark.parametrize(("vocabulary", "dense"), [("words", True), ("tokens", True), ("tokens", False)])
def test_any_bundle_answers_the_examples_of_its_description(bundle_of: BundleOf, vocabulary: str, dense: bool) -> None:
    with client_of(bundle_of(vocabulary, dense), SETTINGS) as client:
        for path, model in MODELS.items():
            for example in model.model_json_schema()["examples"]:
                answer = client.post(path, json=example)
                assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("model", [schemas.DocumentWrite, schemas.DocumentLine])
def test_examples_of_documents_are_valid(model: type[BaseModel]) -> None:
    for example in model.model_json_schema()["examples"]:
        model.model_validate(example)


def test_answers_have_the_documented_shape(client: TestClient) -> None:
    """Strict models, unknown fields refused: more than the description could say. Searches: test_answers.py."""
    for answer, model in (
        (client.post("/encode", json={"text": "music"}), schemas.EncodeResponse),
        (client.get("/documents/music"), schemas.Document),
        (client.get("/terms/music"), schemas.DocumentTerms),
        (client.get("/info"), schemas.Info),
        (client.get("/livez"), schemas.Status),
        (client.get("/readyz"), schemas.Status),
        (client.get("/nix"), schemas.Problem),
    ):
        model.model_validate(answer.json())
