"""A bundle that brings weights for the fusion of its legs."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from lightretriever.artifacts.bundle.manifest import LegWeights, read_manifest
from lightretriever.artifacts.bundle.paths import MANIFEST_FILE
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.pipeline.recipe import IndexRecipe
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import LinearFusion, Mode, SearchRequest, Weights
from lightretriever.service.search.engine import SearchEngine
from pydantic import ValidationError

from tests.service.conftest import SETTINGS
from tests.support.tiny import make_tiny_bundle

QUERY = "a music player for the terminal"


def test_they_are_used_where_a_request_names_none(tmp_path: Path, engine: SearchEngine) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=0.2, sparse=0.8))
    assert verify_bundle(bundle.path) == []
    with SearchEngine.open(bundle, SETTINGS) as own, TestClient(create_app(own)) as client:
        own.warm_up()
        for weights, same in ((Weights(dense=0.2, sparse=0.8), True), (Weights(dense=0.7, sparse=0.3), False)):
            explicit = own.search(SearchRequest(query=QUERY, fusion=LinearFusion(weights=weights))).hits
            for fusion in (LinearFusion(), LinearFusion(weights=None)):
                plain = own.search(SearchRequest(query=QUERY, fusion=fusion)).hits
                assert ([(hit.id, hit.score) for hit in plain] == [(hit.id, hit.score) for hit in explicit]) == same
        assert client.get("/info").json()["bundle"]["fusion_weights"] == {"dense": 0.2, "sparse": 0.8}
        rrf = {"query": QUERY, "fusion": {"method": "rrf"}}
        with TestClient(create_app(engine)) as other:  # the same bundle without weights
            assert client.post("/search", json=rrf).json()["hits"] == other.post("/search", json=rrf).json()["hits"]
            assert other.get("/info").json()["bundle"]["fusion_weights"] == {"dense": 0.7, "sparse": 0.3}


def test_a_leg_of_weight_0_is_not_searched(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(sparse=1.0))
    with SearchEngine.open(bundle, SETTINGS) as engine:
        assert all(hit.dense is None for hit in engine.search(SearchRequest(query=QUERY)).hits)


def test_a_bundle_without_them_has_no_such_field(tmp_path: Path) -> None:
    plain = make_tiny_bundle(tmp_path / "plain")
    assert b'"fusion"' not in (plain.path / MANIFEST_FILE).read_bytes()
    weighted = make_tiny_bundle(tmp_path / "weighted", weights=LegWeights(dense=1, sparse=2))
    assert read_manifest(weighted.path).fusion == LegWeights(dense=1, sparse=2)


def test_impossible_weights_are_refused(tmp_path: Path) -> None:
    for weights in ({}, {"dense": 0.0}, {"dense": -1.0}, {"sparse": float("inf")}, {"words": 1.0}):
        with pytest.raises(ValidationError, match="weights"):
            IndexRecipe.model_validate({"weights": weights, "words": True})
    with pytest.raises(ValidationError, match=r"weights\.bm25 is 0\.5, but without words: true"):
        IndexRecipe.model_validate({"weights": {"bm25": 0.5}})
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=1.0, sparse=2.0))
    file = bundle.path / MANIFEST_FILE
    file.write_bytes(file.read_bytes().replace(b'"sparse": 2.0', b'"sparse": -2.0'))
    with pytest.raises(BundleError):
        read_manifest(bundle.path)


def ranked(engine: SearchEngine, mode: Mode, **request: Any) -> dict[str, float]:
    return {
        hit.id: hit.score
        for hit in engine.search(SearchRequest(query=QUERY, mode=mode, k=120, candidates=120, **request)).hits
    }


def test_bm25_is_a_third_leg(tmp_path: Path) -> None:
    """The fused score is the weighted sum of the normalised scores of three legs, each asked for every candidate."""
    bundle = make_tiny_bundle(tmp_path / "tiny", words=True, weights=LegWeights(dense=0.5, sparse=0.2, bm25=0.3))
    with SearchEngine.open(bundle, SETTINGS) as engine:
        answer = engine.search(SearchRequest(query=QUERY, k=120, candidates=120, explain=True))
        alone = ranked(engine, "bm25")
        assert answer.timings_ms.bm25 is not None
        found = {hit.id: hit for hit in answer.hits}
        assert {name: hit.bm25.score for name, hit in found.items() if hit.bm25 and hit.bm25.rank} == alone
        legs = {
            leg: {name: getattr(hit, leg).score for name, hit in found.items()} for leg in ("dense", "sparse", "bm25")
        }
        for hit in answer.hits:
            assert hit.explanation is not None
            shares = hit.explanation.fusion.model_dump()
            for leg, weight in (("dense", 0.5), ("sparse", 0.2), ("bm25", 0.3)):
                least, most = min(legs[leg].values()), max(legs[leg].values())
                normal = 0.001 + 0.999 * (legs[leg][hit.id] - least) / (most - least)
                assert shares[leg] == pytest.approx(weight * normal, abs=1e-5)
            assert hit.score == pytest.approx(sum(shares.values()))


def test_bm25_takes_the_place_of_the_sparse_leg(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(
        tmp_path / "tiny", words=True, weights=LegWeights(dense=0.5, bm25=0.5), fields={"year": "number"}
    )
    with SearchEngine.open(bundle, SETTINGS) as engine:
        assert {hit.sparse for hit in engine.search(SearchRequest(query=QUERY)).hits} == {None}
        only = LinearFusion(weights=Weights(dense=0, sparse=0, bm25=1))
        assert list(ranked(engine, "hybrid", fusion=only)) == list(ranked(engine, "bm25"))
        narrow = SearchRequest.model_validate({"query": QUERY, "filter": {"field": "year", "gte": 2019}})
        years = {hit.fields["year"] for hit in engine.search(narrow).hits}
        assert years
        assert min(years) >= 2019


def test_a_bundle_without_words_has_no_third_leg(tmp_path: Path) -> None:
    fusion = LinearFusion(weights=Weights(dense=0.5, sparse=0, bm25=0.5))
    bundle = make_tiny_bundle(tmp_path / "tiny")
    with SearchEngine.open(bundle, SETTINGS) as engine, pytest.raises(InvalidRequestError) as raised:
        engine.search(SearchRequest(query=QUERY, fusion=fusion))
    (error,) = raised.value.errors
    assert (error.field, error.value) == ("fusion.weights.bm25", 0.5)
    assert "index.words: true" in error.message
