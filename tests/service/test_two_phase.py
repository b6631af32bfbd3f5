"""The sparse leg in two phases, on both local backends: scores are exact, and with all tokens the whole answer is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from lightretriever.artifacts.corpus.fields import FieldKind
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.request import search_cost
from lightretriever.service.search.two_phase import Phases

from tests.service.conftest import SETTINGS
from tests.support.tiny import make_tiny_bundle

WORDS = (
    "play",
    "music",
    "from",
    "the terminal",
    "search",
    "scientific papers",
    "large images",
    "number",
    "日本語",
    "a",
)
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
TERMS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([-1.9, -0.3, 0.7, 3.1])), max_size=2)
SHARES = st.floats(0, 1, exclude_min=True)
ALL = 1000  # more than there are documents
YEARS = ("number", "year", "2003.0", "2010.0")


@pytest.fixture(scope="module", params=["lucene", "compiled"])
def searched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    folder, fields = tmp_path_factory.mktemp("phases") / "bundle", dict[str, FieldKind](year="number")
    bundle = make_tiny_bundle(folder, idf=True, accelerate=request.param == "compiled", fields=fields)
    with SearchEngine.open(bundle, SETTINGS) as engine:
        assert engine.parts.backends.legs["sparse"].backend == request.param
        yield engine


def encoded(engine: SearchEngine, text: str, terms: list[tuple[str, float]]) -> EncodedQuery:
    return engine.parts.encoder.encode(text, "default", StageClock(), dense=False, extra_terms=terms)


@given(text=TEXTS, terms=TERMS, count=st.integers(1, 130), filtered=st.booleans())
def test_all_tokens_give_the_exact_answer(
    searched: SearchEngine, text: str, terms: list[tuple[str, float]], count: int, filtered: bool
) -> None:
    parts, query = searched.parts, encoded(searched, text, terms)
    among = parts.filters.where(YEARS) if filtered else None
    assert parts.two_phase is not None
    exact = parts.backends.legs["sparse"].search(query, count, among)
    found = parts.two_phase.search(query, count, among, Phases(1.0, count))
    assert found.ordinals.tolist() == exact.ordinals.tolist()
    assert found.scores.tobytes() == exact.scores.tobytes()
    assert (found.ordinals.dtype, found.scores.dtype) == (exact.ordinals.dtype, exact.scores.dtype)


@given(text=TEXTS, terms=TERMS, share=SHARES, count=st.integers(1, 130), further=st.integers(0, 50))
def test_every_score_is_exact_at_any_share(
    searched: SearchEngine, text: str, terms: list[tuple[str, float]], share: float, count: int, further: int
) -> None:
    parts, query = searched.parts, encoded(searched, text, terms)
    whole = parts.backends.legs["sparse"].search(query, ALL)
    exact = dict(zip(whole.ordinals.tolist(), whole.scores.tolist(), strict=True))
    assert parts.two_phase is not None
    found = parts.two_phase.search(query, count, None, Phases(share, count + further))
    assert found.scores.tolist() == [exact[ordinal] for ordinal in found.ordinals.tolist()]
    order = list(zip(-found.scores, found.ordinals, strict=True))
    assert order == sorted(order)
    assert len(order) <= count


@given(text=TEXTS, share=SHARES)
def test_the_first_phase_has_the_fewest_tokens_that_make_the_share(
    searched: SearchEngine, text: str, share: float
) -> None:
    """What it finds at full depth are the documents that have one of them."""
    parts, query = searched.parts, encoded(searched, text, [])
    alike = EncodedQuery.of_model(query.terms, np.ones(len(query.terms), np.float32), None)
    impacts = parts.backends.legs["sparse"].shares(alike, np.arange(parts.documents.store.count))
    possible = impacts.max(axis=0).astype(np.float64) * query.weights
    order = np.argsort(possible, kind="stable")[::-1]
    made = np.cumsum(possible[order]) / possible.sum()
    fitting = [  # two where rounding decides
        set(np.flatnonzero((impacts[:, order[:kept]] > 0).any(axis=1)).tolist())
        for kept in range(1, order.size + 1)
        if made[kept - 1] >= share - 1e-9 and (kept == 1 or made[kept - 2] <= share + 1e-9)
    ]
    assert parts.two_phase is not None
    found = parts.two_phase.search(query, ALL, None, Phases(share, ALL))
    assert set(found.ordinals.tolist()) in fitting


def ask(engine: SearchEngine, **fields: Any) -> list[tuple[str, float | None]]:
    request = SearchRequest.model_validate({"query": "play music from the terminal", "k": 50, **fields})
    return [(hit.id, None if hit.sparse is None else hit.sparse.score) for hit in engine.search(request).hits]


@pytest.mark.parametrize("mode", ["hybrid", "sparse"])
def test_a_request_may_ask_for_it(searched: SearchEngine, mode: str) -> None:
    exact = ask(searched, mode=mode)
    assert ask(searched, mode=mode, sparse_two_phase={"share": 1.0}) == exact
    assert ask(searched, mode=mode, sparse_two_phase={"share": 0.3, "depth": 1000}, candidates=50) != []
    scores = dict(ask(searched, mode=mode, k=120, candidates=120))
    few = ask(searched, mode=mode, sparse_two_phase={"share": 0.01, "depth": 50}, candidates=50)
    assert all(scores[document] == score for document, score in few)


def test_a_filter_an_explanation_and_a_batch_go_with_it(searched: SearchEngine) -> None:
    fields: dict[str, Any] = {
        "query": "play music from the terminal",
        "mode": "sparse",
        "explain": True,
        "filter": {"field": "year", "gte": 2003},
        "fields": ["year"],
    }
    phases = {"sparse_two_phase": {"share": 0.2}}
    both = [SearchRequest.model_validate(fields | phases), SearchRequest.model_validate(fields)]
    two, one = searched.search_batch(both)
    assert two.hits
    known = {hit.id: hit.score for hit in one.hits}
    for hit in two.hits:
        assert hit.fields["year"] >= 2003
        assert known.get(hit.id, hit.score) == hit.score
        assert hit.explanation is not None
        shares = [word.sparse or 0.0 for word in hit.explanation.words]
        assert sum(shares) == pytest.approx(hit.score, rel=1e-5)


@pytest.mark.parametrize(
    ("body", "field", "remedy"),
    [
        ({"mode": "dense", "sparse_two_phase": {}}, "sparse_two_phase", "leave it out, or search in mode hybrid"),
        ({"sparse_two_phase": {"depth": 99}}, "sparse_two_phase.depth", "ask for a depth of 100 to 1000"),
        ({"sparse_two_phase": {"depth": 1001}}, "sparse_two_phase.depth", "at most 1000"),
        ({"sparse_two_phase": {"share": 0}}, "sparse_two_phase.share", "greater than 0"),
        ({"sparse_two_phase": {"share": 1.01}}, "sparse_two_phase.share", "less than or equal to 1"),
        ({"sparse_two_phase": {"cut": 1}}, "sparse_two_phase.cut", "no such field"),
    ],
)
def test_what_is_wrong_is_named(client: TestClient, body: dict[str, Any], field: str, remedy: str) -> None:
    answer = client.post("/search", json={"query": "music", **body})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert remedy in error["message"]


def test_the_depth_counts_as_cost_and_is_described(engine: SearchEngine) -> None:
    for phases, cost in (({}, 2), ({"depth": 100}, 1), ({"depth": 1000}, 10)):
        request = SearchRequest.model_validate({"query": "music", "sparse_two_phase": phases})
        assert search_cost(request, engine.settings) == cost
    schemas = create_app(engine).openapi()["components"]["schemas"]
    assert schemas["TwoPhase"]["properties"]["depth"]["anyOf"][0]["maximum"] == 1000
    with pytest.raises(InvalidRequestError, match=r"searches\.0\.sparse_two_phase"):
        engine.search_batch([SearchRequest.model_validate({"query": "a", "mode": "dense", "sparse_two_phase": {}})])
