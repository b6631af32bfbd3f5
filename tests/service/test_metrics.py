"""The metrics count what happened, and nothing else."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings
from tests.support.asking import samples
from tests.support.waiting import wait_until

STAGES = ("tokenize", "encode", "dense", "sparse", "rescore", "fuse")


def found_in(client: TestClient) -> dict[tuple[str, ...], float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return samples(answer.text)


@pytest.fixture
def fresh_client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    with TestClient(create_app(tiny_bundle.path, Settings(deadline_ms=60_000, warm_up_queries=2))) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def test_searches_are_timed_by_stage_and_the_warm_up_is_not_among_them(fresh_client: TestClient) -> None:
    for mode, count in (("hybrid", 3), ("sparse", 2)):
        for _ in range(count):
            assert fresh_client.post("/search", json={"query": "music", "mode": mode}).status_code == 200
    fresh_client.post("/search/batch", json={"searches": [{"query": "a"}, {"query": "b", "mode": "dense"}]})
    found = found_in(fresh_client)
    backends = {"dense": "faiss", "sparse": "lucene"}
    counts = {stage: found["stage_seconds_count", backends.get(stage, ""), stage] for stage in STAGES}
    assert counts == {"tokenize": 7, "encode": 5, "dense": 5, "sparse": 6, "rescore": 4, "fuse": 7}
    assert found["search_seconds_count",] == 7
    assert found["stage_seconds_bucket", "", "+Inf", "tokenize"] == 7
    assert 0 < found["stage_seconds_sum", "", "tokenize"] < found["search_seconds_sum",]
    smallest = min(float(key[2]) for key in found if key[0] == "stage_seconds_bucket")
    assert smallest == 1e-5


def test_gauges_tell_the_state_and_requests_and_errors_count(fresh_client: TestClient, tiny_bundle: Bundle) -> None:
    """Requests by route and status, errors by kind."""
    before = found_in(fresh_client)
    assert before["ready",] == 1
    assert before["requests_in_flight",] == 1
    assert before["documents",] == 120
    assert {key[1] for key in before if key[0] == "abandoned_calls"} == {"requests", "dense"}
    (labels,) = (key[1:] for key in before if key[0] == "bundle_info")
    assert tiny_bundle.manifest.digest in labels
    assert before["process_open_fds",] > 0
    fresh_client.post("/search", json={"query": "a"})
    fresh_client.post("/search", json={"query": ""})
    fresh_client.post("/search", content=b"{", headers={"content-type": "application/json"})
    fresh_client.get("/documents/music")
    fresh_client.get("/documents/nix")
    fresh_client.get("/a/path/nobody/knows")
    fresh_client.get("/encode")
    found = found_in(fresh_client)
    assert {key[1]: value for key, value in found.items() if key[0] == "errors_total"} == {
        **{key[1]: value for key, value in before.items() if key[0] == "errors_total"},
        **dict.fromkeys(
            ("invalid_request", "invalid_body", "document_not_found", "not_found", "method_not_allowed"), 1
        ),
    }
    requests = {key[1:]: value for key, value in found.items() if key[0] == "request_seconds_count"}
    assert requests["/search", "200"] == requests["/search", "422"] == requests["/search", "400"] == 1
    assert requests["/documents/{id:any}", "200"] == requests["/documents/{id:any}", "404"] == 1
    assert requests["unknown", "404"] == 1
    assert not any("nobody" in label for labels in requests for label in labels)
