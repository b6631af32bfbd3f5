"""The engine in process: pages, batches, documents, timings, beginning and end.

That its answers are those of a search by brute force is in tests/backends/test_random_requests.py.
"""

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import DocumentNotFoundError, NotReadyError
from lightretriever.service.schemas import EncodeRequest, LinearFusion, SearchRequest, Weights
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.reference import Corpus
from tests.support.wordings import raises


def test_weights_one_and_zero_give_the_dense_ranking_whatever_k(engine: SearchEngine) -> None:
    dense = engine.search(SearchRequest(query="play music", mode="dense", k=100))
    for k in (1, 7, 100):
        fusion = LinearFusion(weights=Weights(dense=1, sparse=0))
        answer = engine.search(SearchRequest(query="play music", k=k, fusion=fusion))
        assert [hit.id for hit in answer.hits] == [hit.id for hit in dense.hits[:k]]
        assert {hit.sparse for hit in answer.hits} == {None}
        assert answer.degraded == []
        assert answer.timings_ms.sparse is None


def test_fields_are_those_asked_for(engine: SearchEngine) -> None:
    assert engine.reader.fields == ["text", "title", "year"]
    for fields, expected in ((None, {"title", "text", "year"}), (["year", "title"], {"year", "title"}), ([], set())):
        answer = engine.search(SearchRequest(query="music", fields=fields))
        assert {frozenset(hit.fields) for hit in answer.hits} == {frozenset(expected)}


def test_documents_come_whole_by_id(engine: SearchEngine, corpus: Corpus) -> None:
    for document in corpus.documents:
        stored = engine.document(document.id)
        assert stored.fields == {"title": document.title, "text": document.text, "year": document.year}
    for missing in ("", "doc-1000", "MUSIC", "music ", "\x00", "\ud800", "é" * 5000):
        with pytest.raises(DocumentNotFoundError):
            engine.document(missing)


def test_encode_shows_what_the_legs_see(engine: SearchEngine, corpus: Corpus) -> None:
    answer = engine.encode(EncodeRequest(text="play music music music", task="fact"))
    ids = corpus.tokenizer.query_ids("play music music music")
    mean = corpus.tables["fact"][ids].mean(axis=0)
    assert answer.dense == pytest.approx((mean / (mean @ mean) ** 0.5).tolist(), abs=1e-6)
    assert answer.dimension == 16
    counts = {int(token): list(ids).count(token) for token in ids}
    assert {token.id: token.count for token in answer.tokens} == counts
    assert [token.token for token in answer.tokens] == [corpus.tokenizer.token(token.id) for token in answer.tokens]
    assert {int(term.term): term.count for term in answer.terms} == counts
    assert [term.text for term in answer.terms] == [corpus.tokenizer.token(int(term.term)) for term in answer.terms]
    assert max(counts.values()) > 1


def test_many_hits_raise_the_candidates(engine: SearchEngine) -> None:
    """By whole defaults, so that the pages of one such step have one order."""
    asked = [SearchRequest(query="music", k=10, offset=100), SearchRequest(query="music", k=20, offset=100)]
    first, second = (engine.search(request) for request in asked)
    assert second.hits[:10] == first.hits
    whole = engine.search(SearchRequest(query="music", k=120, candidates=200))
    assert whole.hits[100:] == second.hits


def test_ready_only_after_the_warm_up_and_not_after_closing(tiny_bundle: Bundle) -> None:
    engine = SearchEngine.open(tiny_bundle, Settings(deadline_ms=60_000, warm_up_queries=1))
    with raises(NotReadyError):
        engine.require_ready()
    engine.warm_up()
    engine.require_ready()
    engine.close()
    engine.close()
    for call in (engine.require_ready, engine.warm_up, lambda: engine.search(SearchRequest(query="a"))):
        with raises(NotReadyError):
            call()
    with raises(NotReadyError):
        engine.document("music")
