"""Any number of queries: in order, in bounded memory, with several requests at once, and ended early."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AnswerError, AsyncSearchClient, ClientError, SearchClient, UnreachableError
from lightretriever.service.client.calls import Query
from tests.client.both import Client, Maker
from tests.client.scripted import FOUND, Scripted, answer, problem, stall_until
from tests.service.process import ROOT, Server
from tests.support.wordings import raises

WORDS = ("play music", "text editor", "chess games", "network", "Ελληνικά", "parser", "terminal")
SIZE, CONCURRENCY = 3, 2
BATCH = answer({"results": [FOUND] * SIZE})

FOLLOW = """
import signal, sys
from lightretriever.service.client import SearchClient

def queries():
    for number in range(5):
        print(number, flush=True)
        yield "music"

def stop(number, frame):
    print("heard", flush=True)
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, stop)  # a shell starts background jobs with SIGINT ignored
with SearchClient(sys.argv[1]) as client:
    list(client.search_many(queries(), batch_size=1, concurrency=1))
"""


def endless(taken: list[int]) -> Iterator[str]:
    while True:
        taken.append(len(taken))
        yield f"music {len(taken)}"


@pytest.mark.parametrize(("count", "size", "concurrency"), [(0, 3, 2), (1, 3, 2), (7, 3, 2), (100, 16, 4), (20, 1, 8)])
def test_answers_come_in_the_order_of_the_queries(client: Client, count: int, size: int, concurrency: int) -> None:
    words = [WORDS[number % len(WORDS)] for number in range(count)]
    alone = {word: [hit.id for hit in client.search(word, k=3).hits] for word in set(words)}
    answers = client.search_many(iter(words), batch_size=size, concurrency=concurrency, k=3)
    assert [[hit.id for hit in answer.hits] for answer in answers] == [alone[word] for word in words]


def test_no_more_is_read_than_is_worked_on(make: Maker) -> None:
    taken: list[int] = []
    with Scripted(BATCH) as server, make(server.url) as client:
        answers = client.search_many(endless(taken), batch_size=SIZE, concurrency=CONCURRENCY)
        for number in range(1, 100):
            next(answers)
            batches = -(-number // SIZE)
            assert len(taken) <= (batches + CONCURRENCY) * SIZE
            assert len(server.seen) <= batches + CONCURRENCY
        del answers


def test_so_many_requests_are_made_at_once_and_no_more(make: Maker) -> None:
    gate, lock = threading.Event(), threading.Lock()
    inside, most = 0, 0
    all_in = threading.Event()

    def held(handler: BaseHTTPRequestHandler) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == CONCURRENCY:
                all_in.set()
        gate.wait()
        with lock:
            inside -= 1
        BATCH(handler)

    def let_in() -> None:
        assert all_in.wait(60)
        gate.set()

    opener = threading.Thread(target=let_in)
    opener.start()
    with Scripted(held) as server, make(server.url) as client:
        answers = list(client.search_many(["music"] * SIZE * 10, batch_size=SIZE, concurrency=CONCURRENCY))
        assert len(answers) == SIZE * 10
    opener.join()
    assert most == CONCURRENCY


def test_an_error_comes_where_its_answers_would(client: Client) -> None:
    """A batch is refused as a whole; those before it were answered. Places are counted over all queries."""
    queries: list[Query] = ["music"] * 7
    for bad, field in (({"query": "music", "task": "nope"}, "task"), ("", "query")):
        queries[4] = bad
        answers = client.search_many(queries, batch_size=2)
        for _ in range(4):
            assert next(answers).hits
        with raises(AnswerError, naming="invalid_request") as error:
            next(answers)
        assert [item.field for item in error.value.errors] == [f"searches.4.{field}"]
        assert next(answers, None) is None


def test_every_batch_is_tried_again(make: Maker) -> None:
    busy = problem(503, "overloaded", retry_after="0")
    with Scripted(busy, BATCH, busy, busy, BATCH, BATCH) as server, make(server.url) as client:
        answers = list(client.search_many(["music"] * SIZE * 3, batch_size=SIZE, concurrency=1))
        assert len(answers) == 3 * SIZE
        assert len(server.seen) == 6


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"concurrency": -1}])
def test_sizes_that_make_no_sense_are_refused(client: Client, options: dict[str, int]) -> None:
    with raises(ClientError):
        list(client.search_many(["music"], **options))


def test_ending_early_begins_nothing_more() -> None:
    gate = threading.Event()
    with Scripted(BATCH, stall_until(gate)) as server, SearchClient(server.url) as client:
        taken: list[int] = []
        answers = client.search_many(endless(taken), batch_size=SIZE, concurrency=1)
        next(answers)
        server.wait_for(2)
        gate.set()
        answers.close()
        assert len(server.seen) == 2
        assert len(taken) == 2 * SIZE
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("search-many")]


def test_ctrl_c_ends_it_before_the_batch_that_waits() -> None:
    gate = threading.Event()
    with Scripted(stall_until(gate)) as server:
        command = [sys.executable, "-c", FOLLOW, server.url]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            server.wait_for(1)
            assert [process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]  # the second batch is read
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "heard\n"
            gate.set()
            _, errors = process.communicate(timeout=60)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert len(server.seen) == 1


def test_cancelling_who_waits_cancels_the_requests() -> None:
    never = threading.Event()

    async def use(server: Scripted) -> None:
        async with AsyncSearchClient(server.url, timeout_s=10_000) as client:

            async def follow() -> None:
                async for _ in client.search_many(["music"] * 100, batch_size=1, concurrency=4):
                    pass

            task = asyncio.create_task(follow())
            await asyncio.to_thread(server.wait_for, 4)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while asyncio.all_tasks() != {asyncio.current_task()}:  # the generator is closed by the loop
                await asyncio.sleep(0)
            assert len(server.seen) == 4

    with Scripted(stall_until(never)) as server:
        asyncio.run(use(server))
        never.set()


def test_a_server_that_goes_away_ends_the_stream(make: Maker) -> None:
    with Scripted(BATCH) as server, make(server.url) as client:
        answers = client.search_many(endless([]), batch_size=SIZE, concurrency=CONCURRENCY)
        next(answers)
        server.leave()
        with pytest.raises(UnreachableError):
            deque(answers, maxlen=0)


@pytest.mark.slow
def test_a_service_that_dies_is_found_again_when_it_is_back(make: Maker, tiny_bundle: Bundle) -> None:
    quiet = {"LIGHTRETRIEVER_LOG_LEVEL": "error"}
    with Server(tiny_bundle.path, environment=quiet) as first:
        url = first.url
        with make(url, timeout_s=120, attempts=10_000) as client:
            answers = client.search_many(iter(lambda: "music", None), batch_size=2, concurrency=2)
            assert next(answers).hits
            first.process.kill()
            first.process.wait()
            with make(url, attempts=2) as other, pytest.raises(UnreachableError):
                other.search("music")
            port = int(url.rpartition(":")[2])
            with Server(tiny_bundle.path, port=port, environment=quiet) as second:
                # Batches on the way when it died come from the second one.
                for _ in range(20):
                    assert next(answers).hits
                answers.close()
                assert second.process.poll() is None
