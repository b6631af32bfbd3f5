"""The real service in bad times: too much to do, a limit on the rate, killed and started again."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AnswerError, SearchClient, UnreachableError
from lightretriever.service.http.app import create_app
from tests.client.both import Maker
from tests.service.live import live, warm
from tests.service.process import Server
from tests.service.test_overload import SETTINGS, WAITING, WORKING
from tests.support.legs import GatedLeg
from tests.support.waiting import wait_until
from tests.support.wordings import raises


def test_an_overloaded_service_is_asked_again_until_it_answers(
    make: Maker, tiny_bundle: Bundle, gate: threading.Event
) -> None:
    callers = WORKING + WAITING + 5
    with warm(tiny_bundle, SETTINGS) as engine:
        engine.parts.backends.legs["dense"] = GatedLeg(engine.parts.backends.legs["dense"], gate)

        def refused() -> float:
            sample = {"kind": "overloaded"}
            return engine.metrics.registry.get_sample_value("lightretriever_errors_total", sample) or 0

        def ask(url: str) -> int:
            with make(url, timeout_s=300, attempts=10_000) as client:
                return len(client.search("music").hits)

        with live(create_app(engine)) as url, ThreadPoolExecutor(callers) as pool:
            asked = [pool.submit(ask, url) for _ in range(callers)]
            wait_until(lambda: refused() >= 5)
            with make(url, attempts=1) as client:
                with raises(AnswerError, naming="max_waiting") as error:
                    client.search("music")
                assert (error.value.status, error.value.kind) == (503, "overloaded")
                assert error.value.retry_after_s == 1
                assert client.ready()
            gate.set()
            assert [future.result() for future in asked] == [10] * callers


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


def test_threads_share_a_client(url: str) -> None:
    words = ["music", "editor", "chess", "network"] * 10
    with SearchClient(url, timeout_s=120) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda word: [hit.id for hit in client.search(word).hits], words))
        assert found == [[hit.id for hit in client.search(word).hits] for word in words]
