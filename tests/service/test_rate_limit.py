"""The limit on the rate: by key or address, in bounded memory."""

import json
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import RateLimitedError
from lightretriever.service.http.access import Caller, RateLimit
from lightretriever.service.http.api_keys import new_key
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings
from tests.service.process import Server
from tests.service.test_keys import bearer
from tests.support.keys import keys_file
from tests.support.wordings import raises

SLOW = Settings(deadline_ms=60_000, warm_up_queries=1, watch_s=0, rate_limit_per_s=0.001, rate_limit_burst=3)
BODY = {"query": "music"}


def test_a_burst_then_the_rate_then_a_burst_again() -> None:
    limit = RateLimit(2.0, 3)
    for _ in range(3):
        limit.take(("key", "a"), 100.0)
    with raises(RateLimitedError):
        limit.take(("key", "a"), 100.0)
    limit.take(("key", "b"), 100.0)  # another caller has a bucket of their own
    with pytest.raises(RateLimitedError):
        limit.take(("key", "a"), 100.4)
    limit.take(("key", "a"), 100.5)
    with pytest.raises(RateLimitedError):
        limit.take(("key", "a"), 100.6)
    for _ in range(3):
        limit.take(("key", "a"), 200.0)
    with pytest.raises(RateLimitedError):
        limit.take(("key", "a"), 200.0)


@pytest.mark.parametrize(("per_s", "wait"), [(2.0, 1), (0.1, 10), (0.001, 1000)])
def test_the_wait_is_told(per_s: float, wait: int) -> None:
    limit = RateLimit(per_s, 1)
    limit.take(("key", "a"), 5.0)
    with pytest.raises(RateLimitedError) as caught:
        limit.take(("key", "a"), 5.0)
    assert caught.value.headers == {"retry-after": str(wait)}
    limit.take(("key", "a"), 5.0 + wait)


def test_memory_is_bounded_and_the_least_recent_is_forgotten() -> None:
    limit = RateLimit(0.001, 1, callers=100)
    limit.take(("key", "kept"), 0.0)
    for number in range(1_000):
        limit.take(("key", f"caller {number}"), 0.0)
        with pytest.raises(RateLimitedError):
            limit.take(("key", "kept"), 0.0)
    assert len(limit) == 100
    limit.take(("key", "caller 1"), 0.0)  # forgotten, so its bucket is full


def test_addresses_have_buckets_of_their_own(tiny_bundle: Bundle) -> None:
    app = create_app(tiny_bundle.path, SLOW)
    with TestClient(app) as client:
        answers = [client.post("/search", json=BODY) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[-1].json()["kind"] == "rate_limited"
        assert int(answers[-1].headers["retry-after"]) > 900
        assert client.get("/documents/music").status_code == 429
        assert {client.get(path).status_code for path in ("/livez", "/readyz", "/info", "/metrics", "/")} <= {200, 503}
        for address, status in (
            ("192.0.2.1", 200),
            ("2001:db8::1", 200),
            ("2001:db8::2", 200),
            ("2001:db8::3", 200),
            ("2001:db8::4", 429),  # the same network
            ("2001:db8:1::4", 200),
            ("fe80::1%eth0", 200),
            ("::ffff:192.0.2.7", 200),
            ("::ffff:192.0.2.8", 200),  # no network: IPv4 addresses as a socket of IPv6 has them
            ("::ffff:192.0.2.9", 200),
            ("::ffff:192.0.2.10", 200),
            ("192.0.2.10", 200),  # the same caller, with three requests
            ("192.0.2.10", 200),
            ("::ffff:192.0.2.10", 429),
        ):
            other = TestClient(app, client=(address, 50_000))
            other.portal = client.portal
            assert other.post("/search", json=BODY).status_code == status, address


def test_keys_have_buckets_of_their_own_and_guessing_is_limited(tiny_bundle: Bundle, tmp_path: Path) -> None:
    (one, first), (two, second) = new_key("one", ["search"]), new_key("two", ["search"])
    settings = SLOW.model_copy(update={"api_keys_file": keys_file(tmp_path / "keys", first, second)})
    with TestClient(create_app(tiny_bundle.path, settings)) as client:
        for key in (one, two):
            found = [client.post("/search", json=BODY, headers=bearer(key)).status_code for _ in range(4)]
            assert found == [200, 200, 200, 429]
        guesses = [client.post("/search", json=BODY, headers=bearer(f"guess {n}")).status_code for n in range(5)]
        assert guesses == [401, 401, 401, 429, 429]


def test_what_a_request_costs_beyond_one_is_owed() -> None:
    limit = RateLimit(2.0, 3)
    caller: Caller = ("key", "a")
    limit.take(caller, 0.0)
    limit.take(caller, 0.0, cost=9, passed=True)  # 3 - 1 - 9 = -7
    with raises(RateLimitedError):
        limit.take(caller, 0.0)
    with pytest.raises(RateLimitedError):
        limit.take(caller, 3.9)
    limit.take(caller, 4.0)


def test_a_batch_costs_its_searches_and_a_wide_search_several(tiny_bundle: Bundle) -> None:
    settings = SLOW.model_copy(update={"rate_limit_per_s": 1e-3, "rate_limit_burst": 5})
    for path, body, left in (
        ("/search/batch", {"searches": [BODY] * 3}, 2),
        ("/search/batch", {"searches": [BODY] * 9}, 0),
        ("/search", BODY | {"candidates": 301}, 1),
        ("/search", BODY | {"candidates": 100}, 4),
    ):
        with TestClient(create_app(tiny_bundle.path, settings)) as client:
            assert client.post(path, json=body).status_code == 200
            found = [client.post("/search", json=BODY).status_code for _ in range(left + 1)]
            assert found == [200] * left + [429]


def test_a_proxy_names_the_client_and_never_a_key(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """A real server on an IPv6 socket: the proxy's address comes as ::ffff:127.0.0.1, and is trusted as 127.0.0.1."""
    key, entry = new_key("alice", ["search"])
    environment = {
        "LIGHTRETRIEVER_API_KEYS_FILE": str(keys_file(tmp_path / "keys", entry)),
        "LIGHTRETRIEVER_RATE_LIMIT_PER_S": "0.001",
        "LIGHTRETRIEVER_RATE_LIMIT_BURST": "2",
    }
    with Server(tiny_bundle.path, host="::", environment=environment) as server:
        port = server.port
        url = f"http://127.0.0.1:{port}/search"

        def ask(client: str, key: str) -> int:
            return httpx2.post(
                url, json=BODY, headers={"x-forwarded-for": client} | bearer(key), timeout=60
            ).status_code

        # Every text that is no address is one caller.
        names = ("key alice", "('key', 'alice')", "alice")
        assert [ask(name, "no key") for name in names] == [401, 401, 429]
        assert [ask(client, "no key") for client in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1")] == [
            401,
            401,
            401,
            429,
        ]
        assert [ask("192.0.2.1", key) for _ in range(3)] == [200, 200, 429]
        lines = [json.loads(line) for line in server.stop()[2].splitlines()]
    told = [(line["status"], line["client"], line.get("key")) for line in lines if line["event"] == "request"]
    assert told[2:4] == [(429, "unknown", None), (401, "192.0.2.1", None)]
    assert told[-1] == (429, "192.0.2.1", "alice")
