"""A bundle that brings weights for the fusion of its legs."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, FusionInfo, LegWeights, Manifest, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.pipeline.recipe import IndexRecipe
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.schemas import LinearFusion, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises

QUERY = "a music player for the terminal"


def test_they_are_told_and_rrf_has_none(tmp_path: Path, client: TestClient) -> None:
    """tests/backends/test_random_requests.py uses them."""
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=0.2, sparse=0.8))
    assert verify_bundle(bundle.path) == []
    rrf = {"query": QUERY, "fusion": {"method": "rrf"}}
    with client_of(bundle, SETTINGS) as own:
        assert own.post("/search", json=rrf).json()["hits"] == client.post("/search", json=rrf).json()["hits"]
        told = [one.get("/info").json()["bundle"]["fusion_weights"] for one in (own, client)]
    assert told == [{"dense": 0.2, "sparse": 0.8}, {"dense": 0.7, "sparse": 0.3}]


def test_a_bundle_without_a_background_fuses_by_range(tmp_path: Path, engine: SearchEngine) -> None:
    """Bundles of earlier versions have none."""
    old = make_tiny_bundle(tmp_path / "tiny")
    content = json.loads((old.path / MANIFEST_FILE).read_bytes())
    del content["manifest_sha256"], content["dense"]["background"], content["files"]["background.npy"]
    (old.path / "background.npy").unlink()
    (old.path / MANIFEST_FILE).write_bytes(Manifest.model_validate(content).to_bytes())
    asked = SearchRequest(query=QUERY, fusion=LinearFusion(normalization="range"))
    with SearchEngine.open(Bundle.open(old.path), SETTINGS) as own:
        assert own.search(SearchRequest(query=QUERY)).hits == own.search(asked).hits == engine.search(asked).hits
        assert own.search(asked).hits != engine.search(SearchRequest(query=QUERY)).hits
        with raises(InvalidRequestError, naming="fusion.normalization"):
            own.search(SearchRequest(query=QUERY, fusion=LinearFusion(normalization="evidence")))


def test_a_leg_of_weight_0_is_not_searched(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(sparse=1.0))
    with SearchEngine.open(bundle, SETTINGS) as engine:
        assert all(hit.dense is None for hit in engine.search(SearchRequest(query=QUERY)).hits)


def test_a_bundle_without_them_has_no_such_field(tmp_path: Path) -> None:
    plain = make_tiny_bundle(tmp_path / "plain")
    assert b'"fusion"' not in (plain.path / MANIFEST_FILE).read_bytes()
    weighted = make_tiny_bundle(tmp_path / "weighted", weights=LegWeights(dense=1, sparse=2))
    assert read_manifest(weighted.path).fusion == FusionInfo(dense=1, sparse=2)


def test_impossible_weights_are_refused(tmp_path: Path) -> None:
    for weights in ({}, {"dense": 0.0}, {"dense": -1.0}, {"sparse": float("inf")}, {"bm25": 1.0}):
        with raises(ValidationError):
            IndexRecipe.model_validate({"weights": weights})
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=1.0, sparse=2.0))
    file = bundle.path / MANIFEST_FILE
    file.write_bytes(file.read_bytes().replace(b'"sparse": 2.0', b'"sparse": -2.0'))
    with pytest.raises(BundleError):
        read_manifest(bundle.path)
