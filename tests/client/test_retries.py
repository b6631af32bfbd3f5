"""What is tried again, when, how often, and when it ends; on a server that does as it is told. The proxies that the
environment names. And a client that was used before a fork: parent and child have connections of their own, under
load."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from lightretriever.service.client import AnswerError, AsyncSearchClient, ClientError, UnreachableError
from tests.client.both import Maker
from tests.client.scripted import Scripted, Step, answer, break_off, drip_until, failure, hang_up, problem, stall_until
from tests.client.test_command import apart
from tests.support.waiting import free_port
from tests.support.wordings import raises


def test_retry_after_is_waited_for(make: Maker) -> None:
    told = [(503, "overloaded", "1", 1), (429, "rate_limited", "0", 0)]
    for status, kind, after, seconds in [*told, *((503, "not_ready", text, 0) for text in ("soon", "-1", ""))]:
        with Scripted(problem(status, kind, retry_after=after), answer()) as server, make(server.url) as client:
            assert client.search("music").hits
        first, second = server.seen
        assert second["at"] - first["at"] >= seconds
        assert first["body"] == second["body"] == b'{"query":"music"}'


def test_a_connection_that_breaks_is_made_again(make: Maker) -> None:
    for broken in (hang_up, break_off, answer(b"Bad Gateway", 502)):
        with Scripted(broken, broken, answer()) as server, make(server.url) as client:
            assert client.search("music").hits
        assert len(server.seen) == 3


def test_attempts_end(make: Maker) -> None:
    error, asked = failure(make, AnswerError, problem(503, "overloaded", detail="enough"), attempts=3)
    assert (error.status, error.kind, error.detail, asked) == (503, "overloaded", "enough", 3)
    gone, asked = failure(make, UnreachableError, break_off, attempts=2)
    assert "http://127.0.0.1:" in str(gone)
    assert asked == 2


def test_what_would_fail_again_is_not_tried_again(make: Maker) -> None:
    for status in (400, 401, 403, 404, 408, 409, 413, 422, 500, 504):
        error, asked = failure(make, AnswerError, problem(status, "some_kind", retry_after="1"), answer())
        assert (error.status, asked) == (status, 1)


def test_no_wait_goes_beyond_the_deadline(make: Maker) -> None:
    error, asked = failure(make, AnswerError, problem(503, "overloaded", retry_after="3600"))
    assert (error.retry_after_s, asked) == (3600, 1)
    busy = problem(503, "overloaded", retry_after="0")
    _, asked = failure(make, ClientError, busy, timeout_s=2, attempts=10**9)  # waits of .05 s at least, doubled
    assert 2 <= asked <= 8


@pytest.mark.parametrize("silent", [stall_until, drip_until])
def test_a_server_that_does_not_end_its_answer_is_left(
    make: Maker, gate: threading.Event, silent: Callable[[threading.Event], Step]
) -> None:
    with Scripted(silent(gate)) as server, make(server.url, timeout_s=1) as client:
        with raises(UnreachableError, naming="within 1 s"):
            client.search("music")
        server.wait_for(1)
        assert len(server.seen) == 1
        gate.set()


def test_readiness_is_asked_for_once(make: Maker) -> None:
    with Scripted(problem(503, "not_ready"), answer({"status": "ready"})) as server, make(server.url) as client:
        assert not client.ready()
        assert len(server.seen) == 1
        assert client.ready()
    with Scripted(problem(404, "not_found")) as server, make(server.url) as client, raises(AnswerError):
        client.ready()
    with make(f"http://127.0.0.1:{free_port()}") as client:
        assert not client.ready()


def test_cancelled_calls_end_at_once_and_leave_their_connections(gate: threading.Event) -> None:
    """More of them than a pool has connections, so that one that stayed behind would be missed."""

    async def cancelled(url: str, server: Scripted) -> None:
        async with AsyncSearchClient(url, timeout_s=10_000) as client:
            tasks = [asyncio.create_task(client.search("music")) for _ in range(101)]
            await asyncio.to_thread(server.wait_for, 101)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.CancelledError}
            assert (await client.search("music")).hits

    waiting = problem(503, "overloaded", retry_after="3600")  # one waits to try again
    with Scripted(waiting, *[stall_until(gate)] * 100, answer()) as server:
        asyncio.run(cancelled(server.url, server))
        gate.set()


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no proxy yet."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def test_a_dead_proxy_and_one_that_refuses(make: Maker, no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("HTTP_PROXY", f"http://user:secret@127.0.0.1:{free_port()}")
    with Scripted(answer({}, 403)) as proxy:
        no_proxies.setenv("HTTPS_PROXY", proxy.url)
        for url in ("http://search.invalid", "https://search.invalid"):
            with make(url, attempts=1) as client, raises(UnreachableError, naming="HTTP_PROXY") as error:
                client.search("music")
            assert "secret" not in str(error.value)


@pytest.mark.parametrize("proxy", ["socks5://user:secret@h:1", "ftp://user:secret@h:1", "http://a:b:c", "socks4://h:1"])
def test_what_is_no_proxy(make: Maker, no_proxies: pytest.MonkeyPatch, proxy: str) -> None:
    """Without the package socksio, SOCKS is none."""
    no_proxies.setenv("HTTP_PROXY", proxy)
    with raises(ClientError, naming="unset HTTP_PROXY") as error:
        make("http://search.invalid")
    assert "secret" not in str(error.value)


BEGINNING = """
import asyncio, os, sys, threading
from multiprocessing import get_context
from lightretriever.service.client import AnswerError, AsyncSearchClient, ClientError, SearchClient

