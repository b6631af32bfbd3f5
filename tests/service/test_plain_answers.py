"""Answers are written without the models that describe them, as the models would write them; and `GET /search?q=`."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from lightretriever.service.schemas import BatchResponse, SearchRequest, SearchResponse
from lightretriever.service.search.engine import SearchEngine
from tests.support.asking import without_times

REQUESTS: list[dict[str, Any]] = [
    {},
    {"k": 3, "offset": 2, "fields": ["title"]},
    {"fields": [], "snippets": {"fields": ["text"], "length": 40}},
    {"snippets": {}, "explain": True},
    {"mode": "dense"},
    {"mode": "sparse", "explain": True},
    {"fusion": {"method": "rrf"}},
    {"offset": 99, "k": 1, "candidates": 100},
]


def same(content: bytes, model: type[BaseModel]) -> bool:
    read = model.model_validate_json(content)
    return bool(json.loads(content) == json.loads(read.model_dump_json()))


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_an_answer_is_what_its_model_writes_and_what_the_process_answers(
    client: TestClient, engine: SearchEngine, request_: dict[str, Any]
) -> None:
    asked = {"query": "play some music", **request_}
    answer = client.post("/search", json=asked)
    assert answer.status_code == 200
    assert same(answer.content, SearchResponse)
    remote, local = answer.json(), engine.search(SearchRequest.model_validate(asked)).model_dump(mode="json")
    assert remote["timings_ms"].keys() == local["timings_ms"].keys()
    assert without_times(remote) == without_times(local)


def test_a_batch_is_what_its_model_writes(client: TestClient) -> None:
    searches = [{"query": "play some music", **request} for request in REQUESTS]
    answer = client.post("/search/batch", json={"searches": searches})
    assert answer.status_code == 200
    assert len(answer.json()["results"]) == len(REQUESTS)
    assert same(answer.content, BatchResponse)


def test_the_answer_is_that_of_a_post(client: TestClient) -> None:
    for address, body in (
        ("q=play+music", {"query": "play music"}),
        ("q=play%20music&k=3&offset=1&mode=dense&task=default", {
            "query": "play music", "k": 3, "offset": 1, "mode": "dense", "task": "default",
        }),
    ):  # fmt: skip
        got, posted = client.get(f"/search?{address}").json(), client.post("/search", json=body).json()
        assert got.pop("timings_ms").keys() == posted.pop("timings_ms").keys()
        assert got == posted
        assert got["hits"]
