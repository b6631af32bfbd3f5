"""Weights of the legs and of tokens: what is told of them. Scores are compared in
tests/backends/test_random_requests.py."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, LegWeights, Manifest, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.pipeline.recipe import IndexRecipe
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import EncodeRequest, LinearFusion, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.service.live import client_of, warm
from tests.support.tiny import make_tiny_bundle, tiny_documents, tiny_idf
from tests.support.wordings import raises

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
