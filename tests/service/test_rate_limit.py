"""The limit on the rate: by key or address, in bounded memory."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import RateLimitedError
from lightretriever.service.http.access import RateLimit
from lightretriever.service.http.api_keys import new_key
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings

from tests.service.test_keys import bearer, write

SLOW = Settings(deadline_ms=60_000, warm_up_queries=1, watch_s=0, rate_limit_per_s=0.001, rate_limit_burst=3)
BODY = {"query": "music"}


def test_a_burst_then_the_rate_then_a_burst_again() -> None:
    limit = RateLimit(2.0, 3)
    for _ in range(3):
        limit.take("a", 100.0)
    with pytest.raises(RateLimitedError, match="2 requests a second are allowed, and 3 at once"):
        limit.take("a", 100.0)
    limit.take("b", 100.0)  # another caller has a bucket of their own
    with pytest.raises(RateLimitedError):
        limit.take("a", 100.4)
    limit.take("a", 100.5)
    with pytest.raises(RateLimitedError):
        limit.take("a", 100.6)
    for _ in range(3):
        limit.take("a", 200.0)
    with pytest.raises(RateLimitedError):
        limit.take("a", 200.0)


@pytest.mark.parametrize(("per_s", "wait"), [(2.0, 1), (0.1, 10), (0.001, 1000)])
def test_the_wait_is_told(per_s: float, wait: int) -> None:
    limit = RateLimit(per_s, 1)
    limit.take("a", 5.0)
    with pytest.raises(RateLimitedError) as caught:
        limit.take("a", 5.0)
    assert caught.value.headers == {"retry-after": str(wait)}
    limit.take("a", 5.0 + wait)


def test_memory_is_bounded_and_the_least_recent_is_forgotten() -> None:
    limit = RateLimit(0.001, 1, callers=100)
    limit.take("kept", 0.0)
    for number in range(1_000):
        limit.take(f"caller {number}", 0.0)
        with pytest.raises(RateLimitedError):
            limit.take("kept", 0.0)
    assert len(limit) == 100
    limit.take("caller 1", 0.0)  # forgotten, so its bucket is full


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
        ):
            other = TestClient(app, client=(address, 50_000))
            other.portal = client.portal
            assert other.post("/search", json=BODY).status_code == status, address


def test_keys_have_buckets_of_their_own_and_guessing_is_limited(tiny_bundle: Bundle, tmp_path: Path) -> None:
    (one, first), (two, second) = new_key("one", ["search"]), new_key("two", ["search"])
    settings = SLOW.model_copy(update={"api_keys_file": write(tmp_path / "keys", first, second)})
    with TestClient(create_app(tiny_bundle.path, settings)) as client:
        for key in (one, two):
            found = [client.post("/search", json=BODY, headers=bearer(key)).status_code for _ in range(4)]
            assert found == [200, 200, 200, 429]
        guesses = [client.post("/search", json=BODY, headers=bearer(f"guess {n}")).status_code for n in range(5)]
        assert guesses == [401, 401, 401, 429, 429]
