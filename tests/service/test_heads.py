"""Which requests are plain searches, told by their heads."""

import pytest
from lightretriever.service.http.fastpath.heads import Heads

LIMIT = 1000
HOST = "Host: x"
JSON = "Content-Type: application/json"
PLAIN = [HOST, JSON, "Content-Length: 15"]


def head(lines: list[str], start: str = "POST /search HTTP/1.1") -> bytes:
    return "\r\n".join([start, *lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    "lines",
    [
        PLAIN,
        ["content-type: Application/JSON ; charset=utf-8", "CONTENT-LENGTH:15"],
        [*PLAIN, "Connection: keep-alive", "Accept: */*", "Accept-Encoding: gzip", "User-Agent: some/1.0"],
        [*PLAIN, "Connection: Keep-Alive", "X-Forwarded-For: 10.0.0.1"],
    ],
)
def test_plain_searches(lines: list[str]) -> None:
    data, heads = head(lines), Heads(LIMIT)
    for _ in ("read", "remembered"):
        found = heads.find(data + b'{"query": "a"}')
        assert found is not None
        assert (found.size, found.length, found.request_id, found.authorization) == (len(data), 15, "", "")


def test_headers_that_count() -> None:
    found = Heads(LIMIT).find(head([*PLAIN, "X-Request-Id: my-id", "Authorization: Bearer \xe9"]))
    assert found is not None
    assert (found.request_id, found.authorization) == ("my-id", "Bearer \xe9")


@pytest.mark.parametrize(
    "lines",
    [
        [HOST, "Content-Length: 15"],
        [HOST, "Content-Type: text/plain", "Content-Length: 15"],
        [HOST, "Content-Type: application/jsonx", "Content-Length: 15"],
        [HOST, JSON],
        [HOST, JSON, "Content-Length: 0"],
        [HOST, JSON, f"Content-Length: {LIMIT + 1}"],
        [HOST, JSON, "Content-Length: -1"],
        [HOST, JSON, "Content-Length: 1_5"],
        [HOST, JSON, "Content-Length: 15", "Content-Length: 15"],
        [HOST, JSON, "Content-Length: 15", "Content-Length: 16"],
        [*PLAIN, JSON],
        [*PLAIN, "Connection: close"],
        [*PLAIN, "Connection: keep-alive, upgrade", "Upgrade: websocket"],
        [*PLAIN, "Transfer-Encoding: chunked"],
        [*PLAIN, "Expect: 100-continue"],
        [*PLAIN, "Content-Encoding: gzip"],
        [*PLAIN, "Origin: http://elsewhere"],
        [*PLAIN, "Proxy-Connection: close"],
        [*PLAIN, "no header at all"],
        [*PLAIN, "Bad\x00name: a"],
        [*PLAIN, "x: " + "y" * 5000],
    ],
)
def test_what_is_not_plain(lines: list[str]) -> None:
    heads = Heads(LIMIT)
    assert heads.find(head(lines)) is None
    assert heads.find(head(lines)) is None


@pytest.mark.parametrize(
    "start",
    [
        "GET /search HTTP/1.1",
        "POST /search HTTP/1.0",
        "POST /search/batch HTTP/1.1",
        "POST /search?k=3 HTTP/1.1",
        "POST //search HTTP/1.1",
        "POST http://x/search HTTP/1.1",
        "post /search HTTP/1.1",
    ],
)
def test_other_requests(start: str) -> None:
    assert Heads(LIMIT).find(head(PLAIN, start)) is None


def test_a_head_that_is_not_all_there() -> None:
    whole = head(PLAIN)
    heads = Heads(LIMIT)
    assert [end for end in range(len(whole) + 1) if heads.find(whole[:end])] == [len(whole)]


def test_few_heads_are_remembered() -> None:
    heads = Heads(LIMIT)
    for number in range(5_000):
        assert heads.find(head([*PLAIN, f"X-Request-Id: {number}"])) is not None
    assert 0 < len(heads) <= 512
