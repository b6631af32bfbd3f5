"""Fusion: what it promises, and equality with ranx; weights of the legs and of tokens: what is told of them.
tests/backends/test_random_requests.py compares every formula and all scores."""

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import numba
import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, LegWeights, Manifest, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.dense.index import best_first
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.pipeline.recipe import IndexRecipe
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LinearFusion, Normalization, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.fusion import FLOOR, align, evidence, fuse_linear, fuse_rrf, moved_query
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.tiny import make_tiny_bundle, tiny_documents, tiny_idf
from tests.support.wordings import raises

Leg = tuple[np.ndarray, np.ndarray]

NOTHING: Leg = (np.empty(0, np.int64), np.empty(0, np.float32))
SCORE = st.floats(-(2.0**99), 2.0**99, width=32)
WEIGHT = st.floats(0.01, 10.0)


@st.composite
def leg(draw: st.DrawFn, *, minimum: int = 0, ties: bool = True) -> Leg:
    ordinals = draw(st.lists(st.integers(0, 60), unique=True, min_size=minimum, max_size=40))
    score = SCORE | st.sampled_from([0.0, 0.5, 1.0])
    scores = draw(st.lists(score, min_size=len(ordinals), max_size=len(ordinals), unique=not ties))
    return best_first(np.array(ordinals, np.int64), np.array(scores, np.float32), len(ordinals))


def fuse(method: str, legs: list[Leg], weights: tuple[float, ...]) -> tuple[list[int], dict[int, float]]:
    table = align(legs)
    fused = fuse_rrf(table, weights) if method == "rrf" else fuse_linear(table, weights, cast(Normalization, method))
    order = table.ordinals[fused.order].tolist()
    return order, dict(zip(order, fused.scores[fused.order].tolist(), strict=True))


METHODS = pytest.mark.parametrize("method", ["evidence", "range", "paper", "rrf"])


@METHODS
@given(dense=leg(minimum=1), sparse=leg(), weight=WEIGHT)
def test_a_leg_that_alone_counts_or_finds_keeps_its_order(method: str, dense: Leg, sparse: Leg, weight: float) -> None:
    assert fuse(method, [dense, sparse], (1.0, 0.0))[0] == dense[0].tolist()
    assert fuse(method, [sparse, dense], (0.0, 1.0))[0] == dense[0].tolist()
    assert fuse(method, [dense, NOTHING], (weight, 0.3))[0] == dense[0].tolist()


@given(ordinal=st.integers(0, 9), score=SCORE, other=leg(minimum=2))
def test_a_single_hit_is_not_zeroed(ordinal: int, score: float, other: Leg) -> None:
    single = (np.array([ordinal]), np.array([score], np.float32))
    _, scores = fuse("range", [single, other], (1.0, 1.0))
    assert scores[ordinal] >= 1.0
    _, paper = fuse("paper", [single, (np.array([99]), np.array([1.0]))], (1.0, 1.0))
    assert paper == {ordinal: 0.0, 99: 0.0}


