"""`GET /search?q=`, for the address bar."""

import pytest
from fastapi.testclient import TestClient


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


@pytest.mark.parametrize(
    ("address", "field", "message"),
    [
        ("", "q", "required"),
        ("q=", "q", "at least 1 character"),
        ("q=%20", "q", "empty or white space only"),
        ("q=music&k=ten", "k", "valid integer"),
        ("q=music&k=1e3", "k", "valid integer"),
        ("q=music&k=0", "k", "greater than or equal to 1"),
        ("q=music&k=5000", "k", "only 1000 candidates"),
        ("q=music&offset=-1", "offset", "greater than or equal to 0"),
        ("q=music&mode=best", "mode", "'hybrid'"),
        ("q=music&q=text", "q", "the parameter is there twice"),
        ("query=music", "query", "there is no such parameter, only q, k, offset, mode, task"),
        ("q=music&explain=true", "explain", "there is no such parameter"),
        ("q=music&task=none", "task", "no such task"),
    ],
)
def test_what_is_wrong_is_named(client: TestClient, address: str, field: str, message: str) -> None:
    answer = client.get(f"/search?{address}")
    assert answer.status_code == 422, answer.text
    [error] = answer.json()["errors"]
    assert error["field"] == field
    assert message in error["message"]
