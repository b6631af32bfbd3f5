"""How the service refuses wrong requests: a 4xx problem that names the field, never a 500. All kinds stand in one file,
problems.txt: status, kind and fields, not words.

python -m tests.service.test_problems    write the file again, after a change; look at the difference
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.tokens.tokenizer import INVISIBLE
from lightretriever.service.errors import KINDS
from lightretriever.service.schemas import SearchRequest
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import make_tiny_bundle, tiny_documents

HEAD = "# Wrong requests after the status, kind and fields of their answers; written by tests/service/test_problems.py"
REQUEST = re.compile(r"(?:POST|GET|PUT|DELETE|PATCH) /.*")
FILE = Path(__file__).with_name("problems.txt")
FIELDS: dict[str, FieldKind] = {"source": "keyword", "year": "number", "day": "date"}
SERVICES = {
    "words": {"vocabulary": "words", "fields": FIELDS},
    "tokens": {"vocabulary": "tokens"},
    "sparse": {"vocabulary": "words", "dense": False},
    "matched": None,
}
"""Bundles by the name of their part of the file: with declared fields; with terms that are tokens; without a dense leg;
with thresholds of a match."""


@contextmanager
def serving(service: str, folder: Path) -> Iterator[TestClient]:
    options: Any = SERVICES[service]
    documents = [replace(one, more={"source": "wiki", "day": "2024-05-31"}) for one in tiny_documents(20)]
    if options is None:
        bundle = make_meaningful_bundle(folder / service)
    else:
        bundle = make_tiny_bundle(folder / service, documents=documents, **options)
    with client_of(bundle, SETTINGS) as client:
        yield client


def expanded(value: Any) -> Any:
    """The value with `{times: [VALUE, COUNT]}` written out."""
    if isinstance(value, list):
        return [expanded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"times"}:
        part, count = value["times"]
        return expanded(part) * count
    return {name: expanded(one) for name, one in value.items()}


def answered(client: TestClient, request: str) -> str:
    """Return the request after status, kind and wrong fields of its answer."""
    method, path, *body = request.split(" ", 2)
    content = expanded(orjson.loads(body[0])) if body else None
    answer = client.request(method, path, **({} if content is None else {"json": content}))
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    fields = [f"{error['field']}: {error['message']}" for error in problem["errors"]]
    if fields:
        assert problem["detail"] == fields[0] + (f" ({len(fields) - 1} more)" if len(fields) > 1 else "")
    names = ", ".join(error["field"] for error in problem["errors"])
    return f"{problem['status']} {problem['kind']} [{names}] {request}"


def parts() -> dict[str, list[str]]:
    """Return the lines of each part of the file."""
    sections = FILE.read_text("utf-8").split("\n## ")[1:]
    return {name: lines for name, *lines in (section.rstrip("\n").split("\n") for section in sections)}


def answers(service: str, lines: list[str], folder: Path) -> list[str]:
    """Return the lines of a part, with the service's answers to the requests at their ends."""
    with serving(service, folder) as client:
        return [answered(client, request[0]) for line in lines if (request := REQUEST.search(line))]


def titles() -> list[str]:
    return [f"{[*error.statuses]} {kind}: {error.title}" for kind, error in KINDS.items()]


@pytest.mark.parametrize("service", SERVICES)
def test_wrong_requests_are_refused_by_kind_and_field(tmp_path: Path, service: str) -> None:
    assert answers(service, parts()[service], tmp_path) == parts()[service]


def test_every_kind_has_its_title() -> None:
    assert titles() == parts()["titles"]
    assert parts().keys() == {"titles", *SERVICES}


JSON = {"content-type": "application/json"}


def assert_problem(answer: Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["kind"]) == (status, kind)
    return problem


def test_the_shape_of_an_error(client: TestClient) -> None:
    """Clients rely on this: change it with a new major version only."""
    body = {"query": " ", "k": 0, "fusion": {"method": "linear", "weights": {"dense": -1, "sparse": 1}}, "colour": 1}
    answer = client.post("/search", json=body, headers={"x-request-id": "my-id.1"})
    assert answer.headers["x-request-id"] == "my-id.1"
    names = ", ".join(SearchRequest.model_fields)
    assert assert_problem(answer, 422, "invalid_request") == {
        "type": "openapi.json#/x-error-kinds/invalid_request",
        "title": "The request is not valid",
        "status": 422,
        "detail": "query: the text is empty or white space only (3 more)",
        "instance": "/search",
        "kind": "invalid_request",
        "request_id": "my-id.1",
        "errors": [
            {"field": "query", "message": "the text is empty or white space only", "value": " "},
            {"field": "k", "message": "Input should be greater than or equal to 1", "value": 0},
            {"field": "fusion.weights.dense", "message": "Input should be greater than or equal to 0", "value": -1},
            {"field": "colour", "message": f"there is no such field; there are: {names}", "value": 1},
        ],
    }


def test_media_types_and_lengths_of_bodies(client: TestClient) -> None:
    for content_type in ("Application/JSON", "application/json; charset=utf-8"):
        answer = client.post("/search", content=b'{"query": "a"}', headers={"content-type": content_type})
        assert answer.status_code == 200
    sizes = (1 << 20, (1 << 20) + 1)
    whole, larger = (client.post("/search", content=b'{"query":"a"}'.ljust(size), headers=JSON) for size in sizes)
    assert whole.status_code == 200
    assert_problem(larger, 413, "invalid_body")


