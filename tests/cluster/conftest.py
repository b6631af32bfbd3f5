"""A connection to the cluster, on which each file of tests has indexes of its own."""

from collections.abc import Iterator

import pytest

from lightretriever.artifacts.cluster.client import Cluster
from tests.live.conftest import bundle, client, engine, url
from tests.support.cluster import connected, remove_indexes

__all__ = ["bundle", "client", "cluster", "engine", "url"]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, opensearch: str) -> Iterator[Cluster]:
    """Indexes whose names begin with the file's `NAME` go with it."""
    with connected(opensearch) as cluster:
        yield cluster
    remove_indexes(opensearch, request.module.NAME)
