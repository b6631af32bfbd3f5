"""Answers: as their models would write them, by every door; of documents like another, of bundles without a dense leg,
and where a leg has nothing for a query; pages, documents and what the legs see, in process."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.service.errors import DocumentNotFoundError
from lightretriever.service.schemas import BatchResponse, EncodeRequest, SearchRequest, SearchResponse
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.asking import ask, ids, without_times
from tests.support.tiny import BundleOf, tiny_documents

QUERY = "play music from the terminal"
LIKE = "doc-50"
KINDS: tuple[VocabularyKind, ...] = ("words", "tokens")
REQUESTS: list[dict[str, Any]] = [
    {},
    {"k": 3, "offset": 2, "fields": ["title"]},
    {"fields": [], "snippets": {"fields": ["text"], "length": 40}},
    {"snippets": {}, "explain": True},
    {"mode": "dense"},
    {"mode": "sparse", "explain": True},
    {"fusion": {"method": "rrf"}},
    {"offset": 99, "k": 1, "candidates": 100},
]


def same(content: bytes, model: type[BaseModel]) -> bool:
    read = model.model_validate_json(content)
    return bool(json.loads(content) == json.loads(read.model_dump_json()))


def test_an_answer_is_what_its_model_writes_and_what_the_process_answers(
    client: TestClient, engine: SearchEngine
) -> None:
    searches = [{"query": "play some music", **request} for request in REQUESTS]
    singles = []
    for asked in searches:
        answer = client.post("/search", json=asked)
        assert answer.status_code == 200
        assert same(answer.content, SearchResponse), asked
        remote, local = answer.json(), engine.search(SearchRequest.model_validate(asked)).model_dump(mode="json")
        assert remote["timings_ms"].keys() == local["timings_ms"].keys()
        assert without_times(remote) == without_times(local), asked
        singles.append(without_times(remote))
    batch = client.post("/search/batch", json={"searches": searches})
    assert [without_times(one) for one in batch.json()["results"]] == singles
    assert same(batch.content, BatchResponse)


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("q=play+music", {"query": "play music"}),
        (
            "q=play%20music&k=3&offset=1&mode=dense&task=default",
            {"query": "play music", "k": 3, "offset": 1, "mode": "dense", "task": "default"},
        ),
        (f"like={LIKE}&k=5&mode=dense", {"like": LIKE, "k": 5, "mode": "dense"}),
    ],
)
def test_an_address_and_a_batch_are_answered_like_a_body(
    client: TestClient, address: str, body: dict[str, Any]
) -> None:
    posted = client.post("/search", json=body).json()
    (batched,) = client.post("/search/batch", json={"searches": [body]}).json()["results"]
    got = client.get(f"/search?{address}").json()
    assert got["timings_ms"].keys() == posted["timings_ms"].keys()
    assert without_times(got) == without_times(posted) == without_times(batched)
    assert got["hits"]


def test_documents_like_another_have_terms_in_common(words_client: TestClient) -> None:
    """What is like what: tests/backends."""
    answer = ask(words_client, like=LIKE, k=3, explain=True, snippets={"fields": ["text"]})
    assert LIKE not in ids(answer)
    assert "matched" not in answer
    for hit in answer["hits"]:
        explanation = hit["explanation"]
        assert explanation["note"] == f"The query is the document {LIKE}: its vector and its heaviest terms."
        assert all(word["dense"] is None and word["count"] == 0 for word in explanation["words"])
        assert sum(word["sparse"] for word in explanation["words"]) == pytest.approx(hit["sparse"]["score"])
        terms = [term for word in explanation["words"] for term in word["terms"]]
        assert bool(hit["snippets"]["text"]["marks"]) == any(term["impact"] for term in terms if not term["added"])


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, bundle_of: BundleOf) -> Iterator[list[TestClient]]:
    """Services of the same documents, whose bundle has no dense leg, or has one."""
    with ExitStack() as stack:
        yield [stack.enter_context(client_of(bundle_of(request.param, dense), SETTINGS)) for dense in (False, True)]


def test_without_a_dense_leg_hybrid_is_the_sparse_leg(both: list[TestClient]) -> None:
    sparse = both[0]
    hybrid = ask(sparse, QUERY, explain=True, k=50)
    alone, of_whole = (ask(client, QUERY, k=50, mode="sparse") for client in both)
    assert alone["hits"] == of_whole["hits"]
    assert ids(hybrid) == ids(alone)
    assert hybrid["degraded"] == []
    assert "matched" not in hybrid
    assert (hybrid["timings_ms"]["dense"], hybrid["timings_ms"]["rescore"]) == (None, None)
    for hit in hybrid["hits"]:
        assert hit["dense"] is None
        assert hit["explanation"]["fusion"]["dense"] is None
        words = hit["explanation"]["words"]
        assert [word["word"] for word in words] == QUERY.split()
        assert all((word["dense"], word["tokens"]) == (None, []) for word in words)
        assert sum(word["sparse"] for word in words) == hit["sparse"]["score"]
    assert [hit["score"] for hit in alone["hits"]] == [hit["sparse"]["score"] for hit in hybrid["hits"]]
    info = sparse.get("/info").json()
    assert info["bundle"]["dense_index"] is None
    assert info["modes"] == ["hybrid", "sparse"]
    assert info["legs"].keys() == {"sparse"}
    assert info["bundle"]["fusion_weights"] == {"dense": 0.0, "sparse": 1.0}
    encoded = sparse.post("/encode", json={"text": QUERY}).json()
    assert (encoded["dense"], encoded["tokens"], encoded["dimension"]) == ([], [], 0)
    assert encoded["terms"]
    assert encoded["timings_ms"]["encode"] is None
    answer = ask(sparse, QUERY, filter={"field": "year", "gte": 2005}, snippets={}, fusion={"method": "rrf"}, k=5)
    assert answer["hits"]
    assert all(hit["fields"]["year"] >= 2005 for hit in answer["hits"])
    assert any(snippet["marks"] for hit in answer["hits"] for snippet in hit["snippets"].values())
    assert sparse.get("/readyz").status_code == 200


def test_a_query_of_stop_words_is_left_to_the_dense_leg_and_an_unknown_word_to_the_sparse_one(
    meaning: TestClient,
) -> None:
    answer = ask(meaning, "the and of", explain=True)
    assert len(answer["hits"]) == 10
    assert answer["degraded"] == []
    for hit in answer["hits"]:
        assert hit["sparse"] is None
        assert hit["explanation"]["fusion"]["sparse"] is None
        assert "coverage" not in hit["explanation"]
        words = hit["explanation"]["words"]
        assert {word["sparse"] for word in words} == {None}
        assert sum(word["dense"] for word in words) == pytest.approx(hit["dense"]["score"], abs=1e-6)
    assert ids(answer) == ids(ask(meaning, "the and of", mode="dense"))
    answer = ask(meaning, "xkjdh", explain=True)
    assert (answer["hits"], answer["degraded"]) == ([], [])


def test_fields_are_those_asked_for(engine: SearchEngine) -> None:
    assert engine.reader.fields == ["text", "title", "year"]
    for fields, expected in ((None, {"title", "text", "year"}), (["year", "title"], {"year", "title"}), ([], set())):
        answer = engine.search(SearchRequest(query="music", fields=fields))
        assert {frozenset(hit.fields) for hit in answer.hits} == {frozenset(expected)}


def test_documents_come_whole_by_id(engine: SearchEngine) -> None:
    for document in tiny_documents():
        stored = engine.document(document.id)
        assert stored.fields == {"title": document.title, "text": document.text, "year": document.year}
    for missing in ("", "doc-1000", "MUSIC", "music ", "\x00", "\ud800", "é" * 5000):
        with pytest.raises(DocumentNotFoundError):
            engine.document(missing)


def test_encode_shows_what_the_legs_see(engine: SearchEngine) -> None:
    answer = engine.encode(EncodeRequest(text="play music music music", task="fact"))
    tokenizer = engine.bundle.tokenizer()
    ids = tokenizer.query_ids("play music music music")
    mean = engine.bundle.table("fact").rows(np.array(ids)).mean(axis=0)
    assert answer.dense == pytest.approx((mean / (mean @ mean) ** 0.5).tolist(), abs=1e-6)
    assert answer.dimension == 16
    counts = {int(token): list(ids).count(token) for token in ids}
    assert {token.id: token.count for token in answer.tokens} == counts
    assert [token.token for token in answer.tokens] == [tokenizer.token(token.id) for token in answer.tokens]
    assert {int(term.term): term.count for term in answer.terms} == counts
    assert [term.text for term in answer.terms] == [tokenizer.token(int(term.term)) for term in answer.terms]
    assert max(counts.values()) > 1


def test_many_hits_raise_the_candidates(engine: SearchEngine) -> None:
    """By whole defaults, so that the pages of one such step have one order."""
    asked = [SearchRequest(query="music", k=10, offset=100), SearchRequest(query="music", k=20, offset=100)]
    first, second = (engine.search(request) for request in asked)
    assert second.hits[:10] == first.hits
    whole = engine.search(SearchRequest(query="music", k=120, candidates=200))
    assert whole.hits[100:] == second.hits
