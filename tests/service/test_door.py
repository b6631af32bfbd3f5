"""Taking connections: all that come, those that wait while there is no room for them, and the others' turn first."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop
from lightretriever.service.serving.acceptor import Door, Share

PATIENCE_S = 30.0


class Greeter(asyncio.Protocol):
    """Greets who comes, and knows who is there."""

    transport: asyncio.WriteTransport

    def __init__(self, there: set["Greeter"], left: Callable[[], object]) -> None:
        self._there, self._left = there, left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._there.add(self)
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses
        self.transport.write(b"hello")

    def connection_lost(self, exc: Exception | None) -> None:
        self._there.discard(self)
        self._left()


class Place:
    """A listening socket on a free port, a door, and who came in."""

    def __init__(self, share: Share | None, listener: socket.socket | None) -> None:
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.there: set[Greeter] = set()
        self.door = Door(self.listener, self._greeter, lambda: len(self.there), share)

    def _greeter(self) -> Greeter:
        return Greeter(self.there, lambda: self.door.tell())

    async def come(self, client: socket.socket | None = None) -> socket.socket:
        client = client or socket.socket()
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, self.listener.getsockname())
        return client


@asynccontextmanager
async def place(share: Share | None = None, listener: socket.socket | None = None) -> AsyncIterator[Place]:
    one = Place(share, listener)
    try:
        yield one
    finally:
        await one.door.close()
        one.listener.close()
        for greeter in one.there:
            greeter.transport.close()  # else uvloop's loop would not end


async def greeted(client: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 5), PATIENCE_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def no_more_files() -> Iterator[None]:
    """No file can be opened, nor a connection taken."""
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_all_that_come_together_are_taken_in_one_turn() -> None:
    async def scenario() -> None:
        async with place() as one:
            clients = [await one.come() for _ in range(40)]
            assert {await greeted(client) for client in clients} == {b"hello"}
            assert len(one.there) == 40
            for client in clients:
                client.close()
            await until(lambda: not one.there)

    uvloop.run(scenario())


def test_a_connection_waits_while_no_file_can_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with place() as one:
            client = socket.socket()
            with no_more_files():
                await one.come(client)
                await until(lambda: bool(caplog.records))
                assert not one.there
            assert await greeted(client) == b"hello"
            client.close()

    uvloop.run(scenario())
    assert {(record.message, vars(record)["reason"]) for record in caplog.records} == {
        ("no connection can be taken", "Too many open files")
    }


def test_who_has_more_connections_lets_the_other_go_first(tmp_path: Path) -> None:
    Share.make(tmp_path / "counts", 3)
    other, alone = Share(tmp_path / "counts", 0), Share(tmp_path / "counts", 2)

    async def scenario() -> None:
        async with place(Share(tmp_path / "counts", 1)) as one:
            assert alone.is_more(1)  # an open door counts from the beginning
            other.tell(0)
            first = await one.come()
            assert await greeted(first) == b"hello"  # as many as the other
            second = await one.come()
            assert await greeted(second) == b"hello"  # the other did not go
            assert not other.is_more(2)
            await until(lambda: other.is_more(3))
            first.close()
            await until(lambda: other.is_more(2))  # the end of a connection is told
            other.leave()
            await one.door.close()
            second.close()
            await until(lambda: not one.there)
            assert not alone.is_more(1_000)  # nobody is anywhere

    uvloop.run(scenario())


def test_two_doors_at_a_socket_take_about_as_many(tmp_path: Path) -> None:
    file = tmp_path / "counts"
    Share.make(file, 2)

    async def scenario() -> None:
        async with place(Share(file, 0)) as one, place(Share(file, 1), one.listener.dup()) as other:
            clients = [await one.come() for _ in range(41)]
            assert {await greeted(client) for client in clients} == {b"hello"}
            assert len(one.there) + len(other.there) == 41
            assert min(len(one.there), len(other.there)) >= 15
            for client in clients:
                client.close()
            await until(lambda: not one.there and not other.there)

    uvloop.run(scenario())


def test_a_closed_door_takes_nobody_and_leaves_the_socket_open() -> None:
    async def scenario() -> None:
        async with place() as one:
            await one.door.close()
            client = await one.come()
            await asyncio.sleep(0.05)
            assert not one.there
            connection, _ = one.listener.accept()
            connection.close()
            client.close()

    uvloop.run(scenario())


def test_who_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    pause = Door._pause

    def counted(door: Door, seconds: float, waited: int = 0) -> None:
        pauses.append(waited)
        pause(door, seconds, waited)

    monkeypatch.setattr(Door, "_pause", counted)
    Share.make(tmp_path / "counts", 2)
    other = Share(tmp_path / "counts", 1)

    async def scenario() -> None:
        async with place(Share(tmp_path / "counts", 0)) as one:
            clients = [await one.come() for _ in range(2)]
            while not pauses:
                other.tell(1)
                clients.append(await one.come())
                assert await greeted(clients[-1]) == b"hello"
            await asyncio.sleep(1.1)  # in which the other one tells nothing
            before = len(pauses)
            for _ in range(20):
                clients.append(await one.come())
                assert await greeted(clients[-1]) == b"hello"
            assert len(pauses) == before
            while len(pauses) == before:
                other.tell(1)
                clients.append(await one.come())
                assert await greeted(clients[-1]) == b"hello"
            for client in clients:
                client.close()
            await until(lambda: not one.there)

    uvloop.run(scenario())
