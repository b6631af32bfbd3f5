"""A leg breaks in Java or in Faiss while a real server answers: degraded and marked, an error, and healthy again."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_server
from threading import Timer
from typing import Any, Final

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.loadtest.process import ROOT, python
from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import LegName
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.serving.server import serve
from lightretriever.service.settings import Settings
from tests.faults.traffic import bare
from tests.service.live import live, warm
from tests.support.legs import WrappedLeg
from tests.support.tiny import make_tiny_bundle
from tests.support.waiting import wait_until

BODY = {"query": "play music from the terminal", "k": 20}
SETTINGS = Settings(deadline_ms=60_000, search_threads=2, warm_up_queries=3)


class Broken(WrappedLeg):
    """Calls Java before each search, alone or with the dense leg: a method of a class, with these arguments."""

    def __init__(self, engine: SearchEngine, name: str = "", method: str = "", *arguments: Any) -> None:
        super().__init__(engine, "sparse")
        self._call = name, method, arguments

    def begin(self, count: int, seconds: float) -> None:
        name, method, arguments = self._call
        java_call(getattr(java_class(name), method), *arguments)


class Hanging(Broken):
    """Waits in Java, where nothing of Python reaches it, until `release`."""

    def __init__(self, engine: SearchEngine) -> None:
        super().__init__(engine)
        self._latch = java_class("java.util.concurrent.CountDownLatch")(1)

    def begin(self, count: int, seconds: float) -> None:
        java_call(getattr(self._latch, "await"))

    def release(self) -> None:
        java_call(self._latch.countDown)


class ClosedReader(WrappedLeg):
    """A leg whose Lucene reader was closed."""

    def __init__(self, engine: SearchEngine) -> None:
        super().__init__(engine, "sparse")
        self.index = engine.bundle.sparse()
        self.index.close()


SPARSE: Final[dict[str, Callable[[SearchEngine], WrappedLeg]]] = {
    "AlreadyClosedException": ClosedReader,
    # More bytes than any Java heap here.
    "OutOfMemoryError": lambda it: Broken(it, "java.nio.ByteBuffer", "allocate", 2**31 - 1),
    # Java's regular expressions recurse for every letter of a long text.
    "StackOverflowError": lambda it: Broken(it, "java.util.regex.Pattern", "matches", "(a|b)*", "ab" * 1_000_000),
}
"""By the exception in Java."""


@pytest.fixture
def engine(tiny_bundle: Bundle) -> Iterator[SearchEngine]:
    with warm(tiny_bundle, SETTINGS) as engine:
        yield engine


def search(url: str, **fields: object) -> httpx2.Response:
    return httpx2.post(f"{url}/search", json=BODY | fields, timeout=90)


def whole(url: str) -> bytes:
    """An answer by both legs and in time: on a busy machine, the first of several."""
    while (answer := search(url, snippets={})).json().get("degraded", True):
        assert answer.status_code in (200, 504)
    return answer.content


def status(url: str, path: str) -> int:
    return httpx2.get(f"{url}/{path}", timeout=90).status_code


def problem(answer: httpx2.Response) -> tuple[int, str]:
    """Status and kind of an error, which tells nothing of what is inside."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert not any(
        word in answer.text for word in ("Exception", "StackOverflow", "OutOfMemory", "java", "lucene", "Traceback")
    )
    return answer.status_code, answer.json()["kind"]


def alone(answer: dict[str, Any], leg: LegName) -> list[tuple[str, object]]:
    return [(hit["id"], hit[leg]) for hit in answer["hits"]]


def assert_does_without(url: str, leg: LegName, other: LegName, times: int = 1) -> None:
    """Answers come from the other leg and say so; who needs this one gets an error."""
    answer = search(url)
    assert (answer.status_code, answer.json()["degraded"]) == (200, [leg])
    assert alone(answer.json(), other) == alone(search(url, mode=other).json(), other)
    assert {hit[leg] for hit in answer.json()["hits"]} == {None}
    for refused in (search(url, allow_partial=False), search(url, mode=leg)):
        assert problem(refused) == (500, "search_failed")
    batch = httpx2.post(f"{url}/search/batch", json={"searches": [BODY, BODY]}, timeout=90).json()
    assert [one["degraded"] for one in batch["results"]] == [[leg], [leg]]
    counted = f'degraded_total{{leg="{leg}",reason="failed"}} {3 * times}.0'
    assert counted in httpx2.get(f"{url}/metrics", timeout=90).text
    assert [status(url, path) for path in ("livez", "readyz", "documents/music")] == [200, 200, 200]


