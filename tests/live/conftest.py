"""Documents that change: a bundle of tokens, an engine with a journal, a server over it, and a client."""

from collections.abc import Iterator

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import SearchClient
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.written import ENTRIES, KEY


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("live") / "tiny", vocabulary="tokens", fields={"year": "number"})


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("keys")
    keys = keys_file(folder, *ENTRIES)
    return Settings(live=folder / "live", deadline_ms=60_000, warm_up_queries=1, watch_s=0, api_keys_file=keys)


@pytest.fixture(scope="module")
def engine(bundle: Bundle, settings: Settings) -> Iterator[SearchEngine]:
    with SearchEngine.open(bundle, settings) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: SearchEngine) -> Iterator[str]:
    with live(create_app(engine)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[SearchClient]:
    with SearchClient(url, api_key=KEY, timeout_s=60) as client:
        yield client
