"""Requests and clients that cost more than they may, against a real server: it lives, and answers others meanwhile."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.process import Server
from tests.support.wire import dial

FILTER = {"field": "year", "eq": 1}


@pytest.fixture(scope="module")
def server(tiny_bundle: Bundle) -> Iterator[Server]:
    environment = {"LIGHTRETRIEVER_LOG_LEVEL": "error"}
    with Server(tiny_bundle.path, environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return server.url


def nested(depth: int, operator: str) -> bytes:
    """A search with a filter that has `depth` operators around a condition."""
    opening, closing = (b'{"not":', b"}") if operator == "not" else (b'{"%s":[' % operator.encode(), b"]}")
    return b'{"query":"music","filter":' + opening * depth + json.dumps(FILTER).encode() + closing * depth + b"}"


def post(url: str, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    answer = httpx2.post(url + path, content=body, headers={"content-type": "application/json", **headers}, timeout=60)
    return answer.status_code, answer.json()["kind"]


@pytest.mark.parametrize("operator", ["not", "and", "or"])
@pytest.mark.parametrize("depth", [21, 100, 192, 193, 500, 2_000, 10_000])
def test_a_deep_filter_is_refused_on_every_route(url: str, depth: int, operator: str) -> None:
    body = nested(depth, operator)
    expected = {(422, "invalid_request"), (400, "invalid_body")}
    assert post(url, "/search", body) in expected
    assert post(url, "/search", body, origin="https://example.org") in expected
    assert post(url, "/search", body, connection="close") in expected
    assert post(url, "/search/batch", b'{"searches":[' + body + b"]}") in expected
    with dial(url) as old:
        head = f"POST /search HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        old.sendall(head.encode() + body)
        assert old.recv(12)[9:12] in (b"422", b"400")
    assert httpx2.get(f"{url}/livez", timeout=60).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"query": "music", "filter": {"field": "year", "in": [{}] * 300_000}},
        {"query": "music", "filter": {"and": [{}] * 300_000}},
        {"query": "music", "facets": [{}] * 300_000},
        {"query": "music", **{f"unknown{number}": 1 for number in range(60_000)}},
        {"searches": [{"query": "music", "filter": {"field": "year", "in": [None] * 4_000}}] * 40},
    ],
    ids=["in", "and", "facets", "fields", "batch"],
)
def test_a_megabyte_of_bad_values_costs_little_memory(url: str, server: Server, body: dict[str, object]) -> None:
    path = "/search/batch" if "searches" in body else "/search"
    content = json.dumps(body, separators=(",", ":")).encode()[: 1 << 20]
    before = server.peak_mb
    assert post(url, path, content) in ((422, "invalid_request"), (400, "invalid_body"), (413, "invalid_body"))
    assert server.peak_mb - before < 400


@pytest.mark.parametrize("piece", [b"a" * 65_536, b"a: b\r\n" * 8_192], ids=["one header", "many headers"])
def test_an_endless_head_is_cut_off(url: str, server: Server, piece: bytes) -> None:
    before = server.peak_mb
    head = b"GET / HTTP/1.1\r\nHost: a\r\nx: " + piece * 1_000
    with dial(url) as connection, pytest.raises(ConnectionError):
        connection.sendall(head)
    assert server.peak_mb - before < 64
    assert httpx2.get(f"{url}/livez").status_code == 200


def test_clients_that_read_nothing_are_closed(url: str, server: Server) -> None:
    silent = [dial(url) for _ in range(20)]
    before = server.peak_mb
    for connection in silent:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        try:
            for _ in range(200):
                connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
        except BlockingIOError:
            pass  # the server reads no more of it
    began = perf_counter()
    assert httpx2.get(f"{url}/livez", timeout=60).status_code == 200
    folder = Path(f"/proc/{server.process.pid}/fd")
    while sum(1 for file in folder.iterdir() if "socket" in str(file.resolve())) > 12:
        assert perf_counter() - began < 60
        sleep(0.1)
    assert server.peak_mb - before < 300  # without a bound, gigabytes
    for connection in silent:
        connection.close()
