"""Connections of the real server: how long they are kept, how many there may be, and how they end when it stops; bodies
and answers that are packed by gzip; and requests that could be framed in two ways, or are no HTTP at all.

RFC 9112, 6.3: what can't be framed for certain gets 400, and nothing after it on the connection is taken for a request.
"""

import gzip
import http.client
import json
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import sleep

import httpx2
import pytest

from lightretriever.service.serving.connection import Connection
from tests.service.live import live_bundles
from tests.service.process import Server
from tests.support.asking import samples, without_times
from tests.support.waiting import wait_until
from tests.support.wire import POST, dial, received

BODY = b'{"query":"music","k":1,"fields":[]}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
SEARCH = POST + LENGTH + b"\r\n" + BODY
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def ask(connection: socket.socket, request: bytes = LIVE) -> http.client.HTTPResponse:
    """Return the answer. ConnectionError if there is none."""
    connection.sendall(request)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed its side, or does so within a minute."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_connection_without_a_whole_request_is_closed_after_keep_alive_s(tiny_path: Path) -> None:
    def dribble(connection: socket.socket) -> None:
        connection.sendall(LIVE[:-2])
        while True:
            connection.sendall(b"x: y\r\n")
            sleep(0.1)

    with live_bundles(tiny_path, keep_alive_s=1) as hasty:
        for sent in (b"", LIVE, LIVE + LIVE, LIVE + LIVE[:-2], LIVE[:20]):
            with closing(dial(hasty)) as connection:
                connection.sendall(sent)
                answers = received(connection)
            assert answers.count(b"HTTP/1.1 200 OK") == sent.count(b"\r\n\r\n")
        with closing(dial(hasty)) as connection, pytest.raises(ConnectionError):
            dribble(connection)


def test_a_connection_that_was_idle_for_seconds_is_still_there(url: str) -> None:
    with closing(dial(url)) as connection:
        ask(connection)
        sleep(6)
        assert ask(connection, SEARCH).status == 200


@pytest.fixture
def narrow(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Connection, "limit", 8)
    with live_bundles(tiny_path) as url:
        yield url


def test_the_connections_that_wait_longest_make_room(narrow: str) -> None:
    """Whether they had a request or not. The last ones are answered, and so is one that works."""
    idle = [dial(narrow) for _ in range(8)]
    for connection in idle[:4]:
        ask(connection)
    with closing(dial(narrow)) as busy:
        busy.sendall(POST + LENGTH + b"\r\n")
        wait_until(lambda: samples(httpx2.get(f"{narrow}/metrics").text)["requests_in_flight",] == 2)  # with this one
        silent = [dial(narrow) for _ in range(50)]
        assert all(is_closed(connection) for connection in (*idle, *silent[:43]))
        assert all(ask(connection).status == 200 for connection in silent[43:])
        busy.sendall(BODY)
        assert busy.recv(100).startswith(b"HTTP/1.1 200 ")
    for connection in (*idle, *silent):
        connection.close()
    idle = [dial(narrow) for _ in range(8)]  # of connections that had requests, the one that is idle for longest goes
    for connection in idle:
        ask(connection)
    ask(idle[0])  # now the second one is
    with closing(dial(narrow)) as another:
        assert ask(another, SEARCH).status == 200
        assert is_closed(idle[1])
        assert all(ask(connection).status == 200 for connection in (idle[0], *idle[2:]))
    for connection in idle:
        connection.close()


