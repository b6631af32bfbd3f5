"""Connections of the real server: how long they are kept, how many there may be, and how they end when it stops; and
bodies and answers on them that are packed by gzip."""

import gzip
import http.client
import json
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
SEARCH = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
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
        busy.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(BODY))
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