def test_other_methods(client: TestClient) -> None:
    for method, path, allowed in (
        ("GET", "/encode", "POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("POST", "/documents/a", "DELETE, GET, HEAD, PUT"),
    ):
        answer = client.request(method, path)
        problem = assert_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed
        assert method in problem["detail"]
        assert allowed in problem["detail"]


def test_a_body_of_too_many_values_is_not_read(client: TestClient) -> None:
    hostile = {"query": "a", "filter": {"field": "section", "in": [{}] * 60_000}}
    problem = assert_problem(client.post("/search", json=hostile), 422, "invalid_request")
    assert problem["errors"][0]["field"] == "body"
    assert "more than 50,000 commas" in problem["detail"]
    assert client.post("/search", json={"query": "music" + ",[{" * 3_000}).status_code == 200


def test_errors_stay_small_whatever_was_sent(client: TestClient) -> None:
    bodies: tuple[dict[str, object], ...] = (
        {"query": "a", **{f"unknown{number}": number for number in range(5_000)}},
        {"query": "a", "x" * 100_000: "y" * 100_000},
        {"searches": [{}] * 5_000},
        {"query": ["z" * 100_000]},
        {"query": "a", "task": "t" * 100_000, "mode": "m" * 100_000},
        {"query": "a", "fields": ["t"] * 100},
        {"query": "a", "fusion": {"method": ["m" * 900_000]}},
    )
    for body in bodies:
        answer = client.post("/search", json=body)
        assert answer.status_code == 422
        assert len(answer.content) < 10_000
        assert len(answer.json()["errors"]) <= 20
    batch = client.post("/search/batch", json={"searches": [{"query": "a", "fields": ["t"] * 100}] * 64})
    assert len(batch.json()["errors"]) == 20
    assert "(6399 more)" in batch.json()["detail"]
    missing = client.post("/search/batch", json={"searches": [{}] * 5_000})
    (error,) = missing.json()["errors"]
    assert (error["field"], error["value"]) == ("searches", 5000)
    unknown = client.get("/documents/" + "x" * 50_000)
    assert_problem(unknown, 404, "document_not_found")
    assert len(unknown.content) < 1_000


JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("query", "k", "offset", "mode", "task", "fusion", "candidates", "fields", "deadline_ms", "allow_partial")


@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON_VALUE, max_size=4))
def test_random_values_are_never_a_mistake_of_the_service(client: TestClient, fields: dict[str, object]) -> None:
    # A tiny deadline is valid, and then late.
    answer = client.post("/search", content=json.dumps({"query": "play music", **fields}), headers=JSON)
    assert answer.status_code in ({200, 400, 422, 504} if "deadline_ms" in fields else {200, 400, 422})
    if answer.status_code != 200:
        assert answer.json()["kind"] in KINDS


@given(query=st.text(min_size=1))
def test_every_text_is_answered_or_refused(client: TestClient, query: str) -> None:
    answer = client.post("/search", content=json.dumps({"query": query}), headers=JSON)
    # The standard library writes lone surrogates, which are no text.
    assert answer.status_code == (200 if re.sub(rf"[\s{INVISIBLE}]", "", query) else 422)


@pytest.mark.parametrize(
    ("fields", "field", "remedy"),
    [
        ({"top_k": 5}, "top_k", ", k, offset, "),
        ({"explane": True}, "explane", ", snippets, explain"),
        ({"filter": {"category": "kitchen"}}, "filter.field", 'write {"field": "…", "eq": …}'),
        ({"fusion": "rrf"}, "fusion", 'write {"method": "rrf"}'),
        ({"sort": "price"}, "sort", 'write {"field": "…"'),
        ({"fields": "title"}, "fields", 'write ["title"]'),
        ({"filter": {"field": "year", "equals": 1}}, "filter.equals", 'write {"field": "…", "eq": …}'),
        ({"filter": {"field": "year", "eq": [1, 2]}}, "filter.eq", "in takes several"),
        ({"snippets": True}, "snippets", "write {}"),
        ({"k": 5000}, "k", "setting 'max_candidates'"),
        ({"k": 50, "candidates": 20}, "k", "field 'candidates'"),
        ({"candidates": 5000}, "candidates", "setting 'max_candidates'"),
    ],
)
def test_what_to_write_instead_is_told(client: TestClient, fields: dict[str, object], field: str, remedy: str) -> None:
    answer = client.post("/search", json={"query": "music", **fields})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field
    assert remedy in answer.json()["detail"]


def test_an_address_that_is_not_utf_8_is_refused(client: TestClient) -> None:
    for text in ("caf%E9", "%FF", "a%C3", "%ED%A0%80", "caf%e9+au+lait"):
        answer = client.get(f"/search?q={text}")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "q")
        assert "UTF-8" in answer.json()["detail"]
    assert client.get("/search?q=caf%C3%A9").status_code == 200


def write() -> None:
    """Ask the file's questions again, and write the answers."""
    with TemporaryDirectory() as folder:
        made = {name: answers(name, lines, Path(folder)) for name, lines in parts().items() if name in SERVICES}
    sections = ["\n".join([f"## {name}", *lines]) for name, lines in ({"titles": titles()} | made).items()]
    FILE.write_text("\n".join([HEAD, *sections, ""]), "utf-8")


if __name__ == "__main__":
    write()