@pytest.fixture(scope="module")
def ranx() -> Iterator[ModuleType]:
    """ranx, interpreted: compiling it takes a minute, and its formulas stay the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        yield importlib.import_module("ranx")


def ranx_scores(ranx: ModuleType, legs: list[Leg], **how: object) -> dict[int, float]:
    runs = [
        ranx.Run({"q": dict(zip(map(str, ordinals), scores.astype(np.float64).tolist(), strict=True))})
        for ordinals, scores in legs
    ]
    return {int(ordinal): score for ordinal, score in ranx.fuse(runs, **how).run["q"].items()}


@given(dense=leg(minimum=1), sparse=leg(minimum=1), weights=st.tuples(WEIGHT, WEIGHT))
def test_paper_mode_equals_ranx(ranx: ModuleType, dense: Leg, sparse: Leg, weights: tuple[float, float]) -> None:
    expected = ranx_scores(ranx, [dense, sparse], norm="min-max", method="wsum", params={"weights": list(weights)})
    assert fuse("paper", [dense, sparse], weights)[1] == pytest.approx(expected, rel=1e-9, abs=1e-12)


# Equal scores only without: ranx sorts them in no particular order.
@given(dense=leg(minimum=1, ties=False), sparse=leg(minimum=1, ties=False))
def test_rrf_equals_ranx(ranx: ModuleType, dense: Leg, sparse: Leg) -> None:
    expected = ranx_scores(ranx, [dense, sparse], norm=None, method="rrf", params={"k": 60})
    assert fuse("rrf", [dense, sparse], (1.0, 1.0))[1] == pytest.approx(expected)


@pytest.mark.parametrize(("ordinals", "scores"), [([1, 2], [1.0]), ([1, 1], [1.0, 2.0]), ([1], [np.nan])])
def test_broken_legs_are_refused(ordinals: list[int], scores: list[float]) -> None:
    with raises(ValueError):
        align([(np.array(ordinals), np.array(scores))])


def test_what_the_legs_know_of_a_query() -> None:
    """The dense leg's best document is 4 of 8 deviations above the background, the sparse leg's has 3 of the 7 that the
    four heaviest words add."""
    background = np.array([[0.5, 0.0], [-0.5, 0.0]], np.float32)
    query, largest = np.array([1.0, 0.0], np.float32), np.array([1, 1, 2, 2, 2, 1, 0.5], np.float32)
    dense, sparse = np.array([0.1, 2.0]), np.array([3.0, 1.0])
    assert evidence(query, background, dense, sparse, largest) == pytest.approx((0.5, 3 / 7))
    assert evidence(query, background, -dense, sparse * 9, largest) == pytest.approx((FLOOR, 1.0))
    assert evidence(query, background[:1], dense, 0 * sparse, largest) == pytest.approx((1.0, FLOOR))


def test_a_query_moves_towards_a_document() -> None:
    query, first = np.array([1, 0, 0], np.float32), np.array([0, 2, 0], np.float32)
    assert moved_query(query, first, 1.0) == pytest.approx([0.5**0.5, 0.5**0.5, 0])
    assert moved_query(query, first, 0.0) == pytest.approx(query)
    for nowhere, weight in ((np.zeros(3, np.float32), 1.0), (-query, 1.0)):
        assert moved_query(query, nowhere, weight) == pytest.approx(query)


QUERY = "a music player for the terminal"


def test_the_weights_of_a_bundle_are_told_and_rrf_has_none(tmp_path: Path, client: TestClient) -> None:
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


def test_impossible_weights_are_refused(tmp_path: Path) -> None:
    for weights in ({}, {"dense": 0.0}, {"dense": -1.0}, {"sparse": float("inf")}, {"bm25": 1.0}):
        with raises(ValidationError):
            IndexRecipe.model_validate({"weights": weights})
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=1.0, sparse=2.0))
    file = bundle.path / MANIFEST_FILE
    file.write_bytes(file.read_bytes().replace(b'"sparse": 2.0', b'"sparse": -2.0'))
    with pytest.raises(BundleError):
        read_manifest(bundle.path)


def test_query_weights_are_told(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", idf=True)
    idf = tiny_idf(bundle.tokenizer())
    with client_of(bundle, SETTINGS) as client:
        assert client.get("/info").json()["bundle"]["query_weights"] == "idf_count"
        assert 'query_weights="idf_count"' in client.get("/metrics").text
        for term in client.post("/encode", json={"text": "play music music music"}).json()["terms"]:
            assert term["weight"] == float(np.float32(term["count"]) * idf[int(term["term"])])


def of_bytes(texts: list[str]) -> Tokenizer:
    """As Qwen and GPT-2: a space is part of the token behind it."""
    return trained(texts, pre_tokenizers.ByteLevel(add_prefix_space=False))


def of_pieces(texts: list[str]) -> Tokenizer:
    """As Llama-2 and Mistral: a space is put before each text."""
    tokenizer = trained(texts, pre_tokenizers.Metaspace())
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def trained(texts: list[str], splitter: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    return tokenizer


@pytest.mark.parametrize("make", [of_bytes, of_pieces])
def test_an_added_text_has_the_tokens_that_it_has_within_a_text(make: Callable[[list[str]], Tokenizer]) -> None:
    made = make([document.full_text.lower() for document in tiny_documents()])
    tokenizer = TextTokenizer.from_bytes(made.to_str().encode(), name="made here")
    encoder = QueryEncoder(tokenizer, {})
    for query, text in (("play", "music"), ("music files", "from the terminal"), ("a", "a")):
        joined = encoder.encode(f"{query} {text}", "default", StageClock(), dense=False)
        apart = encoder.encode(query, "default", StageClock(), dense=False, added=[(text, 1.0)])
        assert apart.terms == joined.terms
        assert apart.counts.tolist() == joined.counts.tolist()
        assert apart.weights.tolist() == joined.weights.tolist()
