"""Values of a keyword field are counted as long as there are not too many, on this machine and on a cluster."""

import os
from pathlib import Path

import pytest

from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.documents.bounds import MAX_COUNTED
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.cluster import connected, remove_indexes
from tests.support.tiny import TinyDocument, make_tiny_bundle
from tests.support.wordings import raises

NAME = f"values-{os.getpid()}"
EACH = 1000


def asked(years: int) -> SearchRequest:
    return SearchRequest.model_validate(
        {"query": None, "filter": {"field": "year", "lt": 2000 + years}, "k": 1, "fields": [], "facets": ["tags"]}
    )


@pytest.mark.parametrize("cluster", [False, True])
def test_more_than_ten_thousand_values_are_refused(
    request: pytest.FixtureRequest, tmp_path: Path, cluster: bool
) -> None:
    documents = [
        TinyDocument(f"doc-{n}", "", "music", 2000 + n, more={"tags": [f"{n}-{value}" for value in range(EACH)]})
        for n in range(MAX_COUNTED // EACH + 1)
    ]
    bundle = make_tiny_bundle(tmp_path / "bundle", documents=documents, fields={"tags": "keyword", "year": "number"})
    settings = Settings(deadline_ms=60_000)
    if cluster:
        url = request.getfixturevalue("opensearch")
        request.addfinalizer(lambda: remove_indexes(url, NAME))
        with connected(url) as connection:
            push(bundle, connection, NAME, replicas=0, skipped=int, written=int)
        settings = Settings(deadline_ms=60_000, opensearch_url=url, opensearch_index=NAME)
    with SearchEngine.open(bundle, settings) as engine:
        answer = engine.search(asked(len(documents) - 1))
        assert answer.facets is not None
        assert (len(answer.facets["tags"]), answer.total) == (MAX_COUNTED, len(documents) - 1)
        with raises(InvalidRequestError, naming="tags"):
            engine.search(asked(len(documents)))
