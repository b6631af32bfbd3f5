"""Shared by the tests of the service: an engine and a client over the tiny bundle."""

import logging
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, Page

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.browsing import browsing, page_of
from tests.service.live import client_of, live, live_bundles, warm
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import BundleOf, make_tiny_bundle

# Generous: no test of this folder is about being fast.
SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=3)


@pytest.fixture(scope="session")
def engine(tiny_bundle: Bundle) -> Iterator[SearchEngine]:
    """A warm engine. Who breaks parts of it opens another one."""
    with warm(tiny_bundle, SETTINGS) as engine:
        yield engine


@pytest.fixture
def fresh_engine(tiny_bundle: Bundle) -> Iterator[SearchEngine]:
    """An engine to break, with few threads, so that they are soon used up."""
    with SearchEngine.open(tiny_bundle, SETTINGS.model_copy(update={"search_threads": 2})) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: SearchEngine) -> Iterator[TestClient]:
    """The whole application over the engine of the module, in process."""
    with TestClient(create_app(engine)) as client:
        yield client


@pytest.fixture(scope="session")
def url(engine: SearchEngine) -> Iterator[str]:
    """The address of a real server, in this process."""
    with live(create_app(engine)) as url:
        yield url


@pytest.fixture(scope="session")
def meaningful_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """See `tests.support.meaning`. Read only."""
    return make_meaningful_bundle(tmp_path_factory.mktemp("meaningful") / "bundle")


@pytest.fixture(scope="session")
def meaningful_engine(meaningful_bundle: Bundle) -> Iterator[SearchEngine]:
    with warm(meaningful_bundle, SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="session")
def meaning(meaningful_engine: SearchEngine) -> Iterator[TestClient]:
    """The application over it."""
    with TestClient(create_app(meaningful_engine)) as client:
        yield client


@pytest.fixture(scope="session")
def words_client(bundle_of: BundleOf) -> Iterator[TestClient]:
    """The application over the tiny documents, whose terms are words and whose year is a field."""
    with client_of(bundle_of("words"), SETTINGS) as client:
        yield client


Noted = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Note the arguments of every call of a function of an object or class; `by_days`: the clock of searches then goes
    on by a day with each."""

    def note(owner: object, name: str, *, by_days: bool = False) -> list[tuple[Any, ...]]:
        calls, function = list[tuple[Any, ...]](), getattr(owner, name)

        def call(*arguments: Any) -> Any:
            calls.append(arguments)
            return function(*arguments)

        monkeypatch.setattr(owner, name, call)
        if by_days:
            clock = "lightretriever.service.search.request.perf_counter"
            monkeypatch.setattr(clock, lambda: perf_counter() + 86_400 * len(calls))
        return calls

    return note


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """The service configures the log of its process; whatever was there before is put back."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers.clear()  # they would be closed when they are replaced
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("page") / "bundle", documents=41)
    with live_bundles(bundle.path) as url:
        yield url


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    with page_of(browser, site) as page:
        yield page
