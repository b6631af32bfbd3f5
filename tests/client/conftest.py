"""Shared by the tests of the client: a real server, and both clients."""

import os
from collections.abc import Iterator

import pytest

# Read when the library is imported: without it Haystack reports its use to its makers.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"

from lightretriever.artifacts.bundle.reader import Bundle
from tests.client.both import BOTH, Client, Maker
from tests.service.live import live_bundles


@pytest.fixture(scope="session")
def url(tiny_bundle: Bundle) -> Iterator[str]:
    """The address of a real server, in this process."""
    with live_bundles(tiny_bundle.path) as url:
        yield url


@pytest.fixture(params=BOTH)
def make(request: pytest.FixtureRequest) -> Maker:
    """Either class of client."""
    return BOTH[request.param]


@pytest.fixture
def client(make: Maker, url: str) -> Iterator[Client]:
    """Either client, of the real server."""
    with make(url, timeout_s=120) as client:
        yield client
