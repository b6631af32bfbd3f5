"""Explanations are exact: a hit's shares sum to its scores, for any query, mode and fusion, and match brute force."""

from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.errors import DeadlineError
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Explanation, Hit, LinearFusion, Mode, RrfFusion, SearchRequest, Weights
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.explain import explained

from tests.service.conftest import SETTINGS
from tests.service.reference import Corpus
from tests.support.legs import WrappedLeg

WORDS = st.lists(
    st.sampled_from(
        [
            "play",
            "music",
            "the",
            "terminal",
            "search",
            "text",
            "documents",
            "chess",
            "日本語",
            "Zażółć",
            "🎵",
            "and",
            "a",
            "MUSIC",
            "music",
        ]
    ),
    min_size=1,
    max_size=9,
).map(" ".join)
FUSIONS = st.sampled_from(
    [
        LinearFusion(),
        LinearFusion(weights=Weights(dense=0.2, sparse=3.0), normalization="paper"),
        LinearFusion(weights=Weights(dense=0.9, sparse=0.0)),
        RrfFusion(method="rrf", weights=Weights(dense=2.0, sparse=1.0)),
    ]
)
MODES: st.SearchStrategy[Mode] = st.sampled_from(["hybrid", "dense", "sparse"])


def explanation(hit: Hit) -> Explanation:
    assert hit.explanation is not None
    return hit.explanation


def sums(hit: Hit) -> dict[str, float | None]:
    """What the shares of each leg sum to; None where the leg has none."""
    tokens = explanation(hit).tokens
    return {
        "dense": None if tokens[0].dense is None else sum(token.dense or 0.0 for token in tokens),
        "sparse": None if tokens[0].sparse is None else sum(token.sparse or 0.0 for token in tokens),
    }


@given(query=WORDS, mode=MODES, fusion=FUSIONS, k=st.integers(1, 20), offset=st.integers(0, 30))
def test_shares_sum_to_the_scores(
    engine: SearchEngine, query: str, mode: Mode, fusion: LinearFusion | RrfFusion, k: int, offset: int
) -> None:
    asked = SearchRequest(query=query, mode=mode, fusion=fusion, k=k, offset=offset, candidates=60, explain=True)
    answer = engine.search(asked)
    for hit in answer.hits:
        assert sums(hit) == {
            "dense": None if hit.dense is None else pytest.approx(hit.dense.score, abs=1e-5),
            "sparse": None if hit.sparse is None else pytest.approx(hit.sparse.score, rel=1e-5),
        }
        added = explanation(hit).fusion
        assert (added.dense or 0.0) + (added.sparse or 0.0) == pytest.approx(hit.score, rel=1e-12)
    plain = engine.search(asked.model_copy(update={"explain": False}))
    bare = [hit.model_copy(update={"explanation": None}) for hit in answer.hits]
    assert bare == plain.hits


def test_shares_are_those_of_brute_force(engine: SearchEngine, corpus: Corpus) -> None:
    query = "play music music terminal"
    ids = np.array(corpus.tokenizer.query_ids(query))
    rows = corpus.tables["default"].astype(np.float64)
    length = np.linalg.norm(rows[ids].mean(axis=0))
    ordinals = {document.id: ordinal for ordinal, document in enumerate(corpus.documents)}
    for hit in engine.search(SearchRequest(query=query, explain=True)).hits:
        ordinal = ordinals[hit.id]
        tokens = explanation(hit).tokens
        assert [token.id for token in tokens] == sorted(set(ids.tolist()))
        for token in tokens:
            count = int((ids == token.id).sum())
            assert token.token == corpus.tokenizer.token(token.id)
            assert token.count == count
            impact = int(corpus.impacts[ordinal, token.id])
            assert token.impact == impact
            assert token.sparse == pytest.approx(token.weight * impact, rel=1e-6)
            expected = count * float(rows[token.id] @ corpus.dense[ordinal]) / (len(ids) * length)
            assert token.dense == pytest.approx(expected, abs=1e-5)