@dataclass
class Client:
    """Sends one request after the other until it is told to stop, and counts."""

    port: int
    stopping: Event
    answers: int = 0
    told: int = 0
    """Answers with `Connection: close`."""
    lost: int = 0
    """Requests without an answer."""

    def keep(self) -> None:
        """All on one connection, until an answer closes it."""
        with closing(dial(self.port)) as connection:
            while not self.told and self._ask(connection):
                pass

    def renew(self) -> None:
        """Each on a new connection, until one is refused."""
        with suppress(ConnectionError):
            while True:
                before = self.stopping.is_set()
                with closing(dial(self.port)) as connection:
                    if not self._ask(connection) and before:
                        self.lost -= 1  # it was opened when the server had begun to stop
                        return

    def _ask(self, connection: socket.socket) -> bool:
        try:
            answer = ask(connection, SEARCH)
        except ConnectionError:
            self.lost += 1
            return False
        self.answers += 1
        self.told += answer.getheader("connection") == "close"
        return True


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_request_is_lost_when_it_stops(tiny_path: Path, workers: int) -> None:
    """Half of the clients keep their connections."""
    with Server(tiny_path, workers=workers, log_level="warning") as server:
        stopping, port = Event(), server.port
        clients = [Client(port, stopping) for _ in range(16)]
        with ThreadPoolExecutor(16) as pool:
            ends = [pool.submit(Client.keep, client) for client in clients[:8]]
            ends += [pool.submit(Client.renew, client) for client in clients[8:]]
            wait_until(lambda: all(client.answers for client in clients))
            stopping.set()
            server.process.send_signal(signal.SIGTERM)
            for end in ends:
                end.result()
        code, _, errors = server.wait()
    assert (code, errors) == (0, "")
    assert [client.lost for client in clients[:8]] == [0] * 8
    assert max(client.lost for client in clients) <= 1  # a connection that was not taken yet
    assert [client.told for client in clients[:8]] == [1] * 8


def send(url: str, body: bytes, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.post(f"{url}/search", content=body, headers={"content-type": "application/json"} | named, timeout=60)


def test_large_answers_are_packed_for_who_asks(url: str) -> None:
    large, small = (json.dumps({"query": "music", "k": k}).encode() for k in (100, 1))
    plain, packed = (send(url, large, accept_encoding=taken) for taken in ("identity", "br, gzip;q=0.5"))
    assert [answer.headers.get("content-encoding") for answer in (plain, packed)] == [None, "gzip"]
    assert [answer.headers["vary"] for answer in (plain, packed)] == ["Accept-Encoding"] * 2
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert without_times(packed.json()) == without_times(plain.json())
    assert "content-encoding" not in send(url, small, accept_encoding="gzip").headers


EMPTY, WHOLE = gzip.compress(b""), gzip.compress(b'{"query": "music"}')


def test_packed_bodies_are_read(url: str) -> None:
    body = b'{"query": "music"}'
    plain = without_times(send(url, body).json())
    for packed in (WHOLE, gzip.compress(body.ljust(1 << 20)), gzip.compress(body, 0)):
        for name in ("GZIP", "gzip", "x-gzip"):
            answer = send(url, packed, content_encoding=name)
            assert (answer.status_code, without_times(answer.json())) == (200, plain)


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
            answer = send(url, body, content_encoding=coding)
            assert (answer.status_code, answer.json()["kind"]) == (expected, "invalid_body"), (coding, body[:40])


CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(tiny_path: Path) -> Iterator[Server]:
    with Server(tiny_path, log_level="warning") as server:
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
    "length and chunks in upper case": LENGTH + CHUNKED.upper(),
    "two lengths": LENGTH + b"Content-Length: 5\r\n",
    "two equal lengths": LENGTH + LENGTH,
    "a list of lengths": b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY)),
    "a length with a sign": b"Content-Length: +%d\r\n" % len(BODY),
    "a length in hexadecimal": b"Content-Length: 0x%x\r\n" % len(BODY),
    "an empty length": b"Content-Length: \r\n",
    "a length beyond numbers": b"Content-Length: " + b"9" * 30 + b"\r\n",
    "another coding before chunked": b"Transfer-Encoding: gzip, chunked\r\n",
    "another coding after chunked": b"Transfer-Encoding: chunked, gzip\r\n",
    "identity, then chunked": b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
    "identity": b"Transfer-Encoding: identity\r\n",
    "identity and a length": b"Transfer-Encoding: identity\r\n" + LENGTH,
    "chunked twice in a line": b"Transfer-Encoding: chunked, chunked\r\n",
    "chunked in two lines": CHUNKED + CHUNKED,
    "chunked before a comma": b"Transfer-Encoding: chunked,\r\n",
    "chunked and a vertical tab": b"Transfer-Encoding: chunked\x0b\r\n",
    "an empty coding": b"Transfer-Encoding: \r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n",
    "a coding folded by a tab": b"Transfer-Encoding:\r\n\tchunked\r\n",
    "a coding in a folded line": b"X-A: b\r\n Transfer-Encoding: chunked\r\n" + LENGTH,
    "another folded line": b"X-A: a\r\n b\r\n" + LENGTH,
    "a space before the colon of a coding": b"Transfer-Encoding : chunked\r\n",
    "a tab before the colon": b"Content-Length\t: %d\r\n" % len(BODY),
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
    assert statuses(port, POST + headers + b"\r\n" + body + LIVE) == [400]


