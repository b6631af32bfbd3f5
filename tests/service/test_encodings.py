"""Answers and bodies packed by gzip, on a real server."""

import gzip
import http.client
import json
import socket

import orjson
import pytest
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine

from tests.service.live import running

JSON = {"content-type": "application/json"}
Answered = tuple[int, http.client.HTTPMessage, bytes]


def ask(url: str, body: bytes, headers: dict[str, str]) -> Answered:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("POST", "/search", body, {**JSON, **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def without_times(content: bytes) -> object:
    return {name: value for name, value in orjson.loads(content).items() if name != "timings_ms"}


def test_large_answers_are_packed_for_who_asks(url: str) -> None:
    large, small = (json.dumps({"query": "music", "k": k}).encode() for k in (100, 1))
    _, plain_headers, plain = ask(url, large, {})
    assert (plain_headers["content-encoding"], plain_headers["vary"]) == (None, "Accept-Encoding")
    status, headers, packed = ask(url, large, {"accept-encoding": "gzip, br"})
    assert (status, headers["content-encoding"], headers["vary"]) == (200, "gzip", "Accept-Encoding")
    assert int(headers["content-length"]) == len(packed) < len(plain) / 3
    assert without_times(gzip.decompress(packed)) == without_times(plain)
    assert headers["x-request-id"]
    status, headers, content = ask(url, small, {"accept-encoding": "gzip"})
    assert (status, headers["content-encoding"], len(orjson.loads(content)["hits"])) == (200, None, 1)


def test_packed_bodies_are_read(url: str) -> None:
    body = b'{"query": "music"}'
    plain = without_times(ask(url, body, {})[2])
    members = gzip.compress(body[:5]) + gzip.compress(b"") + gzip.compress(body[5:])  # as `cat a.gz b.gz` gives
    for packed in (gzip.compress(body), gzip.compress(body.ljust(1 << 20)), gzip.compress(body, 0), members):
        for name in ("GZIP", "gzip", "x-gzip"):
            status, _, content = ask(url, packed, {"content-encoding": name})
            assert (status, without_times(content)) == (200, plain)


@pytest.mark.parametrize(
    ("header", "packed"),
    [
        ("gzip", True),
        ("GZIP;Q=0.5, br", True),
        ("x-gzip", True),
        ("br, *", True),
        ("*;q=0.1", True),
        ("identity;q=0.5, gzip;q=1.0", True),
        ("gzip;q=0.001", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("notgzip", False),
        ("gzipped", False),
        ("br;q=1, gzip;q=none", False),
        ("gzip;level=1", False),
    ],
)
def test_answers_are_packed_for_who_takes_gzip(url: str, header: str, packed: bool) -> None:
    large = json.dumps({"query": "music", "k": 100}).encode()
    _, headers, content = ask(url, large, {"accept-encoding": header})
    assert (headers["content-encoding"], headers["vary"]) == ("gzip" if packed else None, "Accept-Encoding")
    assert orjson.loads(gzip.decompress(content) if packed else content)["hits"]


def test_a_client_that_has_closed_its_own_side_is_answered(engine: SearchEngine) -> None:
    body = b'{"query": "music"}'
    head = b"POST /search HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with running(create_app(engine)) as server:
        for sent in (head % len(body) + body, b"GET /info HTTP/1.1\r\nhost: x\r\n\r\n"):
            with socket.create_connection((server.host, server.port), timeout=60) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                received = b"".join(iter(lambda: client.recv(65_536), b""))  # the server closes after its answer
            assert received.startswith(b"HTTP/1.1 200 OK")
            assert orjson.loads(received.partition(b"\r\n\r\n")[2])
        with socket.create_connection((server.host, server.port), timeout=60) as client:
            client.sendall(head % (len(body) + 1) + body)  # one byte is missing
            client.shutdown(socket.SHUT_WR)
            assert client.recv(65_536) == b""