def test_an_answer_without_explanations_does_not_mention_them(client: TestClient) -> None:
    plain = client.post("/search", json={"query": "music"}).json()
    assert plain["hits"]
    assert not any("explanation" in hit for hit in plain["hits"])
    assert "explain" not in plain["timings_ms"]
    told = client.post("/search", json={"query": "music", "explain": True}).json()
    assert all(hit["explanation"]["tokens"] for hit in told["hits"])
    assert told["timings_ms"]["explain"] > 0


def test_no_hits_need_no_explanation(engine: SearchEngine) -> None:
    assert engine.search(SearchRequest(query="music", explain=True, offset=99, k=1, mode="sparse")).hits == []


@pytest.mark.parametrize("ordinal", [0, 1, 77])
def test_the_terms_of_a_document(client: TestClient, corpus: Corpus, ordinal: int) -> None:
    document, impacts = corpus.documents[ordinal], corpus.impacts[ordinal]
    terms = client.get(f"/terms/{quote(document.id, safe='')}").json()["terms"]
    assert [(-term["impact"], term["id"]) for term in terms] == sorted(
        (-int(impacts[term]), int(term)) for term in np.flatnonzero(impacts)
    )
    own = set(corpus.tokenizer.encode(document.full_text).tolist())
    for term in terms:
        assert term["in_text"] == (term["id"] in own)
        assert term["token"] == corpus.tokenizer.token(term["id"])


def test_a_document_that_is_not_there_has_no_terms(client: TestClient) -> None:
    answer = client.get("/terms/nix")
    assert (answer.status_code, answer.json()["kind"]) == (404, "document_not_found")


class Silent(WrappedLeg):
    """A real leg that can't say what its scores are made of."""

    def shares(self, query: EncodedQuery, ordinals: np.ndarray) -> np.ndarray:
        raise OSError("broken leg")


def test_a_leg_that_can_not_explain_costs_its_shares_alone(tiny_bundle: Bundle) -> None:
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine:
        engine.parts.legs["dense"] = Silent(engine.parts.legs["dense"])
        answer = engine.search(SearchRequest(query="music", explain=True))
    assert answer.degraded == []
    for hit in answer.hits:
        assert sums(hit)["dense"] is None
        assert hit.sparse is not None
        assert sums(hit)["sparse"] == pytest.approx(hit.sparse.score)
        assert explanation(hit).fusion.dense is not None


def test_what_may_be_explained_is_bounded_for_a_request_and_for_a_batch(tiny_bundle: Bundle) -> None:
    settings = SETTINGS.model_copy(update={"max_explained": 30})
    asked: dict[str, object] = {"query": "music", "explain": True}
    with SearchEngine.open(tiny_bundle, settings) as engine, TestClient(create_app(engine)) as client:
        tokens = len(client.post("/encode", json={"text": "music"}).json()["tokens"])
        most = 30 // tokens
        assert len(client.post("/search", json={**asked, "k": most}).json()["hits"]) == most
        assert client.post("/search", json={**asked, "k": most + 1, "explain": False}).status_code == 200
        refused = client.post("/search", json={**asked, "k": most + 1}).json()
        assert (refused["status"], refused["errors"][0]["field"]) == (422, "explain")
        assert f"{most + 1} hits times {tokens} different tokens" in refused["detail"]
        assert "at most 30 are possible (max_explained" in refused["detail"]
        assert client.get("/info").json()["limits"]["max_explained"] == 30
        # Three searches of a batch have 10 each, whatever those without explanations ask for.
        plain = {"query": "music", "k": 50}
        few, many = ({**asked, "k": count} for count in (10 // tokens, 10 // tokens + 1))
        assert client.post("/search/batch", json={"searches": [few, plain, few, few]}).status_code == 200
        refused = client.post("/search/batch", json={"searches": [few, plain, few, many]}).json()
        assert (refused["status"], refused["errors"][0]["field"]) == (422, "searches.3.explain")


def test_explaining_ends_at_the_deadline(engine: SearchEngine) -> None:
    found = engine.answer(SearchRequest(query="music", k=5))["hits"]
    looked = iter([True, True, False])

    def require_time() -> None:
        if not next(looked):
            raise DeadlineError("late")

    query = engine.parts.encoder.encode("music", "default", StageClock())
    with pytest.raises(DeadlineError):
        explained(found, query, engine.parts.encoder, np.zeros((2, 5)), ["dense", "sparse"], {}, require_time)
    assert next(looked, None) is None
