"""Bad input over the whole application: always a 4xx problem that names the field, never a 500."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from hypothesis import given
from hypothesis import strategies as st
from lightretriever.artifacts.tokens.tokenizer import INVISIBLE
from lightretriever.service.errors import KINDS

JSON = {"content-type": "application/json"}


def post(client: TestClient, body: bytes | str, path: str = "/search") -> Response:
    return client.post(path, content=body, headers=JSON)


def assert_problem(answer: Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["kind"]) == (status, kind)
    return problem


def test_the_shape_of_an_error(client: TestClient) -> None:
    """Clients rely on this: change it with a new major version only."""
    body = {"query": " ", "k": 0, "fusion": {"method": "linear", "weights": {"dense": -1, "sparse": 1}}, "colour": 1}
    answer = client.post("/search", json=body, headers={"x-request-id": "my-id.1"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "my-id.1"
    assert answer.json() == {
        "type": "docs#error-invalid_request",
        "title": "The request is not valid",
        "status": 422,
        "detail": "query: the text is empty or white space only (3 more)",
        "instance": "/search",
        "kind": "invalid_request",
        "request_id": "my-id.1",
        "errors": [
            {"field": "query", "message": "the text is empty or white space only", "value": " "},
            {"field": "k", "message": "Input should be greater than or equal to 1", "value": 0},
            {
                "field": "fusion.weights.dense",
                "message": "Input should be greater than or equal to 0",
                "value": -1,
            },
            {"field": "colour", "message": "there is no such field", "value": 1},
        ],
    }


LINEAR = {"method": "linear"}


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("query", {}),
        ("query", {"query": None}),
        ("query", {"query": 5}),
        ("query", {"query": ""}),
        ("query", {"query": " \t\n\u2003"}),
        ("query", {"query": "x" * 10_001}),
        ("k", {"query": "a", "k": 0}),
        ("k", {"query": "a", "k": -1}),
        ("k", {"query": "a", "k": 1001}),
        ("k", {"query": "a", "k": 2**63}),
        ("k", {"query": "a", "k": 10**30}),
        ("k", {"query": "a", "k": "5"}),
        ("k", {"query": "a", "k": 5.5}),
        ("k", {"query": "a", "k": True}),
        ("k", {"query": "a", "k": [5]}),
        ("offset", {"query": "a", "offset": -1}),
        ("k", {"query": "a", "offset": 2**31 - 1}),
        ("offset", {"query": "a", "offset": 2**62}),
        ("candidates", {"query": "a", "candidates": 0}),
        ("candidates", {"query": "a", "candidates": 1001}),
        ("mode", {"query": "a", "mode": "both"}),
        ("mode", {"query": "a", "mode": ["hybrid"]}),
        ("task", {"query": "a", "task": "nope"}),
        ("task", {"query": "a", "task": "../../etc/passwd"}),
        ("task", {"query": "a", "task": 5}),
        ("fields", {"query": "a", "fields": ["nope"]}),
        ("fields", {"query": "a", "fields": "title"}),
        ("fields.0", {"query": "a", "fields": [5]}),
        ("fields", {"query": "a", "fields": ["title"] * 101}),
        ("deadline_ms", {"query": "a", "deadline_ms": 0}),
        ("deadline_ms", {"query": "a", "deadline_ms": 1e9}),
        ("allow_partial", {"query": "a", "allow_partial": "yes"}),
        ("unknown", {"query": "a", "unknown": 1}),
        ("fusion", {"query": "a", "fusion": "linear"}),
        ("fusion.method", {"query": "a", "fusion": {}}),
        ("fusion.method", {"query": "a", "fusion": {"method": "magic"}}),
        ("fusion.method", {"query": "a", "fusion": {"method": 5}}),
        ("fusion.method", {"query": "a", "fusion": {"method": None}}),
        ("fusion.unknown", {"query": "a", "fusion": {**LINEAR, "unknown": 1}}),
        ("fusion.rank_constant", {"query": "a", "fusion": {**LINEAR, "rank_constant": 1}}),
        ("fusion.rank_constant", {"query": "a", "fusion": {"method": "rrf", "rank_constant": -1}}),
        ("fusion.normalization", {"query": "a", "fusion": {**LINEAR, "normalization": "z"}}),
        ("fusion.weights", {"query": "a", "fusion": {**LINEAR, "weights": {"dense": 0, "sparse": 0}}}),
        ("fusion.weights.sparse", {"query": "a", "fusion": {**LINEAR, "weights": {"dense": 1}}}),
        ("fusion.weights.dense", {"query": "a", "fusion": {**LINEAR, "weights": {"dense": -0.1, "sparse": 1}}}),
        ("fusion.weights.dense", {"query": "a", "fusion": {**LINEAR, "weights": {"dense": 1e300, "sparse": 1}}}),
        ("fusion.weights.dense", {"query": "a", "fusion": {**LINEAR, "weights": {"dense": "NaN", "sparse": 1}}}),
        (
            "fusion.weights.linear",
            {"query": "a", "fusion": {**LINEAR, "weights": {"dense": 1, "sparse": 1, "linear": 1}}},
        ),
        ("linear", {"query": "a", "linear": 1}),
        ("body", ["a"]),
        ("body", "a"),
        ("body", None),
    ],
)
def test_the_field_at_fault_is_named(client: TestClient, field: str, body: object) -> None:
    problem = assert_problem(post(client, json.dumps(body)), 422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == [field]
    assert problem["detail"].startswith(f"{field}: ")


def test_fields_of_a_batch_are_named_with_their_place(client: TestClient) -> None:
    def fields(body: object) -> list[str]:
        problem = assert_problem(post(client, json.dumps(body), "/search/batch"), 422, "invalid_request")
        return [error["field"] for error in problem["errors"]]

    good = {"query": "a"}
    assert fields({}) == ["searches"]
    assert fields({"searches": []}) == ["searches"]
    assert fields({"searches": [good] * 65}) == ["searches"]
    assert fields({"searches": [good, {"query": "", "k": 0}]}) == ["searches.1.query", "searches.1.k"]
    assert fields({"searches": [good, {**good, "task": "nope"}, {**good, "k": 1500}]}) == [
        "searches.1.task",
        "searches.2.k",
    ]
    weights = {"fusion": {"method": "rrf", "weights": {"dense": -1, "sparse": 0}}}
    assert fields({"searches": [{**good, **weights}]}) == ["searches.0.fusion.weights.dense"]


def test_bad_texts_to_encode(client: TestClient) -> None:
    for body, field in (
        ({}, "text"),
        ({"text": " "}, "text"),
        ({"text": "a", "task": "b"}, "task"),
        ({"query": "a"}, "text"),
    ):
        problem = assert_problem(post(client, json.dumps(body), "/encode"), 422, "invalid_request")
        assert problem["errors"][0]["field"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"query=a",
        b'{"query": "\xff\xfe"}',
        '{"query": "a"}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b'{"query": "a", "k": NaN}',
        b'{"query": "a", "deadline_ms": Infinity}',
        b'{"query": "a", "deadline_ms": 1e999}',
        b'{"query": "\\ud800"}',
        b'{"query": "\\udc00 a"}',
        b'{"query": "a\x00"}',
        b'{"query": "a"} {}',
        b"[" * 100_000,
        b'{"query":' * 50_000,
        b"[" * 5_000 + b"]" * 5_000,
    ],
)
def test_what_is_no_json(client: TestClient, body: bytes) -> None:
    for path in ("/search", "/search/batch", "/encode"):
        assert_problem(post(client, body, path), 400, "invalid_json")


def test_nested_values_where_a_text_belongs(client: TestClient) -> None:
    nested: object = "a"
    for _ in range(900):
        nested = [nested]
    for body in ({"query": nested}, {"query": "a", "fusion": nested}, {"query": "a", "fields": nested}):
        assert_problem(post(client, json.dumps(body)), 422, "invalid_request")


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "", "json"]
)
def test_other_media_types(client: TestClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = client.post("/search", content=b'{"query": "a"}', headers=headers)
    assert_problem(answer, 415, "unsupported_media_type")


def test_media_types_of_json(client: TestClient) -> None:
    for content_type in ("application/json", "Application/JSON", "application/json; charset=utf-8"):
        answer = client.post("/search", content=b'{"query": "a"}', headers={"content-type": content_type})
        assert answer.status_code == 200
    packed = client.post("/search", content=b"", headers={**JSON, "content-encoding": "br"})
    assert "plain or as gzip" in assert_problem(packed, 415, "unsupported_media_type")["detail"]


def test_bodies_over_the_limit_announced_or_streamed(client: TestClient) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(1100):
            yield b" " * 1024

    limit = 1_048_576
    assert post(client, b'{"query": "a"}'.ljust(limit)).status_code == 200
    assert_problem(post(client, b'{"query": "a"}'.ljust(limit + 1)), 413, "body_too_large")
    assert_problem(client.post("/search", content=stream(), headers=JSON), 413, "body_too_large")


@pytest.mark.parametrize("path", ["/nix", "/search/", "/documentz", "/search/batch/1", "/static/../page.html"])
def test_unknown_paths(client: TestClient, path: str) -> None:
    assert_problem(client.get(path), 404, "route_not_found")


def test_documents_are_not_listed(client: TestClient) -> None:
    assert_problem(client.get("/documents"), 405, "method_not_allowed")


@pytest.mark.parametrize("document", ["music%0A", "%0Amusic", "mu%0Asic", "music%0D%0A"])
def test_a_line_break_is_part_of_the_id(client: TestClient, document: str) -> None:
    assert_problem(client.get(f"/documents/{document}"), 404, "document_not_found")


@pytest.mark.parametrize("document", ["", "nix", "doc-1000", "a/b", "%00", "%ff", "..%2f..%2fetc%2fpasswd", "x" * 5000])
def test_unknown_documents(client: TestClient, document: str) -> None:
    assert_problem(client.get(f"/documents/{document}"), 404, "document_not_found")


def test_other_methods(client: TestClient) -> None:
    for method, path, allowed in (
        ("GET", "/encode", "POST"),
        ("DELETE", "/search", "GET, HEAD, POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("POST", "/documents/a", "DELETE, GET, HEAD, PUT"),
    ):
        answer = client.request(method, path)
        problem = assert_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed
        assert method in problem["detail"]
        assert allowed in problem["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "ꙮ ᚠᛇᚻ 𒀀𒁀 ⠓⠑⠇⠇⠕",
        "🎵🧑‍🚀🏳️‍🌈",
        "\u0000\u0001\x7f",
        "\u202eright to left",
        "ﷺ" * 500,
        "e" + "\u0301" * 500,
        "<|endoftext|><|im_start|>",
        '"; DROP TABLE documents; --',
        "<script>alert(1)</script>",
        "a " * 4_999,
        " ".join(str(number) for number in range(2_000)),
    ],
)
def test_odd_queries_are_answered(client: TestClient, query: str) -> None:
    for mode in ("hybrid", "dense", "sparse"):
        answer = client.post("/search", json={"query": query, "mode": mode})
        assert answer.status_code == 200
        assert answer.json()["degraded"] == []
    assert client.post("/encode", json={"text": query}).status_code == 200


def test_ten_thousand_tokens_are_too_many_characters(client: TestClient) -> None:
    problem = assert_problem(client.post("/search", json={"query": "word " * 10_000}), 422, "invalid_request")
    assert problem["errors"][0]["field"] == "query"
    assert "50000 characters, at most 10000" in problem["detail"]


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
        {"query": "a", "fields": ["t" * 100_000] * 5},
        {"query": "a", "fields": ["t"] * 100},
        {"query": "a", "fusion": {"method": "m" * 900_000}},
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
    assert missing.json()["errors"] == [
        {
            "field": "searches",
            "message": "a batch has at most 64 searches; send the others in another request",
            "value": 5000,
        }
    ]
    assert len(client.get("/documents/" + "x" * 50_000).content) < 1_000


@given(body=st.binary(max_size=200))
def test_random_bytes_are_never_a_mistake_of_the_service(client: TestClient, body: bytes) -> None:
    assert post(client, body).status_code in {400, 422}


JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("query", "k", "offset", "mode", "task", "fusion", "candidates", "fields", "deadline_ms", "allow_partial")


@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUE, max_size=4))
def test_random_values_are_never_a_mistake_of_the_service(client: TestClient, fields: dict[str, object]) -> None:
    # A tiny deadline is valid, and then late.
    answer = client.post("/search", content=json.dumps({"query": "play music", **fields}), headers=JSON)
    assert answer.status_code in ({200, 400, 422, 504} if "deadline_ms" in fields else {200, 400, 422})
    if answer.status_code != 200:
        assert answer.json()["kind"] in KINDS


@given(query=st.text(min_size=1))
def test_every_text_is_answered_or_refused(client: TestClient, query: str) -> None:
    answer = post(client, json.dumps({"query": query}))
    # The standard library writes lone surrogates, which are no text.
    assert answer.status_code == (200 if re.sub(rf"[\s{INVISIBLE}]", "", query) else 422)