def test_a_java_error_in_the_sparse_leg(engine: SearchEngine, caplog: pytest.LogCaptureFixture) -> None:
    with live(create_app(engine)) as url:
        before = search(url)
        for times, (kind, broken) in enumerate(SPARSE.items(), 1):
            leg = broken(engine)
            assert_does_without(url, "sparse", "dense", times)
            assert kind in caplog.text
            leg.restore()
            assert bare(search(url).content) == bare(before.content)


def test_an_error_in_the_dense_leg_and_then_in_both(engine: SearchEngine, tmp_path: Path) -> None:
    other = make_tiny_bundle(tmp_path / "other", dimension=24)
    with live(create_app(engine)) as url:
        before = search(url)
        wrong = WrappedLeg(engine, "dense")
        wrong.index = other.dense()
        assert_does_without(url, "dense", "sparse")
        closed = ClosedReader(engine)
        for answer in (search(url), search(url, allow_partial=False), search(url, mode="dense")):
            assert problem(answer) == (500, "search_failed")
        assert "dense and sparse" in search(url).json()["detail"]
        assert [status(url, path) for path in ("livez", "documents/music")] == [200, 200]
        closed.restore()
        wrong.restore()
        assert bare(search(url).content) == bare(before.content)


def test_a_closed_index_under_everything(engine: SearchEngine) -> None:
    """Neither the sparse leg nor the documents can be read: nothing is answered with 200 any more."""
    with live(create_app(engine)) as url:
        engine.parts.documents.store.close()
        for answer in (search(url), *(search(url, mode=mode) for mode in ("dense", "sparse"))):
            assert problem(answer) == (500, "search_failed")
        assert problem(httpx2.get(f"{url}/documents/music", timeout=90)) == (500, "search_failed")
        assert status(url, "livez") == 200


def test_a_leg_that_hangs_in_java(tiny_bundle: Bundle) -> None:
    """The first call in a thread: a light search would stop the event loop with it. While it hangs, light searches are
    answered in threads, too."""
    own = SETTINGS.model_copy(update={"deadline_ms": 4_000})
    with warm(tiny_bundle, own) as hasty, live(create_app(hasty)) as url:
        before = whole(url)
        hanging = Hanging(hasty)
        try:
            assert problem(search(url, snippets={})) == (504, "deadline_exceeded")
            wait_until(lambda: search(url, mode="dense").status_code == 200)
            while not hasty.parts.executor.lanes["requests"].stuck:
                assert search(url).status_code in (503, 504)
            unready = httpx2.get(f"{url}/readyz", timeout=90)
            assert problem(unready) == (503, "not_ready")
            assert "requests" in unready.json()["detail"]
            # No time is lost any more with what can't be answered.
            assert problem(search(url)) == (503, "not_ready")
            assert status(url, "livez") == 200
        finally:
            hanging.restore()
            hanging.release()
        wait_until(lambda: not hasty.parts.executor.lanes["requests"].stuck)
        assert status(url, "readyz") == 200
        assert bare(whole(url)) == bare(before)


def main(bundle: Path) -> None:
    """Serve a bundle whose sparse leg hangs from the first request on, and print the port."""
    settings = Settings(deadline_ms=4_000, search_threads=2, warm_up_queries=1, log_level="error")
    with create_server(("127.0.0.1", 0)) as listener, EngineHolder.open(bundle, settings) as serving:
        engine = serving.engine

        def on_ready() -> None:
            Hanging(engine)
            print(listener.getsockname()[1], flush=True)

        serve(Collections({serving.name: serving}), [listener], on_ready)


def test_a_call_that_hangs_in_java_does_not_keep_the_process_from_ending(tiny_path: Path) -> None:
    with subprocess.Popen(python(__name__, str(tiny_path)), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        alarm = Timer(120, process.kill)
        alarm.start()
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            assert problem(search(url)) == (504, "deadline_exceeded")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            alarm.cancel()
            process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
