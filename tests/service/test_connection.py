"""The shorter way of plain searches: the same answers, and nothing lost on connections that behave badly."""

import gc
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.execution import lookout
from lightretriever.service.execution.jobs import Job, Steps
from lightretriever.service.execution.waiting import Done
from lightretriever.service.http.app import create_app
from lightretriever.service.http.fastpath.connection import Connection
from lightretriever.service.http.fastpath.flight import Flight
from lightretriever.service.observability.metrics import Mark
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.engine_lease import Tenure
from lightretriever.service.search.hits import Plain
from lightretriever.service.search.operations import Errands
from lightretriever.service.settings import Settings

from tests.service.conftest import SETTINGS
from tests.service.live import Live, running
from tests.service.test_overload import Gated

SEARCH = {"query": "play music", "k": 3}
LONG_WAY = "Origin: http://elsewhere"
PATIENCE_S = 60


def request(body: object, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ["POST /search HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


class Client:
    """A connection, byte by byte."""

    def __init__(self, live: Live) -> None:
        self.socket = socket.create_connection((live.host, live.port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[bytes, list[bytes], bytes]:
        """Status line, headers in their order, and body."""
        status = self._read.readline()
        headers = list(iter(self._read.readline, b"\r\n"))
        length = next(int(line.partition(b":")[2]) for line in headers if line.startswith(b"content-length:"))
        return status, headers, self._read.read(length)

    def ask(self, data: bytes) -> tuple[bytes, list[bytes], bytes]:
        self.send(data)
        return self.answer()

    def rest(self) -> bytes:
        """Everything until the server closes."""
        return self._read.read()

    def close(self) -> None:
        self._read.close()
        self.socket.close()


Connect = Callable[..., Client]
"""Connects to a server, the module's own if none is given."""


@pytest.fixture(scope="module")
def live(engine: SearchEngine) -> Iterator[Live]:
    with running(create_app(engine)) as live:
        yield live


@pytest.fixture
def connect(live: Live) -> Iterator[Connect]:
    clients: list[Client] = []

    def make(server: Live = live) -> Client:
        clients.append(Client(server))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    until(lambda: not live.server.server_state.connections)  # a test counts its own only


def long_ways(live: Live) -> int:
    """Requests that went uvicorn's way, so far."""
    return live.server.server_state.total_requests


def counted(engine: SearchEngine, status: int) -> float:
    labels = {"route": "/search", "status": str(status)}
    return engine.metrics.registry.get_sample_value("lightretriever_request_seconds_count", labels) or 0


def connections(live: Live) -> list[Connection]:
    return [one for one in list(live.server.server_state.connections) if isinstance(one, Connection)]


def watched(live: Live) -> int:
    """Connections that threads read themselves."""
    return sum(one._crew is not None for one in connections(live))


def without_times(body: bytes) -> object:
    content = json.loads(body)
    content.pop("timings_ms", None)
    return content


def same(headers: list[bytes]) -> list[bytes]:
    """Headers but for what differs between two answers: the second, and the digits of times in the body."""
    return [line for line in headers if not line.startswith((b"date:", b"content-length:"))]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (SEARCH, 200),
        ({"query": "play music", "mode": "dense", "explain": True, "fields": ["title"]}, 200),
        ({"query": "play music", "snippets": {"fields": ["text"]}}, 200),
        ({"query": " ", "k": 0, "colour": 1}, 422),
        ({"query": "music", "task": "nope"}, 422),
        (b'{"query": ', 400),
        (b'{"query": "\xff"}', 400),
        ({"query": "music", "deadline_ms": 0.001}, 504),
    ],
)
def test_both_ways_give_the_same_answer(
    live: Live, engine: SearchEngine, connect: Connect, body: object, status: int
) -> None:
    client, before, count = connect(), long_ways(live), counted(engine, status)
    short = client.ask(request(body, "X-Request-Id: mine"))
    assert (long_ways(live), counted(engine, status)) == (before, count + 1)
    long = client.ask(request(body, "X-Request-Id: mine", LONG_WAY))
    until(lambda: (long_ways(live), counted(engine, status)) == (before + 1, count + 2))
    assert short[0] == long[0]
    assert short[0].split()[1] == str(status).encode()
    assert same(short[1]) == same(long[1])
    if status != 504:  # which tells of milliseconds
        assert without_times(short[2]) == without_times(long[2])


def test_a_body_behind_its_head_is_waited_for(live: Live, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.service.http.fastpath.connection._PATIENCE_S", PATIENCE_S)
    data, client, before = request(SEARCH), connect(), long_ways(live)
    head = data.index(b"\r\n\r\n") + 4
    for cut in (head, head + 5):
        client.send(data[:cut])
        sleep(0.05)
        assert client.ask(data[cut:])[0].startswith(b"HTTP/1.1 200")
    assert long_ways(live) == before


def test_what_comes_slowly_goes_the_long_way(live: Live, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.service.http.fastpath.connection._PATIENCE_S", 0.001)
    data, client, before = request(SEARCH), connect(), long_ways(live)
    head = data.index(b"\r\n\r\n") + 4
    cuts = (7, head - 3, head, head + 5)
    for cut in cuts:
        client.send(data[:cut])
        until(lambda: any(connection._in_message for connection in connections(live)))
        assert client.ask(data[cut:])[0].startswith(b"HTTP/1.1 200")
    until(lambda: long_ways(live) == before + len(cuts))
    assert client.ask(data)[0].startswith(b"HTTP/1.1 200")
    assert long_ways(live) == before + len(cuts)


def test_who_sends_byte_by_byte_is_not_waited_for_longer(
    live: Live, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightretriever.service.http.fastpath.connection._PATIENCE_S", 0.3)
    data, client, before = request(SEARCH), connect(), long_ways(live)
    client.send(data[: data.index(b"\r\n\r\n") + 4])
    for byte in data[data.index(b"\r\n\r\n") + 4 :]:
        sleep(0.05)
        client.send(bytes([byte]))
    assert client.answer()[0].startswith(b"HTTP/1.1 200")
    until(lambda: long_ways(live) == before + 1)


def test_every_cut_is_answered(connect: Connect) -> None:
    data, client = request(SEARCH), connect()
    for cut in range(1, len(data)):
        client.send(data[:cut])
        assert len(json.loads(client.ask(data[cut:])[2])["hits"]) == 3


def test_requests_that_do_not_wait_for_answers_are_answered_in_their_order(connect: Connect) -> None:
    client = connect()
    livez = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    numbers = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    client.send(b"".join(request({"query": "play music", "k": number}) + livez for number in numbers))
    for number in numbers:
        assert len(json.loads(client.answer()[2])["hits"]) == number
        assert json.loads(client.answer()[2]) == {"status": "alive"}
    for number in numbers:  # one after the other, but each before the answer to the last
        client.send(request({"query": "play music", "k": number}))
    for number in numbers:
        assert len(json.loads(client.answer()[2])["hits"]) == number


class Wordy(Errands):
    """Answers with 20 MB more."""

    def search(
        self, request: SearchRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> Steps[Plain]:
        answer = yield from super().search(request, arrived=arrived, marks=marks)
        return answer | {"padding": "x" * 20_000_000}


def test_an_answer_larger_than_the_socket_takes(connect: Connect, tiny_bundle: Bundle) -> None:
    body = {"query": "play music", "k": 100, "explain": True}
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine:
        engine.errands = Wordy(engine.bundle.manifest, engine.settings, engine.parts, engine.metrics)
        with running(create_app(engine)) as live:
            client = connect(live)
            client.send(request(body))
            sleep(0.2)
            answer = client.answer()
            assert len(answer[2]) > 20_000_000
            assert len(json.loads(answer[2])["padding"]) == 20_000_000
            assert long_ways(live) == 0
            assert client.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")[0].startswith(b"HTTP/1.1 200")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.mark.parametrize("searches", [0, 5])
def test_who_leaves_is_not_answered_and_holds_nothing(
    searches: int,
    connect: Connect,
    tiny_bundle: Bundle,
    gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = SETTINGS.model_copy(update={"search_threads": 1, "max_waiting": 1})
    caplog.set_level("INFO", "lightretriever.access")
    with SearchEngine.open(tiny_bundle, settings) as engine:
        engine.warm_up()
        leg = engine.parts.legs["dense"] = Gated(engine.parts.legs["dense"], gate)
        with running(create_app(engine)) as live:
            client = connect(live)
            gate.set()
            for _ in range(searches):
                assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
                assert leg.entered.acquire(timeout=PATIENCE_S)
            until(lambda: searches == 0 or watched(live) == 1)
            gate.clear()
            client.send(request(SEARCH))
            assert leg.entered.acquire(timeout=PATIENCE_S)
            client.close()
            until(lambda: not live.server.server_state.connections)
            gate.set()
            until(lambda: counted(engine, 499) == 1)
            others = [connect(live) for _ in range(2)]
            for other in others:
                other.send(request(SEARCH))
            for other in others:  # both places are free again
                assert other.answer()[0].startswith(b"HTTP/1.1 200")
            in_flight = engine.metrics.registry.get_sample_value("lightretriever_requests_in_flight")
            assert in_flight == 0
    logged = [vars(record)["status"] for record in caplog.records if record.name == "lightretriever.access"]
    assert logged == [*[200] * searches, 499, 200, 200]


def test_a_server_that_stops_answers_first(connect: Connect, tiny_bundle: Bundle, gate: threading.Event) -> None:
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine:
        engine.warm_up()
        leg = engine.parts.legs["dense"] = Gated(engine.parts.legs["dense"], gate)
        with running(create_app(engine)) as live:
            busy, idle = connect(live), connect(live)
            gate.set()
            assert idle.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
            assert leg.entered.acquire(timeout=PATIENCE_S)
            gate.clear()
            busy.send(request(SEARCH))
            assert leg.entered.acquire(timeout=PATIENCE_S)
            live.stop()
            assert idle.rest() == b""
            gate.set()
            status, headers, body = busy.answer()
            assert status.startswith(b"HTTP/1.1 200")
            assert b"connection: close\r\n" in headers
            assert len(json.loads(body)["hits"]) == 3
            assert busy.rest() == b""


def test_a_server_that_stops_answers_what_has_begun_to_come(
    connect: Connect, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightretriever.service.http.fastpath.connection._PATIENCE_S", PATIENCE_S)
    data = request(SEARCH)
    with running(create_app(engine)) as live:
        client = connect(live)
        client.send(data[:-3])
        until(lambda: any(connection._begun for connection in connections(live)))
        live.stop()
        until(lambda: any(connection._ending for connection in connections(live)))
        status, headers, body = client.ask(data[-3:])
        assert status.startswith(b"HTTP/1.1 200")
        assert b"connection: close\r\n" in headers
        assert len(json.loads(body)["hits"]) == 3


def test_a_server_waits_for_searches_no_longer_than_it_may(
    connect: Connect, tiny_bundle: Bundle, gate: threading.Event
) -> None:
    settings = SETTINGS.model_copy(update={"shutdown_grace_s": 1})
    with SearchEngine.open(tiny_bundle, settings) as engine:
        engine.warm_up()
        leg = engine.parts.legs["dense"] = Gated(engine.parts.legs["dense"], gate)
        with running(create_app(engine)) as live:
            client = connect(live)
            client.send(request(SEARCH))
            assert leg.entered.acquire(timeout=PATIENCE_S)
            (connection,) = connections(live)
            live.stop()
            assert client.rest() == b""
        assert connection._flight is None
        assert connection._socket == -1
        gate.set()
        until(lambda: counted(engine, 499) == 1)


@pytest.mark.parametrize(
    "begun",
    [b"", b"\r\n", b"POST /sea", b"POST /search HTTP/1.1\r\nHost: x\r\n", request(SEARCH, LONG_WAY)[:-5]],
    ids=["nothing", "an empty line", "half a line", "half a head", "half a body"],
)
@pytest.mark.parametrize("searches", [0, 1])
def test_a_client_that_falls_silent_is_not_kept(
    connect: Connect, tiny_bundle: Bundle, begun: bytes, searches: int
) -> None:
    settings = SETTINGS.model_copy(update={"deadline_ms": 5_000})
    keep_alive_s = 60 if b"\r\n\r\n" in begun else 1  # a body has the deadline
    with (
        SearchEngine.open(tiny_bundle, settings) as engine,
        running(create_app(engine), keep_alive_s=keep_alive_s) as live,
    ):
        client = connect(live)
        for _ in range(searches):
            assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
        if begun:
            client.send(begun)
        rest = client.rest()
        assert rest.startswith(b"HTTP/1.1 408") if b"\r\n\r\n" in begun else rest == b""


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    connect: Connect, tiny_bundle: Bundle, gate: threading.Event
) -> None:
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine:
        engine.parts.legs["dense"] = Gated(engine.parts.legs["dense"], gate)
        with running(create_app(engine), keep_alive_s=2) as live:
            client = connect(live)
            client.send(request(SEARCH))
            sleep(2.5)  # longer than it would be kept without a request
            gate.set()
            assert client.answer()[0].startswith(b"HTTP/1.1 200")
            answered = monotonic()
            assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
            assert client.rest() == b""
            assert monotonic() - answered > 1.9


def test_a_mistake_of_the_service_is_an_answer_and_a_line_of_the_log(
    connect: Connect,
    tiny_bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine, running(create_app(engine)) as live:
        client = connect(live)
        for broken in ("search", "begin"):
            with monkeypatch.context() as patch:

                def fail(*arguments: object, **named: object) -> object:
                    raise ZeroDivisionError("a mistake")

                patch.setattr(engine.errands if broken == "search" else engine, broken, fail)
                status, _, body = client.ask(request(SEARCH, "X-Request-Id: mine"))
            assert status.startswith(b"HTTP/1.1 500")
            assert json.loads(body)["kind"] == "internal_error"
            assert "a mistake" not in json.loads(body)["detail"]
        assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
    lines = [record for record in caplog.records if record.getMessage() == "request failed"]
    assert [vars(line)["request_id"] for line in lines] == ["mine", "mine"]
    assert all(line.exc_info for line in lines)


@pytest.mark.parametrize(
    "settings",
    [{"cors_origins": ["http://elsewhere"]}, {"rate_limit_per_s": 1000.0}],
)
def test_settings_that_need_the_long_way_get_it(
    connect: Connect, tiny_bundle: Bundle, settings: dict[str, object]
) -> None:
    wanted = Settings(deadline_ms=60_000, warm_up_queries=1, **settings)  # type: ignore[arg-type]
    with SearchEngine.open(tiny_bundle, wanted) as engine, running(create_app(engine)) as live:
        assert connect(live).ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
        until(lambda: long_ways(live) == 1)


def test_nothing_of_a_search_outlives_it(live: Live, connect: Connect) -> None:
    client = connect()
    client.ask(request(SEARCH))
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            client.ask(request(SEARCH))
        until(lambda: not [one for one in gc.get_objects() if type(one) is Flight])
    finally:
        gc.enable()


def test_a_search_that_gets_no_thread_is_refused_once(
    connect: Connect, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.model_copy(update={"search_threads": 1, "max_waiting": 1})
    with SearchEngine.open(tiny_bundle, settings) as engine, running(app := create_app(engine)) as live:
        desk, client = app.state.desk, connect(live)
        until(lambda: client.ask(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")[0].startswith(b"HTTP/1.1 200"))
        until(lambda: desk.serving.current._users == 0)
        with monkeypatch.context() as patch:

            def fail(*arguments: object) -> None:
                raise RuntimeError("can't start new thread")

            until(lambda: engine.crew._idle == len(engine.crew._members))  # those of the warm-up
            patch.setattr(engine._jobs.crew, "_members", set())  # as before its first thread
            patch.setattr(engine._jobs.crew, "_idle", 0)
            patch.setattr("lightretriever.service.execution.crew.Thread.start", fail)
            assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 500")
            assert not engine._jobs.crew._queue
        assert desk.admission._inside == 0
        assert desk.serving.current._users == 0


def search_until_watched(live: Live, client: Client) -> None:
    count = watched(live)

    def ask() -> bool:
        assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
        return watched(live) > count

    until(ask)


def test_a_connection_that_goes_on_needs_no_event_loop(
    live: Live, engine: SearchEngine, connect: Connect, gate: threading.Event
) -> None:
    client = connect()
    search_until_watched(live, client)
    (connection,) = (one for one in connections(live) if one._crew is not None)
    assert connection._crew is engine.crew
    blocked = threading.Event()

    def block() -> None:
        blocked.set()
        gate.wait()

    connection.loop.call_soon_threadsafe(block)
    assert blocked.wait(PATIENCE_S)
    for k in (1, 2, 3):
        assert len(json.loads(client.ask(request({"query": "play music", "k": k}))[2])["hits"]) == k


def test_one_search_alone_is_not_worth_it(connect: Connect, engine: SearchEngine) -> None:
    with running(create_app(engine)) as live:
        client = connect(live)
        assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
        client.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert watched(live) == 0


@pytest.mark.parametrize(
    "other",
    [
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        request(SEARCH, LONG_WAY),
        request(SEARCH, "Expect: nothing"),
        request(b"[" * 100_000),
    ],
)
def test_what_is_no_plain_search_is_given_back(connect: Connect, live: Live, other: bytes) -> None:
    client = connect()
    for _ in range(3):
        search_until_watched(live, client)
        count = watched(live)
        assert client.ask(other)[0] == connect().ask(other)[0]
        assert watched(live) == count - 1


def test_searches_that_come_together_or_in_parts_are_given_back(connect: Connect, live: Live) -> None:
    data = [request({"query": "play music", "k": k}) for k in (1, 2, 3)]
    client = connect()
    for parts in ([b"".join(data)], [data[0], data[1] + data[2]], [data[0][:50], data[0][50:] + data[1], data[2]]):
        search_until_watched(live, client)
        for part in parts:
            client.send(part)
            sleep(0.005)
        assert [len(json.loads(client.answer()[2])["hits"]) for _ in data] == [1, 2, 3]


@contextmanager
def held(
    connect: Connect, bundle: Bundle, gate: threading.Event, *, clients: int, max_waiting: int
) -> Iterator[tuple[Live, list[Client]]]:
    """A service with watched connections, whose only thread is held, until the gate opens, by a search of the first."""
    settings = SETTINGS.model_copy(update={"search_threads": 1, "max_waiting": max_waiting})
    with SearchEngine.open(bundle, settings) as engine:
        engine.warm_up()
        leg = engine.parts.legs["dense"] = Gated(engine.parts.legs["dense"], gate)
        with running(create_app(engine)) as live:
            connected = [connect(live) for _ in range(clients)]
            gate.set()
            for client in connected:
                search_until_watched(live, client)
            gate.clear()
            while leg.entered.acquire(blocking=False):
                pass
            connected[0].send(request(SEARCH))
            assert leg.entered.acquire(timeout=PATIENCE_S)
            yield live, connected


def test_requests_are_read_while_all_threads_work(connect: Connect, tiny_bundle: Bundle, gate: threading.Event) -> None:
    """One waits in its turn, and the next is told at once that there is no room."""
    with held(connect, tiny_bundle, gate, clients=3, max_waiting=1) as (live, clients):
        clients[1].send(request(SEARCH))
        admission = connections(live)[0]._shortcut.desk.admission
        until(lambda: admission._inside == 2)
        assert clients[2].ask(request(SEARCH))[0].startswith(b"HTTP/1.1 503")
        gate.set()
        for client in clients[:2]:
            assert client.answer()[0].startswith(b"HTTP/1.1 200")


def test_a_connection_is_read_by_one_only_after_a_large_answer(connect: Connect, tiny_bundle: Bundle) -> None:
    """The event loop writes what the socket did not take, and reads again."""
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine, running(create_app(engine)) as live:
        client = connect(live)
        until(lambda: client.ask(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")[0].startswith(b"HTTP/1.1 200"))
        short = engine.errands
        for _ in range(3):
            engine.errands = short
            search_until_watched(live, client)
            engine.errands = Wordy(engine.bundle.manifest, engine.settings, engine.parts, engine.metrics)
            client.send(request(SEARCH))
            until(lambda: watched(live) == 0)
            data = request({"query": "play music", "k": 2})
            engine.errands = short
            client.send(data)
            assert len(json.loads(client.answer()[2])["padding"]) == 20_000_000
            assert len(json.loads(client.answer()[2])["hits"]) == 2
            for cut in (1, 30, len(data) - 1):
                client.send(data[:cut])
                sleep(0.001)
                assert len(json.loads(client.ask(data[cut:])[2])["hits"]) == 2


def test_a_large_request_is_not_left_half_read(connect: Connect, live: Live) -> None:
    """One that fills what is read at once, with another one behind it."""
    client = connect()
    search_until_watched(live, client)
    large = request(json.dumps(SEARCH).encode())
    padded = request(json.dumps(SEARCH).encode() + b" " * (65_536 - len(large)))
    large = request(json.dumps(SEARCH).encode() + b" " * (2 * 65_536 - len(large) - len(padded)))
    assert len(large) == 65_536
    client.send(large + request({"query": "play music", "k": 1}))
    assert [len(json.loads(client.answer()[2])["hits"]) for _ in range(2)] == [3, 1]


@pytest.mark.parametrize("how", ["stops", "is bored"])
def test_what_has_come_is_answered_before_the_end(
    how: str, connect: Connect, tiny_bundle: Bundle, gate: threading.Event
) -> None:
    """While the only thread has work, a search lies in the socket of a connection that is to be closed."""
    with held(connect, tiny_bundle, gate, clients=2, max_waiting=9) as (live, clients):
        (idle,) = (one for one in connections(live) if one._flight is None)
        ended = threading.Event()

        def end() -> None:  # the event loop looks at nothing else meanwhile
            clients[1].send(request(SEARCH))
            assert select.select([idle._socket], [], [], PATIENCE_S)[0]
            if how == "stops":
                idle.shutdown()
            else:
                idle._answered = 0.0
                idle.timeout_keep_alive_handler()
            ended.set()

        idle.loop.call_soon_threadsafe(end)
        assert ended.wait(PATIENCE_S)
        gate.set()
        for client in clients:
            assert client.answer()[0].startswith(b"HTTP/1.1 200")
        if how == "stops":
            assert clients[1].rest() == b""


def test_a_search_that_is_dropped_before_it_has_a_job_takes_no_step(
    connect: Connect, engine: SearchEngine, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(create_app(engine)) as live:
        client = connect(live)
        search_until_watched(live, client)
        (connection,) = connections(live)
        begin, entered, dropped = engine.begin, threading.Event(), counted(engine, 499)
        jobs = []

        def slow(steps: Steps[Plain], done: Done) -> list[Job[Plain]]:
            entered.set()
            gate.wait(PATIENCE_S)
            jobs.extend(begin(steps, done))
            return jobs

        with monkeypatch.context() as patch:
            patch.setattr(engine, "begin", slow)
            client.send(request(SEARCH))
            assert entered.wait(PATIENCE_S)
            connection.loop.call_soon_threadsafe(connection.abandon)
            until(lambda: connection._socket == -1)
            gate.set()
            until(lambda: counted(engine, 499) == dropped + 1)
        assert jobs[0]._cancelled


def test_an_engine_that_closes_gives_connections_back(connect: Connect, tiny_bundle: Bundle) -> None:
    with SearchEngine.open(tiny_bundle, SETTINGS) as old, SearchEngine.open(tiny_bundle, SETTINGS) as new:
        for engine in (old, new):
            engine.warm_up()
        with running(app := create_app(old)) as live:
            idle, client = connect(live), connect(live)
            for one in (idle, client):
                search_until_watched(live, one)
            serving, before = app.state.desk.serving, app.state.desk.serving.current
            serving.current = Tenure(new)
            before.end()
            assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")  # the old one's thread, the new engine
            assert before.drained.wait(PATIENCE_S)  # the warm-up may hold it, too
            old.close()
            until(lambda: watched(live) == 0)
            for one in (idle, client):
                search_until_watched(live, one)
            assert {one._crew for one in connections(live)} == {new.crew}


def test_where_sockets_cannot_be_watched_the_event_loop_reads_them(
    connect: Connect, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightretriever.service.execution.crew.open_lookout", lookout._Bench)
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine, running(create_app(engine)) as live:
        client = connect(live)
        until(lambda: client.ask(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")[0].startswith(b"HTTP/1.1 200"))

        def refused() -> bool:  # the event loop may have read the next search before it tries
            assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
            return not connections(live)[0]._shortcut.watching

        until(refused)
        assert client.ask(request(SEARCH))[0].startswith(b"HTTP/1.1 200")
        assert watched(live) == 0


def test_many_connections_at_once(connect: Connect) -> None:
    """Each gets its own answers, whatever the threads do."""

    def ask(client: Client, number: int) -> None:
        for _ in range(40):
            answer = json.loads(client.ask(request({"query": "play music", "k": number}))[2])
            found.append(len(answer["hits"]) == number)

    found: list[bool] = []
    threads = [threading.Thread(target=ask, args=(connect(), number)) for number in range(1, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 800


def until(holds: Callable[[], bool]) -> None:
    end = monotonic() + PATIENCE_S
    while not holds():
        assert monotonic() < end
        sleep(0.005)