url = sys.argv[1]
with SearchClient(url, timeout_s=120) as other:
    names = [hit.id for hit in other.search("music", k=15).hits]

def wrong(client, first):
    "The ids whose answer was another document's."
    return [name for name in (names[first:] + names[:first]) * 10 if client.document(name).id != name]
"""

POOL = """
client = SearchClient(url, timeout_s=120)
answers = []
threads = [threading.Thread(target=lambda first=first: answers.extend(wrong(client, first))) for first in range(4)]
[thread.start() for thread in threads]  # they hold connections and locks while the pool forks
def ask(first):
    return wrong(client, first)
def refused(name):
    client.document(name)
with get_context("fork").Pool(4) as pool:
    print(pool.map(ask, range(8), chunksize=2), answers)
    try:
        pool.apply(refused, ("nope",))
    except AnswerError as error:
        print(error.status, error.kind, error.request_id != "", error)
[thread.join() for thread in threads]
print(answers, wrong(client, 0))
client.close()
"""

ASYNC = """
def run(code):
    child = os.fork()
    if child == 0:
        try:
            print(asyncio.run(code()), flush=True)
        finally:
            os._exit(0)
    return child

async def ask():
    return [name for name in names * 10 if (await client.document(name)).id != name]

client = AsyncSearchClient(url, timeout_s=120)
with asyncio.Runner() as runner:
    print(runner.run(ask()))
    children = [run(ask) for _ in range(3)]
    print(runner.run(ask()))
    [os.waitpid(child, 0) for child in children]
    runner.run(client.aclose())
"""

CLOSED = """
client = SearchClient(url, timeout_s=120)
def ask():
    try:
        return client.document(names[0]).id == names[0]
    except ClientError as error:
        return error
child = os.fork()
if child == 0:
    try:
        with client:  # the end of the block closes the child's connections alone
            print(ask(), flush=True)
        print(ask(), flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
print(ask())
client.close()
print(ask())
"""


def forked(script: str, url: str) -> list[str]:
    """Run a script in a process without a JVM, which can't be forked; return the lines of its output."""
    done = apart("-W", "ignore::DeprecationWarning", "-c", BEGINNING + script, url)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_pool_of_forked_processes_gets_its_own_answers(url: str) -> None:
    answers, refused, later = forked(POOL, url)
    assert (answers, later) == (f"{[[]] * 8} []", "[] []")
    assert refused.startswith("404 document_not_found True No document has the id 'nope'")


def test_so_do_event_loops_of_forked_processes(url: str) -> None:
    assert forked(ASYNC, url) == ["[]"] * 5


def test_a_closed_client_stays_closed_in_its_own_process(url: str) -> None:
    closed = "The client is closed. Make a new one, or close it later."
    assert forked(CLOSED, url) == ["True", closed, "True", closed]
