"""Hostile requests over a real connection: an answer that says what is wrong, never a 5xx, and service goes on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import KINDS
from tests.faults.conftest import Figure
from tests.faults.hostile import GOOD, ask, hostile_requests, request
from tests.service.process import Server

SEED = 20_263
CLIENTS = 16


@pytest.fixture(scope="module")
def server(tiny_bundle: Bundle) -> Iterator[Server]:
    with Server(tiny_bundle.path, environment={"LIGHTRETRIEVER_LOG_LEVEL": "error"}) as server:
        yield server


@pytest.fixture(scope="module")
def port(server: Server) -> int:
    return server.port


def assert_serves(port: int) -> None:
    found = httpx2.post(f"http://127.0.0.1:{port}/search", json={"query": "music", "k": 3}, timeout=60)
    assert found.status_code == 200
    assert found.json()["degraded"] == []
    assert len(found.json()["hits"]) == 3


def test_hostile_requests_are_refused_by_name(port: int, figure: Figure) -> None:
    requests = hostile_requests()
    for one in requests:
        # Who may say nothing is not waited for.
        reply = ask(port, one.sent) if 0 in one.statuses else ask(port, one.sent, pause_s=60)
        assert reply.status in one.statuses, (one.name, reply)
        if one.kind is not None:
            problem = reply.problem
            assert b"content-type: application/problem+json" in reply.headers, one.name
            assert problem["kind"] == one.kind in KINDS, one.name
            assert problem["detail"], one.name
            assert len(reply.body) < 10_000, one.name
            if one.kind == "invalid_request":
                fields = [error["field"] for error in problem["errors"]]
                assert one.field is None or one.field in fields, (one.name, fields)
    assert_serves(port)
    figure("bad_requests_failed", 0, f"of {len(requests)}")


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """A request with up to four bytes or runs of bytes changed, doubled, or gone."""
    changed = bytearray(content)
    for _ in range(int(random.integers(1, 5))):
        place = int(random.integers(len(changed) or 1))
        match int(random.integers(5)):
            case 0:
                changed[place : place + 1] = random.bytes(1)
            case 1:
                del changed[place : place + int(random.integers(1, 20))]
            case 2:
                changed[place:place] = random.bytes(int(random.integers(1, 20)))
            case 3:
                changed[place:place] = changed[place : place + int(random.integers(1, 200))]
            case _:
                changed[place:place] = (b"\r\n", b"\x00", b": ", b"chunked", b"\xff", b"%", b"\r\n\r\n")[
                    int(random.integers(7))
                ]
    return bytes(changed)


def test_mutated_requests_bring_no_mistake_of_the_service(
    port: int, full: bool, server: Server, figure: Figure
) -> None:
    random, count = np.random.default_rng(SEED), 40_000 if full else 60
    chunks = b"5\r\n" + GOOD[:5] + b"\r\n12\r\n" + GOOD[5:] + b"\r\n0\r\n\r\n"
    whole = [request(GOOD), request(chunks, "Transfer-Encoding: chunked"), request(b'{"searches": []}')]
    sent = [mutated(whole[number % len(whole)], random) for number in range(count)]
    statuses = set()
    with ThreadPoolExecutor(CLIENTS) as clients:  # most of the time is spent on what gets no answer
        for reply in clients.map(lambda one: ask(port, one, pause_s=0.5, wait_s=1.0), sent):
            assert reply.status < 500, reply
            statuses.add(reply.status)
    assert {200, 400} <= statuses
    assert server.process.poll() is None
    assert_serves(port)
    figure("mutated_requests_failed", 0, f"of {count:,}")
