"""Answers and bodies packed by gzip, on a real server."""

import gzip
import http.client
import json
from typing import Any

import orjson

from tests.support.asking import without_times

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


def untimed(content: bytes) -> dict[str, Any]:
    return without_times(orjson.loads(content))


def test_large_answers_are_packed_for_who_asks(url: str) -> None:
    large, small = (json.dumps({"query": "music", "k": k}).encode() for k in (100, 1))
    _, plain_headers, plain = ask(url, large, {})
    assert (plain_headers["content-encoding"], plain_headers["vary"]) == (None, "Accept-Encoding")
    for accepted in ("gzip, br", "br, gzip;q=0.5"):
        status, headers, packed = ask(url, large, {"accept-encoding": accepted})
        assert (status, headers["content-encoding"], headers["vary"]) == (200, "gzip", "Accept-Encoding")
        assert int(headers["content-length"]) == len(packed) < len(plain) / 3
        assert untimed(gzip.decompress(packed)) == untimed(plain)
        assert headers["x-request-id"]
    assert ask(url, large, {"accept-encoding": "br"})[1]["content-encoding"] is None
    status, headers, content = ask(url, small, {"accept-encoding": "gzip"})
    assert (status, headers["content-encoding"], len(orjson.loads(content)["hits"])) == (200, None, 1)


def test_packed_bodies_are_read(url: str) -> None:
    body = b'{"query": "music"}'
    plain = untimed(ask(url, body, {})[2])
    for packed in (gzip.compress(body), gzip.compress(body.ljust(1 << 20)), gzip.compress(body, 0)):
        for name in ("GZIP", "gzip", "x-gzip"):
            status, _, content = ask(url, packed, {"content-encoding": name})
            assert (status, untimed(content)) == (200, plain)


EMPTY, WHOLE = gzip.compress(b""), gzip.compress(b'{"query": "music"}')


def test_a_packed_body_is_one_member_of_gzip_and_no_more_than_a_body_may_have(url: str) -> None:
    """Reading all members would take a time that grows with the square of their number."""
    members = (EMPTY * 50_000, EMPTY * 2, EMPTY + WHOLE, WHOLE + EMPTY, WHOLE + WHOLE, WHOLE + b"\0")
    damaged = (WHOLE + b"x" * 1_000_000, WHOLE[:-1], WHOLE[:12], WHOLE[:-8] + bytes(8), b"", b"\x1f\x8b")
    codings = ("deflate", "br", "zstd", "gzip, identity", "gzip, gzip", "x" * 5_000)
    for expected, coding, bodies in (
        (400, "gzip", [*members, *damaged]),
        (413, "gzip", [gzip.compress(bytes((1 << 20) + 1)), gzip.compress(bytes(64 << 20))]),
        *((415, coding, [WHOLE]) for coding in codings),
    ):
        for body in bodies:
            status, _, content = ask(url, body, {"content-encoding": coding})
            assert (status, orjson.loads(content)["kind"]) == (expected, "invalid_body"), (coding, body[:40])
