"""What is tried again, when, how often, and when it ends; on a server that does as it is told."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from time import monotonic

import pytest

from lightretriever.service.client import AnswerError, AsyncSearchClient, ClientError, Retries, UnreachableError
from lightretriever.service.client.retries import Attempts
from tests.client.both import Maker
from tests.client.scripted import Scripted, Step, answer, break_off, drip_until, failure, hang_up, problem, stall_until
from tests.support.waiting import free_port
from tests.support.wordings import raises

QUICK = Retries(first_wait_s=0.01, longest_wait_s=0.05)


@pytest.mark.parametrize(
    ("status", "kind", "seconds"), [(503, "overloaded", 1), (503, "not_ready", 0), (429, "limited", 0)]
)
def test_retry_after_is_waited_for(make: Maker, status: int, kind: str, seconds: int) -> None:
    with Scripted(problem(status, kind, retry_after=str(seconds)), answer()) as server, make(server.url) as client:
        assert client.search("music").hits
    assert len(server.seen) == 2
    assert server.gaps[0] >= seconds
    assert server.seen[0]["body"] == server.seen[1]["body"] == b'{"query":"music"}'


def test_retry_after_may_be_a_date(make: Maker) -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    before = monotonic()
    with Scripted(answer(b"", 503, retry_after=moment), answer()) as server, make(server.url) as client:
        assert client.search("music").hits
    # One at least: the date has no fractions of a second.
    assert server.seen[1]["at"] - before >= 0.9


@pytest.mark.parametrize("text", ["soon", "-1", "", "Thu, 01 Jan 1970 00:00:00 GMT", "1e9", "٣"])
def test_retry_after_that_says_nothing_is_passed_over(make: Maker, text: str) -> None:
    asked = problem(503, "overloaded", retry_after=text) if text.isascii() else problem(503, "overloaded")
    with Scripted(asked, answer()) as server, make(server.url, retries=QUICK) as client:
        assert client.search("music").hits
    assert AnswerError.of_answer(503, {"retry-after": text}, b"").retry_after_s == 0


@pytest.mark.parametrize("failure", [hang_up, break_off, answer(b"Bad Gateway", 502)], ids=["hang up", "break", "502"])
def test_a_connection_that_breaks_is_made_again(make: Maker, failure: Step) -> None:
    with Scripted(failure, failure, answer()) as server, make(server.url, retries=QUICK) as client:
        assert client.search("music").hits
    assert len(server.seen) == 3


def test_attempts_end(make: Maker) -> None:
    retries = Retries(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)
    error, asked = failure(make, AnswerError, problem(503, "overloaded", detail="enough"), retries=retries)
    assert (error.status, error.kind, error.detail, asked) == (503, "overloaded", "enough", 3)


def test_a_server_that_always_breaks_off_is_unreachable(make: Maker) -> None:
    with Scripted(break_off) as server, make(server.url, retries=QUICK) as client:
        with raises(UnreachableError, naming="10") as error:
            client.search("music")
        assert server.url in str(error.value)
        assert len(server.seen) == QUICK.attempts


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422, 500, 504])
def test_what_would_fail_again_is_not_tried_again(make: Maker, status: int) -> None:
    error, asked = failure(make, AnswerError, problem(status, "some_kind", retry_after="1"), answer())
    assert (error.status, asked) == (status, 1)


def test_no_wait_goes_beyond_the_deadline(make: Maker) -> None:
    error, asked = failure(make, AnswerError, problem(503, "overloaded", retry_after="3600"))
    assert (error.retry_after_s, asked) == (3600, 1)


def test_waits_fill_the_time_of_the_call_and_no_more(make: Maker) -> None:
    retries = Retries(attempts=10**9, first_wait_s=0.1, longest_wait_s=0.2)
    with Scripted(problem(503, "overloaded")) as server, make(server.url, timeout_s=1, retries=retries) as client:
        with pytest.raises(ClientError, match=r"overloaded|No answer"):  # the last attempt may have no time left
            client.search("music")
        came = len(server.seen)
        # Waits of 0.05 s at least.
        assert 2 <= came <= 21


@pytest.mark.parametrize("silent", [stall_until, drip_until])
def test_a_server_that_does_not_end_its_answer_is_left(
    make: Maker, gate: threading.Event, silent: Callable[[threading.Event], Step]
) -> None:
    with Scripted(silent(gate)) as server, make(server.url, timeout_s=1) as client:
        with raises(UnreachableError, naming="127.0.0.1"):
            client.search("music")
        assert len(server.seen) == 1
        gate.set()


def test_nobody_listens(make: Maker) -> None:
    with make(f"http://127.0.0.1:{free_port()}", retries=QUICK) as client:
        with raises(UnreachableError, naming="127.0.0.1"):
            client.search("music")
        assert not client.ready()


def test_readiness_is_asked_for_once(make: Maker) -> None:
    with Scripted(problem(503, "not_ready"), answer({"status": "ready"})) as server, make(server.url) as client:
        assert not client.ready()
        assert len(server.seen) == 1
        assert client.ready()
    other = Scripted(problem(404, "route_not_found"))
    with other as server, make(server.url) as client, raises(AnswerError, naming="route_not_found"):
        client.ready()


def test_waits_double_with_jitter_and_have_a_bound() -> None:
    retries = Retries(first_wait_s=1, longest_wait_s=10)
    for made, longest in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (10_000, 10)):
        waits = [retries.wait_s(made, 0) for _ in range(200)]
        assert all(longest / 2 <= wait <= longest for wait in waits)
        assert len(set(waits)) > 100
    assert 3.5 <= retries.wait_s(1, 3) <= 4


@pytest.mark.parametrize(
    "options",
    [{"attempts": 0}, {"first_wait_s": 0}, {"first_wait_s": float("nan")}, {"first_wait_s": 2, "longest_wait_s": 1}],
)
def test_retries_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with raises(ClientError):
        Retries(**options)  # type: ignore[arg-type]


def test_an_attempt_has_what_is_left() -> None:
    attempts = Attempts(QUICK, 5)
    first = attempts.begin()
    attempts.wait_s(UnreachableError("gone.", remedy="Look."))
    assert 0 < attempts.begin() < first <= 5


def test_a_cancelled_wait_ends_at_once() -> None:
    async def cancelled(url: str, server: Scripted) -> None:
        async with AsyncSearchClient(url, timeout_s=10_000) as client:
            task = asyncio.create_task(client.search("music"))
            await asyncio.to_thread(server.wait_for, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.search("music")).hits

    with Scripted(problem(503, "overloaded", retry_after="3600"), answer()) as server:
        asyncio.run(cancelled(server.url, server))


def test_a_cancelled_request_leaves_its_connection(gate: threading.Event) -> None:
    """More of them than a pool has connections, so that one that stayed behind would be missed."""

    async def cancelled(url: str, server: Scripted) -> None:
        async with AsyncSearchClient(url, timeout_s=10_000) as client:
            tasks = [asyncio.create_task(client.search("music")) for _ in range(100)]
            await asyncio.to_thread(server.wait_for, 100)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.CancelledError}
            assert (await client.search("music")).hits

    with Scripted(*[stall_until(gate)] * 100, answer()) as server:
        asyncio.run(cancelled(server.url, server))
        gate.set()
