"""Documents that change: a bundle of tokens, a server over a file's own fixture `engine`, and a client."""

from collections.abc import Iterator

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import SearchClient
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from tests.service.live import live
from tests.support.tiny import make_tiny_bundle
from tests.support.written import KEY


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("live") / "tiny", vocabulary="tokens", fields={"year": "number"})


@pytest.fixture(scope="module")
def url(engine: SearchEngine) -> Iterator[str]:
    with live(create_app(engine)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[SearchClient]:
    with SearchClient(url, api_key=KEY, timeout_s=60) as client:
        yield client
