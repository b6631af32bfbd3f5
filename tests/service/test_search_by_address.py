"""`GET /search?q=`, for the address bar."""

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
