"""Requests that could be framed in two ways, or are no HTTP at all, over a raw socket against the real server.

RFC 9112, 6.3: what can't be framed for certain gets 400, and nothing after it on the connection is taken for a request.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.process import Server
from tests.support.wire import POST as HEAD
from tests.support.wire import dial, received

BODY = b'{"query":"music","k":1,"fields":[]}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(tiny_bundle: Bundle) -> Iterator[Server]:
    with Server(tiny_bundle.path, log_level="warning") as server:
        yield server


@pytest.fixture(scope="module")
def port(server: Server) -> int:
    return server.port


def statuses(port: int, sent: bytes) -> list[int]:
    """The statuses of all answers until the server closes the connection."""
    with dial(port) as connection:
        connection.sendall(sent)
        answers = received(connection)
    return [int(status) for status in re.findall(rb"(?:^|(?<=[}\n.]))HTTP/1.1 (\d+) ", answers)]


AMBIGUOUS = {
    "length and chunks": LENGTH + CHUNKED,
    "chunks and length": CHUNKED + LENGTH,
    "two lengths": LENGTH + b"Content-Length: 5\r\n",
    "two equal lengths": LENGTH + LENGTH,
    "a list of lengths": b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY)),
    "a length with a sign": b"Content-Length: +%d\r\n" % len(BODY),
    "a length in hexadecimal": b"Content-Length: 0x%x\r\n" % len(BODY),
    "an empty length": b"Content-Length: \r\n",
    "a length beyond numbers": b"Content-Length: " + b"9" * 30 + b"\r\n",
    "another coding before chunked": b"Transfer-Encoding: gzip, chunked\r\n",
    "another coding after chunked": b"Transfer-Encoding: chunked, gzip\r\n",
    "identity": b"Transfer-Encoding: identity\r\n",
    "identity and a length": b"Transfer-Encoding: identity\r\n" + LENGTH,
    "chunked twice in a line": b"Transfer-Encoding: chunked, chunked\r\n",
    "chunked in two lines": CHUNKED + CHUNKED,
    "chunked before a comma": b"Transfer-Encoding: chunked,\r\n",
    "chunked and a vertical tab": b"Transfer-Encoding: chunked\x0b\r\n",
    "an empty coding": b"Transfer-Encoding: \r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n",
    "a coding in a folded line": b"X-A: b\r\n Transfer-Encoding: chunked\r\n" + LENGTH,
    "another folded line": b"X-A: a\r\n b\r\n" + LENGTH,
    "a space before the colon of a coding": b"Transfer-Encoding : chunked\r\n",
    "a space before the colon of a length": b"Content-Length : %d\r\n" % len(BODY),
    "a space before the name": b" Content-Length: %d\r\n" % len(BODY),
    "a line that ends with LF alone": b"X-A: b\nTransfer-Encoding: chunked\r\n" + LENGTH,
    "a line that ends with CR alone": b"X-A: b\rTransfer-Encoding: chunked\r\n" + LENGTH,
    "NUL in a name": b"Transfer-Encoding\x00: chunked\r\n" + LENGTH,
    "another host": LENGTH + b"Host: y\r\n",
}


@pytest.mark.parametrize("body", [BODY, CHUNKS], ids=["plain", "chunks"])
@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_request_is_refused_and_nothing_after_it_is_read(port: int, headers: bytes, body: bytes) -> None:
    assert statuses(port, HEAD + headers + b"\r\n" + body + NEXT) == [400]


@pytest.mark.parametrize("headers", [LENGTH + CHUNKED, b"Transfer-Encoding: identity\r\n", b"X-A: a\r\n b\r\n"])
def test_those_before_an_ambiguous_one_are_answered_first(port: int, headers: bytes) -> None:
    search = HEAD + LENGTH + b"\r\n" + BODY
    assert statuses(port, search + NEXT + search + HEAD + headers + b"\r\n" + CHUNKS + NEXT) == [200, 200, 200]


UNAMBIGUOUS = {
    "a length": (LENGTH, BODY),
    "chunks": (CHUNKED, CHUNKS),
    "upper case": (CHUNKED.upper(), CHUNKS),
    "white space around the coding": (b"Transfer-Encoding: \t chunked \r\n", CHUNKS),
    "white space around the length": (b"Content-Length: \t%d \t\r\n" % len(BODY), BODY),
    "a coding with an underscore is another header": (LENGTH + b"Transfer_Encoding: chunked\r\n", BODY),
    "a length with an underscore is another header": (CHUNKED + b"Content_Length: 5\r\n", CHUNKS),
    "an extension of a chunk": (CHUNKED, CHUNKS.replace(b"\r\n", b";a=b\r\n", 1)),
    "trailers": (CHUNKED, CHUNKS[:-2] + b"X-A: b\r\nHost: y\r\n\r\n"),
    "an upgrade": (LENGTH + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n", BODY),
    "an upgrade and chunks": (CHUNKED + b"Connection: upgrade\r\nUpgrade: websocket\r\n", CHUNKS),
}


@pytest.mark.parametrize(("headers", "body"), UNAMBIGUOUS.values(), ids=UNAMBIGUOUS)
def test_an_unambiguous_request_is_answered_and_so_is_the_next(port: int, headers: bytes, body: bytes) -> None:
    assert statuses(port, HEAD + headers + b"\r\n" + body + LAST) == [200, 200]


def test_a_whole_address_is_read_as_its_path(port: int) -> None:
    search = HEAD.replace(b" /", b" http://x/") + LENGTH + b"\r\n" + BODY
    assert statuses(port, search + LAST.replace(b" /livez", b" https://y:1/livez?a=b")) == [200, 200]
    for address in (b"http://x", b"http://", b"http:///livez", b"http://x:y/livez", b"http:/livez"):
        assert statuses(port, NEXT + NEXT.replace(b"/livez", address) + NEXT) == [200]
        assert statuses(port, NEXT.replace(b"/livez", address) + NEXT) == [400]


def test_a_trailer_is_no_header(port: int) -> None:
    with dial(port) as connection:
        connection.sendall(HEAD + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"X-Request-ID: from-a-trailer\r\n\r\n" + LAST)
        answers = received(connection)
    assert b"x-request-id: " in answers
    assert b"from-a-trailer" not in answers


MALFORMED = [
    b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n",  # more than 64 KiB
    # Chunks are of HTTP/1.1 alone.
    *(
        HEAD.replace(b"HTTP/1.1", version) + CHUNKED + b"\r\n" + CHUNKS
        for version in (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"RTSP/1.0")
    ),
    *(line + b"\r\nHost: x\r\n\r\n" for line in (b"GET /livez", b"GET /livez HTTP/2.0", b"CONNECT x:1 HTTP/1.1")),
    *(line + b"\r\nHost: x\r\n\r\n" for line in (b"BREW / HTTP/1.1", b"GET livez HTTP/1.1")),
    *(HEAD + CHUNKED + b"\r\n" + chunk + b"\r\n" for chunk in (b"zz", b"-5", b"0x5", b"1\r\nab", b"f" * 17)),
    HEAD + CHUNKED + b"\r\n5\n",
]


@pytest.mark.parametrize("sent", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_request_of_http_1_is_refused(port: int, sent: bytes) -> None:
    assert statuses(port, sent + NEXT) == [400]


def test_any_number_of_pipelined_requests_is_answered(port: int) -> None:
    assert statuses(port, (HEAD + CHUNKED + b"\r\n" + CHUNKS) * 600 + LAST) == [200] * 601
    assert statuses(port, NEXT * 20_000 + LAST) == [200] * 20_001


def test_a_body_with_a_length_has_no_chunks(port: int) -> None:
    """Lines that look like sizes of chunks are white space, and numbers in a text, of JSON."""
    body = b'{"query":"music"' + b"\r\n1\r\n" * 2000 + b"}"
    assert statuses(port, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + LAST) == [400, 200]
    blank = b"\r\n" * 5000 + b'{"query":"music"}'
    assert statuses(port, HEAD + b"Content-Length: %d\r\n\r\n" % len(blank) + blank + LAST) == [200, 200]


def test_pipelined_requests_take_little_memory(port: int, server: Server) -> None:
    """A client that sends and never reads: the server reads on only as fast as it answers."""
    statuses(port, HEAD + LENGTH + b"\r\n" + BODY + LAST)
    before = server.peak_mb
    burst = (HEAD + LENGTH + b"\r\n" + BODY) * 10_000
    connections = [dial(port) for _ in range(20)]
    for connection in connections:
        connection.setblocking(False)
    for _ in range(20):
        for connection in connections:
            with suppress(BlockingIOError):  # the server reads no more of it
                connection.send(burst)
        sleep(0.05)
    for connection in connections:
        connection.close()
    assert statuses(port, LAST) == [200]
    assert server.peak_mb - before < 100


def test_malformed_requests_make_few_lines(tiny_path: Path) -> None:
    with Server(tiny_path) as server:
        port = server.port
        for _ in range(200):
            for headers in (b"Transfer-Encoding:\r\n chunked\r\n", LENGTH + CHUNKED, b"\x00"):
                assert statuses(port, HEAD + headers + b"\r\n" + CHUNKS) == [400]
            assert statuses(port, b"POST /nix HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"\r\nzz\r\n") in ([400], [404])
        code, _, errors = server.stop()
    assert code == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    malformed = [line for line in lines if line["event"] == "malformed requests"]
    assert sum(line["count"] for line in malformed) == 800
    assert {"last", "client"} <= set(malformed[0])
    assert {line["event"] for line in lines} <= {"malformed requests", "request", "stopped"}
    assert not [line for line in lines if "exception" in line]
    assert max(map(len, errors.splitlines())) < 500
