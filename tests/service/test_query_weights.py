"""A bundle with IDF weights: what the service says. tests/backends/test_random_requests.py compares the scores."""

from collections.abc import Iterator

import numpy as np
import pytest
from fastapi.testclient import TestClient

from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import EncodeRequest
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.service.live import warm
from tests.support.tiny import make_tiny_bundle, tiny_idf


@pytest.fixture(scope="module")
def idf_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    with warm(make_tiny_bundle(tmp_path_factory.mktemp("idf") / "tiny", idf=True), SETTINGS) as engine:
        yield engine


def test_encode_tells_count_and_weight(engine: SearchEngine, idf_engine: SearchEngine) -> None:
    request = EncodeRequest(text="play music music music")
    idf = tiny_idf(idf_engine.bundle.tokenizer())
    plain, weighted = engine.encode(request).terms, idf_engine.encode(request).terms
    assert [term.count for term in plain] == [term.count for term in weighted]
    assert [term.weight for term in plain] == [term.count for term in plain]
    assert [term.weight for term in weighted] == [
        float(np.float32(term.count) * idf[int(term.term)]) for term in weighted
    ]
    assert idf_engine.encode(request).tokens == engine.encode(request).tokens


def test_info_and_metrics_tell_which_variant_is_served(engine: SearchEngine, idf_engine: SearchEngine) -> None:
    for served, variant in ((engine, "count"), (idf_engine, "idf_count")):
        with TestClient(create_app(served)) as client:
            assert client.get("/info").json()["bundle"]["query_weights"] == variant
            assert f'query_weights="{variant}"' in client.get("/metrics").text
