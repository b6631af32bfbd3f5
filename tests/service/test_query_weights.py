"""A bundle with IDF weights: both legs, both ways to a score, and what the service says of it."""

from collections.abc import Iterator

import numpy as np
import pytest
from fastapi.testclient import TestClient
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import EncodeRequest, SearchRequest
from lightretriever.service.search.engine import SearchEngine

from tests.service.conftest import SETTINGS
from tests.service.live import warm
from tests.service.reference import Corpus, Scores
from tests.support.tiny import make_tiny_bundle, tiny_idf

QUERIES = ["play music from the terminal", "music music player", "Zażółć gęślą jaźń", "a", "the the the compiler 2024!"]


@pytest.fixture(scope="module")
def idf_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("idf") / "tiny", idf=True)


@pytest.fixture(scope="module")
def idf_engine(idf_bundle: Bundle) -> Iterator[SearchEngine]:
    with warm(idf_bundle, SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def idf_client(idf_engine: SearchEngine) -> Iterator[TestClient]:
    with TestClient(create_app(idf_engine)) as client:
        yield client


@pytest.fixture(scope="module")
def idf_corpus(idf_bundle: Bundle) -> Corpus:
    return Corpus(idf_bundle)


@pytest.mark.parametrize("query", QUERIES)
def test_sparse_scores_over_http_are_those_of_numpy(idf_client: TestClient, idf_corpus: Corpus, query: str) -> None:
    answer = idf_client.post("/search", json={"query": query, "mode": "sparse", "k": 50}).json()
    scores = idf_corpus.sparse_scores(query)
    expected = idf_corpus.rank(scores, 50, positive=True)
    assert [hit["id"] for hit in answer["hits"]] == [idf_corpus.documents[ordinal].id for ordinal in expected]
    unrounded = _unrounded(idf_corpus, query)[expected]
    tokens = len(set(idf_corpus.tokenizer.query_ids(query)))
    np.testing.assert_allclose([hit["score"] for hit in answer["hits"]], unrounded, rtol=(tokens + 1) * 2**-24)


def _unrounded(corpus: Corpus, query: str) -> Scores:
    counts = np.bincount(corpus.tokenizer.query_ids(query), minlength=corpus.tokenizer.vocab_size)
    return np.asarray(corpus.impacts @ (counts * tiny_idf(corpus.tokenizer).astype(np.float64)))


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("candidates", [15, 100])
def test_hybrid_scores_candidates_of_the_other_leg_alike(
    idf_engine: SearchEngine, idf_corpus: Corpus, query: str, candidates: int
) -> None:
    answer = idf_engine.search(SearchRequest(query=query, candidates=candidates, k=15))
    expected = idf_corpus.hybrid(query, candidates, (0.7, 0.3), "range")
    assert [hit.id for hit in answer.hits] == expected.ids[:15]
    assert [hit.score for hit in answer.hits] == pytest.approx(expected.scores[:15], abs=1e-5)
    assert [hit.sparse and hit.sparse.score for hit in answer.hits] == pytest.approx(expected.sparse[:15], rel=1e-6)


def test_the_weights_change_the_ranking_but_not_the_dense_leg(
    engine: SearchEngine, idf_engine: SearchEngine, corpus: Corpus
) -> None:
    query = "a music player for the terminal"
    for mode, same in (("dense", True), ("sparse", False)):
        plain, weighted = (
            one.search(SearchRequest.model_validate({"query": query, "mode": mode, "k": 50})).hits
            for one in (engine, idf_engine)
        )
        assert ([hit.id for hit in plain] == [hit.id for hit in weighted]) == same


def test_encode_tells_count_and_weight(engine: SearchEngine, idf_engine: SearchEngine, idf_corpus: Corpus) -> None:
    request = EncodeRequest(text="play music music music")
    idf = tiny_idf(idf_corpus.tokenizer)
    plain, weighted = engine.encode(request).terms, idf_engine.encode(request).terms
    assert [term.count for term in plain] == [term.count for term in weighted]
    assert [term.weight for term in plain] == [term.count for term in plain]
    assert [term.weight for term in weighted] == [
        float(np.float32(term.count) * idf[int(term.term)]) for term in weighted
    ]
    assert idf_engine.encode(request).tokens == engine.encode(request).tokens


def test_info_and_metrics_tell_which_variant_is_served(client: TestClient, idf_client: TestClient) -> None:
    for one, variant in ((client, "count"), (idf_client, "idf_count")):
        assert one.get("/info").json()["bundle"]["query_weights"] == variant
        assert f'query_weights="{variant}"' in one.get("/metrics").text
