"""The real service in bad times: too much to do, a limit on the rate, killed and started again."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import SearchClient, UnreachableError
from tests.client.both import Maker
from tests.service.process import Server


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
