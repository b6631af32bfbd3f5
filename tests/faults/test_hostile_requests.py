"""Hostile requests over a real connection, and clients that cost more than they may: an answer that says what is wrong,
never a 5xx, and the service lives and answers others meanwhile."""

import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

import httpx2
import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import KINDS
from tests.faults.conftest import Figure
from tests.service.process import Server
from tests.support.wire import dial

OK: Final = (200,)
ANY_4XX: Final = tuple(range(400, 500))


class Hostile(NamedTuple):
    """Bytes, and what may come back: statuses, and the kind of problem. Without a kind it is the web server that
    answers, before the application: in plain text, or by closing the connection (status 0)."""

    name: str
    sent: bytes
    statuses: tuple[int, ...]
    kind: str | None = None
    field: str | None = None


class Reply(NamedTuple):
    """What came back; status 0: the connection was closed without a word."""

    status: int
    headers: bytes
    body: bytes


def request(body: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    """A search with this body."""
    lines = ["POST /search HTTP/1.1", "Host: x", "Connection: close", f"Content-Type: {content_type}", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def ask(url: str, sent: bytes, pause_s: float = 0.2, wait_s: float = 10.0) -> Reply:
    """Send bytes and read what comes. When nothing comes for `pause_s`, the server is told that nothing follows, and
    drops what is under way; if it still waits `wait_s` later, it has nothing to say."""
    received = b""
    with dial(url) as connection, suppress(OSError):
        connection.sendall(sent)
        for wait in (pause_s, wait_s):
            connection.settimeout(wait)
            with suppress(TimeoutError):
                while part := connection.recv(65536):
                    received += part
                break
            connection.shutdown(socket.SHUT_WR)
    head, _, body = received.partition(b"\r\n\r\n")
    return Reply(int(head.split()[1]) if head.startswith(b"HTTP/") else 0, head, body)


GOOD: Final = b'{"query": "play music"}'


def refused(name: str, sent: bytes, status: int = 400, field: str | None = None) -> Hostile:
    """A request that has a problem of the body, or with status 422 of a field."""
    return Hostile(name, sent, (status,), "invalid_request" if status == 422 else "invalid_body", field)


def _escapes() -> Iterator[Hostile]:
    """Half characters and odd ones."""
    for escape in (r"\ud800", r"\udfff", r"\udc00\ud800", r"a\ud83d", r"\ud83d\ud83d\ude00"):
        yield refused(escape, request(b'{"query": "%s"}' % escape.encode()))
    for escape in (r"\u0000", r"a\u0000b", r"\u0000\uffff", r"\ufeffa", r"a\u202e\u2066", r"\u0007\u001b[2J"):
        yield Hostile(escape, request(b'{"query": "%s"}' % escape.encode()), OK)


def _json() -> Iterator[Hostile]:
    numbers = {
        "k": (b"1" + b"0" * 40, b"-1", b"1e2", b"9223372036854775808", b"-9223372036854775809", b"1.0000000000000001"),
        "offset": (b"1e308", b"1E+2", b"18446744073709551616"),
        "deadline_ms": (b"-0", b"1e308", b"-1e-400", b"99999999999999999999999"),
    }
    for field, values in numbers.items():
        for number in values:
            sent = request(b'{"query": "a", "%s": %s}' % (field.encode(), number))
            yield refused(f"{field} {number[:30]!r}", sent, 422, field)
    for body in (
        b'{"query": "a", "k": 01}', b'{"query": "a", "k": +1}', b'{"query": "a", "k": 0x1}', b'{"query": "a", "k": .5}',
        b'{"query": "a", "k": 1e400}', b'{"query": "a", "k": 1e}', b'{"query": "a",}', b"{'query': 'a'}",
        b'{"query": "a"} // why', b'{"query": "a\tb"}', b'{"query": "\\x41"}', b'{"query": "\\u12"}', b'{query: "a"}',
        b'{"query": "a"', b'"', b"\x00", b"", b"query=a", b"\xef\xbb\xbf{}", b'{"query": "a"} {}',
        b'{"query": "a\x00"}', b'{"query": "a", "k": NaN}', b'{"query": "a", "deadline_ms": Infinity}',
        b'{"query": "\xff\xfe"}', b'{"a":' * 100_000, b"[" * 1_000_000, b'{"query": "\xc0\xaf"}',
        b'{"query": "\xed\xa0\x80"}', b'{"query": "\xf4\x90\x80\x80"}', b'{"query": "a", "k": 1%s}' % (b"0" * 400),
    ):  # fmt: skip
        yield refused(repr(body[:40]), request(body))
    nested = b'{"query": "a", "fusion": ' + b'{"fusion": ' * 500 + b"1" + b"}" * 501
    yield refused("nested fields", request(nested), 422, "fusion.method")
    twice = b'{"query": "a", "k": 1, "k": "many", "query": "b"}'
    yield refused("the last of equal keys counts", request(twice), 422, "k")
    yield refused("a key with NUL", request(b'{"query": "a", "\\u0000": 1}'), 422, "\x00")
    yield refused("an empty key", request(b'{"query": "a", "": 1}'), 422)
    yield refused("a key like a path", request(b'{"query": "a", "fusion.method": 1}'), 422)


def _bodies() -> Iterator[Hostile]:
    for kind in (
        "application/json, application/json", "application/json+x", "*/*", "application/", "application json",
        "text/json", "multipart/form-data; boundary=x", "application/problem+json", "x" * 10_000, "\xff\xfe", ";",
    ):  # fmt: skip
        yield refused(f"content type {kind[:40]!r}", request(GOOD, content_type=kind), 415)
    for charset in ("utf-16", "utf-32", "latin-1"):
        body = '{"query": "é"}'.encode(charset)
        yield refused(f"charset {charset}", request(body, content_type=f"application/json; charset={charset}"))
    yield refused("packed, but not said so", request(gzip.compress(GOOD)))
    yield Hostile("chunks that stop", request(b"17\r\n" + GOOD[:5], "Transfer-Encoding: chunked"), (0,))
    yield refused("a length too short", request(GOOD, "Content-Length: 5"))
    yield Hostile("a length too long", request(GOOD, "Content-Length: 500"), (0,))
    yield refused("a length beyond the limit", request(GOOD, "Content-Length: 99999999999"), 413)
    yield refused("no length at all", request(GOOD, "Content-Length: 0"))


def _protocol() -> list[Hostile]:
    line = b"POST /search HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    get = b"GET /info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    return [
        Hostile("a thousand headers", request(GOOD, *(f"X-{n}: {n}" for n in range(1000))), OK),
        Hostile("a header of 60 kB", request(GOOD, "X-A: " + "a" * 60_000), (*OK, 0, *ANY_4XX)),
        Hostile("header bytes beyond ASCII", get + b"X-\xff: \xff\r\n\r\n", (*OK, 0, 400)),
        Hostile("an odd request id", get + b"X-Request-ID: \x7f\xff%0d%0aX: y\r\n\r\n", (*OK, 0, 400)),
        Hostile("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)), (0, 400)),
        Hostile("a path of 100 kB", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", (0, *ANY_4XX)),
        Hostile("a path with NUL", b"GET /documents/%00%0d%0a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", (404,),
                "document_not_found"),
        Hostile("a whole address", b"GET http://x/nix HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", (404,),
                "not_found"),
        Hostile("a promise of more", line + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", (0, 100, *ANY_4XX)),
        Hostile("nothing", b"", (0,)),
    ]  # fmt: skip


SEED = 20_263
CLIENTS = 16


@pytest.fixture(scope="module")
def server(tiny_bundle: Bundle) -> Iterator[Server]:
    with Server(tiny_bundle.path, log_level="error") as server:
        yield server


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return server.url


def assert_serves(url: str) -> None:
    found = httpx2.post(f"{url}/search", json={"query": "music", "k": 3}, timeout=60)
    assert found.status_code == 200
    assert found.json()["degraded"] == []
    assert len(found.json()["hits"]) == 3


def test_hostile_requests_are_refused_by_name(url: str, figure: Figure) -> None:
    requests = [*_escapes(), *_json(), *_bodies(), *_protocol()]
    for one in requests:
        # Who may say nothing is not waited for.
        reply = ask(url, one.sent) if 0 in one.statuses else ask(url, one.sent, pause_s=60)
        assert reply.status in one.statuses, (one.name, reply)
        if one.kind is not None:
            problem = json.loads(reply.body)
            assert b"content-type: application/problem+json" in reply.headers, one.name
            assert problem["kind"] == one.kind in KINDS, one.name
            assert problem["detail"], one.name
            assert len(reply.body) < 10_000, one.name
            if one.kind == "invalid_request":
                fields = [error["field"] for error in problem["errors"]]
                assert one.field is None or one.field in fields, (one.name, fields)
    assert_serves(url)
    figure("bad_requests_failed", 0, f"of {len(requests)}")


PIECES = (b"\r\n", b"\x00", b": ", b"chunked", b"\xff", b"%", b"\r\n\r\n")


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """A request with up to four runs of bytes replaced, by random ones, by others of it, by a piece or by nothing."""
    changed = bytearray(content)
    for _ in range(int(random.integers(1, 5))):
        place, other = random.integers(len(changed) or 1, size=2).tolist()
        size, own = random.integers((20, 200)).tolist()
        pieces = (random.bytes(size), bytes(changed[other : other + own]), random.choice(PIECES), b"")
        changed[place : place + random.integers(4) * size // 3] = pieces[random.integers(4)]
    return bytes(changed)


def test_mutated_requests_bring_no_mistake_of_the_service(url: str, full: bool, server: Server, figure: Figure) -> None:
    random, count = np.random.default_rng(SEED), 40_000 if full else 60
    chunks = b"5\r\n" + GOOD[:5] + b"\r\n12\r\n" + GOOD[5:] + b"\r\n0\r\n\r\n"
    whole = [request(GOOD), request(chunks, "Transfer-Encoding: chunked"), request(b'{"searches": []}')]
    sent = [mutated(whole[number % len(whole)], random) for number in range(count)]
    statuses = set()
    with ThreadPoolExecutor(CLIENTS) as clients:  # most of the time is spent on what gets no answer
        for reply in clients.map(lambda one: ask(url, one, pause_s=0.5, wait_s=1.0), sent):
            assert reply.status < 500, reply
            statuses.add(reply.status)
    assert {200, 400} <= statuses
    assert server.process.poll() is None
    assert_serves(url)
    figure("mutated_requests_failed", 0, f"of {count:,}")


def post(url: str, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    answer = httpx2.post(url + path, content=body, headers={"content-type": "application/json", **headers}, timeout=60)
    return answer.status_code, answer.json()["kind"]


@pytest.mark.parametrize(("opening", "closing"), [(b'{"not":', b"}"), (b'{"and":[', b"]}"), (b'{"or":[', b"]}")])
def test_a_deep_filter_is_refused_on_every_route(url: str, opening: bytes, closing: bytes) -> None:
    expected = {(422, "invalid_request"), (400, "invalid_body")}
    for depth in (21, 100, 192, 193, 500, 2_000, 10_000):
        condition = opening * depth + b'{"field":"year","eq":1}' + closing * depth
        body = b'{"query":"music","filter":' + condition + b"}"
        assert post(url, "/search", body) in expected
        assert post(url, "/search", body, origin="https://example.org") in expected
        assert post(url, "/search", body, connection="close") in expected
        assert post(url, "/search/batch", b'{"searches":[' + body + b"]}") in expected
        with dial(url) as old:
            head = f"POST /search HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            old.sendall(head.encode() + body)
            assert old.recv(12)[9:12] in (b"422", b"400")
        assert httpx2.get(f"{url}/livez", timeout=60).status_code == 200


def test_a_megabyte_of_bad_values_and_an_endless_head_cost_little_memory(url: str, server: Server) -> None:
    bodies: list[dict[str, Any]] = [
        {"query": "music", "filter": {"field": "year", "in": [{}] * 300_000}},
        {"query": "music", "filter": {"and": [{}] * 300_000}},
        {"query": "music", "facets": [{}] * 300_000},
        {"query": "music", **{f"unknown{number}": 1 for number in range(60_000)}},
        {"searches": [{"query": "music", "filter": {"field": "year", "in": [None] * 4_000}}] * 40},
    ]
    for body in bodies:
        path = "/search/batch" if "searches" in body else "/search"
        content = json.dumps(body, separators=(",", ":")).encode()[: 1 << 20]
        before = server.peak_mb
        assert post(url, path, content) in ((422, "invalid_request"), (400, "invalid_body"), (413, "invalid_body"))
        assert server.peak_mb - before < 400
    for piece in (b"a" * 65_536, b"a: b\r\n" * 8_192):  # one header, and many
        before = server.peak_mb
        with dial(url) as connection, pytest.raises(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nx: " + piece * 1_000)
        assert server.peak_mb - before < 64
    assert httpx2.get(f"{url}/livez").status_code == 200


def test_clients_that_read_nothing_are_closed(url: str, server: Server) -> None:
    before = server.peak_mb
    with ExitStack() as clients:
        for connection in [clients.enter_context(dial(url)) for _ in range(20)]:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            with suppress(BlockingIOError):  # the server reads no more of it
                for _ in range(200):
                    connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
        began = perf_counter()
        assert httpx2.get(f"{url}/livez", timeout=60).status_code == 200
        folder = Path(f"/proc/{server.process.pid}/fd")
        # A listening socket is there many times; its name has the number of the socket.
        while sum(name.startswith("socket:") for name in {file.resolve().name for file in folder.iterdir()}) > 12:
            assert perf_counter() - began < 60
            sleep(0.1)
    assert server.peak_mb - before < 300  # without a bound, gigabytes