@pytest.mark.parametrize("headers", [LENGTH + CHUNKED, b"Transfer-Encoding: identity\r\n", b"X-A: a\r\n b\r\n"])
def test_those_before_an_ambiguous_one_are_answered_first(port: int, headers: bytes) -> None:
    assert statuses(port, SEARCH + LIVE + SEARCH + POST + headers + b"\r\n" + CHUNKS + LIVE) == [200, 200, 200]


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
    assert statuses(port, POST + headers + b"\r\n" + body + LAST) == [200, 200]


def test_a_whole_address_is_read_as_its_path(port: int) -> None:
    search = POST.replace(b" /", b" http://x/") + LENGTH + b"\r\n" + BODY
    assert statuses(port, search + LAST.replace(b" /livez", b" https://y:1/livez?a=b")) == [200, 200]
    for address in (b"http://x", b"http://", b"http:///livez", b"http://x:y/livez", b"http:/livez"):
        assert statuses(port, LIVE + LIVE.replace(b"/livez", address) + LIVE) == [200]
        assert statuses(port, LIVE.replace(b"/livez", address) + LIVE) == [400]


def test_a_trailer_is_no_header(port: int) -> None:
    with dial(port) as connection:
        connection.sendall(POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"X-Request-ID: from-a-trailer\r\n\r\n" + LAST)
        answers = received(connection)
    assert b"x-request-id: " in answers
    assert b"from-a-trailer" not in answers


MALFORMED = [
    b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n",  # more than 64 KiB
    # Chunks are of HTTP/1.1 alone.
    *(
        POST.replace(b"HTTP/1.1", version) + CHUNKED + b"\r\n" + CHUNKS
        for version in (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"RTSP/1.0")
    ),
    *(line + b"\r\nHost: x\r\n\r\n" for line in (b"GET /livez", b"GET /livez HTTP/2.0", b"CONNECT x:1 HTTP/1.1")),
    *(line + b"\r\nHost: x\r\n\r\n" for line in (b"BREW / HTTP/1.1", b"GET livez HTTP/1.1")),
    *(POST + CHUNKED + b"\r\n" + chunk + b"\r\n" for chunk in (b"zz", b"-5", b"0x5", b"1\r\nab", b"f" * 17)),
    POST + CHUNKED + b"\r\n5\n",
]


@pytest.mark.parametrize("sent", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_request_of_http_1_is_refused(port: int, sent: bytes) -> None:
    assert statuses(port, sent + LIVE) == [400]


def test_any_number_of_pipelined_requests_is_answered(port: int) -> None:
    assert statuses(port, (POST + CHUNKED + b"\r\n" + CHUNKS) * 600 + LAST) == [200] * 601
    assert statuses(port, LIVE * 20_000 + LAST) == [200] * 20_001


def test_a_body_with_a_length_has_no_chunks(port: int) -> None:
    """Lines that look like sizes of chunks are white space, and numbers in a text, of JSON."""
    body = b'{"query":"music"' + b"\r\n1\r\n" * 2000 + b"}"
    assert statuses(port, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + LAST) == [400, 200]
    blank = b"\r\n" * 5000 + b'{"query":"music"}'
    assert statuses(port, POST + b"Content-Length: %d\r\n\r\n" % len(blank) + blank + LAST) == [200, 200]


def test_pipelined_requests_take_little_memory(port: int, server: Server) -> None:
    """A client that sends and never reads: the server reads on only as fast as it answers."""
    statuses(port, SEARCH + LAST)
    before = server.peak_mb
    burst = SEARCH * 10_000
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
                assert statuses(port, POST + headers + b"\r\n" + CHUNKS) == [400]
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
