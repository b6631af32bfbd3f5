"""Every system that is compared starts by its one command on a tiny bundle, and answers over HTTP."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.evaluation.bm25 import WordIndex
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.loadtest.connection import LoadError, search_requests
from lightretriever.loadtest.generator import open_loop, run_loop
from lightretriever.loadtest.model_server import model_encoder, open_engine
from lightretriever.loadtest.overlap import ExactAnswers, overlap
from lightretriever.loadtest.process import Server, finish
from lightretriever.loadtest.systems import NAMES, Given, System, systems
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from research.servers.bundle_documents import by_number, read_rows, term_numbers, vectors_of, word_index
from research.servers.onnx import OnnxEncoder
from research.servers.systems import others
from tests.service.live import live_bundles
from tests.support.biencoder import save_biencoder
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises

SETTINGS = Settings(deadline_ms=60_000)
FAST = {"LIGHTRETRIEVER_WARM_UP_QUERIES": "3", "LIGHTRETRIEVER_DEADLINE_MS": "60000"}


def ask(url: str, body: object, what: str = "search") -> dict[str, object]:
    request = Request(f"{url}/{what}", data=json.dumps(body).encode(), headers={"content-type": "application/json"})
    with urlopen(request) as answer:
        content: dict[str, object] = json.load(answer)
    return content


@pytest.fixture(scope="module")
def found(real_bundle: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, System]]:
    """Every system, with all that it needs."""
    folder, work = tmp_path_factory.mktemp("given"), Path(mkdtemp(prefix="loadtest-"))
    work.chmod(0o755)  # the user of a node can't enter pytest's own folders
    same = make_tiny_bundle(folder / "same", documents=Bundle.open(real_bundle[0]).manifest.documents).path
    given = Given(
        bundle=real_bundle[0],
        model=str(real_bundle[1]),
        device="cpu",
        biencoder=str(save_biencoder(folder / "encoder")),
        biencoder_bundle=same,
        static_bundle=same,
    )
    yield {one.name: one for one in (*systems(given), *others(given, work)) if one.missing is None}
    rmtree(work)


def needed(name: str, found: dict[str, System]) -> System:
    """The system; the test is skipped without its package or, for OpenSearch, its folder."""
    if name not in found:
        assert name in ("cluster", "opensearch", "seekdb", "milvus", "lancedb")
        pytest.skip(f"{name} is not installed, or OPENSEARCH_HOME not set")
    if found[name].prepare:
        finish(found[name].prepare)
    return found[name]


OTHERS = ("cluster", "bm25", "opensearch", "seekdb", "milvus", "lancedb", "onnx")
SLOW = ("processes", "cluster", "llm", "biencoder", "static", "opensearch", "seekdb", "milvus", "lancedb", "onnx")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in (*NAMES, *OTHERS)]
)
def test_a_system_starts_and_answers(name: str, found: dict[str, System]) -> None:
    with Server([*needed(name, found).command, "--port", "0"], environment=FAST) as server:
        assert server.ready_s > 0
        requests = search_requests(server.url, ["music player", "terminal"], 5)
        before = server.cpu_s()
        result = run_loop(open_loop(server.url, requests, rate=20, seconds=0.5, limit_s=60))
        assert result["answered"] == result["sent"] == 10
        assert result["degraded"] == 0
        assert server.cpu_s() > before
        memory = server.memory_mb()
        assert 10 < memory["private"] <= memory["pss"] <= memory["rss"]
        hits = ask(server.url, {"query": "music player", "k": 2})["hits"]
        assert isinstance(hits, list)
        assert [hit["rank"] for hit in hits] == [1, 2]
        assert hits[0]["score"] >= hits[1]["score"]
        assert "_id" not in hits[0]["fields"]
        assert {"title", "text", "year"} == set(hits[0]["fields"])
        if name in ("lightretriever", "llm", "biencoder", "onnx"):
            encoded = ask(server.url, {"text": "music player"}, "encode")
            assert encoded["dimension"] == 16
            assert encoded["terms"]
            assert bool(encoded["tokens"]) == (name == "lightretriever")  # a model's vector is no sum over tokens
        if name == "bm25":
            finds_words_of_the_query(server.url)


def finds_words_of_the_query(url: str) -> None:
    """As BM25 alone does, which refuses a wrong request."""
    hits = ask(url, {"query": "music player", "k": 3})["hits"]
    assert isinstance(hits, list)
    assert all("music" in json.dumps(hit["fields"]).lower() for hit in hits)
    assert ask(url, {"query": "qqqzzz"})["hits"] == []
    for body in ({}, {"query": 5}, {"query": "x", "k": 0}, [1]):
        with pytest.raises(HTTPError) as refused:
            ask(url, body)
        with refused.value:
            assert refused.value.code == 422


@pytest.mark.slow
def test_vectors_in_int8_are_near_the_encoders(found: dict[str, System]) -> None:
    command = needed("onnx", found).command
    folder = Path(command[command.index("--model") + 1])
    encoder = SentenceTransformer(found["biencoder"].command[-3], device="cpu")
    texts = ["music player", "text editor with plugins and more of them", "terminal " * 100]
    theirs = encoder.encode_query(texts, normalize_embeddings=True)
    for threads in (1, 2):
        vectors = OnnxEncoder(folder, threads).vectors(texts)
        cosines = (vectors * theirs).sum(axis=1) / np.linalg.norm(vectors, axis=1)
        assert cosines.min() > 0.98


@pytest.mark.slow
def test_what_a_model_can_not_tell_is_refused(found: dict[str, System]) -> None:
    with Server([*found["llm"].command, "--port", "0"], environment=FAST) as server:
        for further, named in (({"explain": True}, "explain"), ({"terms": [{"text": "new", "weight": 1}]}, "terms")):
            with pytest.raises(HTTPError) as refused:
                ask(server.url, {"query": "music player", **further})
            with refused.value:
                assert refused.value.code == 422
                assert [error["field"] for error in json.load(refused.value)["errors"]] == [named]


def fused_bounds(engine: SearchEngine, text: str, constant: float = 60.0) -> tuple[dict[str, float], dict[str, float]]:
    """Give the lowest and the highest score by reciprocal ranks of every document that a leg proposes: documents that
    nearly tie in a leg may take each other's places there."""
    lowest, highest = defaultdict[str, float](float), defaultdict[str, float](float)
    for mode in ("dense", "sparse"):
        request = SearchRequest.model_validate({"query": text, "k": 100, "mode": mode})
        found = {hit.id: hit.score for hit in engine.search(request).hits}
        for document_id, score in found.items():
            better = sum(other > score + 2e-3 for other in found.values())
            equal = sum(abs(other - score) <= 2e-3 for other in found.values())
            lowest[document_id] += 1 / (constant + better + equal)
            highest[document_id] += 1 / (constant + better + 1)
    return lowest, highest


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", ["tokens", "words"])
@pytest.mark.parametrize("name", ["opensearch", "seekdb", "milvus"])
def test_an_engine_fuses_the_same_rankings(
    name: str, vocabulary: str, found: dict[str, System], real_bundle: tuple[Path, Path], word_bundle: Bundle
) -> None:
    bundle = Bundle.open(real_bundle[0]) if vocabulary == "tokens" else word_bundle
    work = Path(found["bm25"].command[found["bm25"].command.index("--work") + 1])
    there = {one.name: one for one in others(Given(bundle.path), work) if one.missing is None}
    with Server([*needed(name, there).command, "--port", "0"]) as server, SearchEngine.open(bundle, SETTINGS) as engine:
        for text in ("music player", "text editor with plugins", "terminal"):
            hits = ask(server.url, {"query": text, "k": 40})["hits"]
            assert isinstance(hits, list)
            assert len(hits) == 40
            lowest, highest = fused_bounds(engine, text)
            for one in hits:
                assert lowest[one["id"]] <= one["score"] + 1e-6, one
                assert one["score"] <= highest[one["id"]] + 1e-6, one
            left_out = lowest.keys() - {one["id"] for one in hits}
            assert max((lowest[one] for one in left_out), default=0.0) <= hits[-1]["score"] + 1e-6


def test_overlap_is_the_share_of_exact_answers_found(tiny_bundle: Bundle) -> None:
    texts = ["music player", "terminal"]
    exact = ExactAnswers.of(tiny_bundle, texts, 5)
    assert [len(ids) for ids in (*exact.default, *exact.rrf)] == [5] * 4
    with live_bundles(tiny_bundle.path) as url:
        assert overlap(url, texts, exact.default) == 1.0
        assert overlap(url, texts, [[*ids[:4], "none"] for ids in exact.default]) == pytest.approx(0.8)


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    ends = [sys.executable, "-c", "import sys; print('nowhere: there is no such folder', file=sys.stderr); sys.exit(2)"]
    with raises(LoadError, naming="sys.exit"):
        Server(ends)
    with raises(LoadError, naming="sys.exit"):
        finish(ends)
    with raises(LoadError, naming="no-program"):
        Server([str(tmp_path / "no-program")])


def missing(given: Given, more: Iterable[System] = ()) -> dict[str, str]:
    return {one.name: one.missing for one in (*systems(given), *more) if one.missing is not None}


def test_what_is_missing_is_named(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENSEARCH_HOME", raising=False)
    left = missing(Given(tiny_path), others(Given(tiny_path), tmp_path))
    needed = {"llm", "biencoder", "onnx", "static", "opensearch", "cluster"}
    assert set(left) - {"seekdb", "milvus", "lancedb"} == needed
    assert left["opensearch"] == "OPENSEARCH_HOME names no folder with bin/cluster"
    assert left["llm"] == "no --model was given"
    assert "--biencoder" in left["biencoder"]
    assert "--static-bundle" in left["static"]
    encoder = save_biencoder(tmp_path / "encoder")
    assert "bi-encoder" in missing(Given(tiny_path, model=str(encoder)))["llm"]
    other = make_tiny_bundle(tmp_path / "other", documents=50).path
    left = missing(Given(tiny_path, biencoder=str(encoder), biencoder_bundle=other, static_bundle=other))
    assert left["biencoder"] == left["static"] == "its bundle has 50 documents, not 120"


def opened(bundle: Bundle, model: Path) -> SearchEngine:
    """The engine with a model as its query encoder."""
    given = ModelRecipe(path=str(model), device="cpu")
    return open_engine(bundle, lambda base: model_encoder(given, bundle, base), batch=2)


def test_another_model_is_refused(real_bundle: tuple[Path, Path], tiny_bundle: Bundle) -> None:
    with raises(ModelError):
        opened(tiny_bundle, real_bundle[1])


@pytest.fixture
def words(tiny_bundle: Bundle, tmp_path: Path) -> Iterator[WordIndex]:
    with WordIndex.open(word_index(tiny_bundle, tmp_path)) as words:
        yield words


def test_a_bundle_gives_its_documents_and_vectors_back(tiny_bundle: Bundle, words: WordIndex) -> None:
    with tiny_bundle.sparse() as index:
        assert words.ids() == index.ids()
        raw = index.documents(np.arange(index.count))
        assert [json.loads(one)["_id"] for one in raw] == index.ids()
        indptr, names, terms, impacts = index.rows(0, index.count)
        vectors = tiny_bundle.dense().vectors(np.arange(index.count))
        for number, (ordinal, dense, sparse, document) in enumerate(read_rows(tiny_bundle)):
            own = slice(indptr[number], indptr[number + 1])
            assert (ordinal, document) == (number, raw[number])
            assert dense == vectors[number].tolist()
            known = [names[term] for term in terms[own].tolist()]
            assert sparse == dict(zip(known, impacts[own].tolist(), strict=True))
        assert number == index.count - 1


def test_terms_have_numbers_for_engines_that_ask_for_them(word_bundle: Bundle) -> None:
    numbers = term_numbers(word_bundle)
    assert sorted(numbers.values()) == list(range(len(numbers)))
    dense, sparse = vectors_of(word_bundle)("Music music qqqzzz")
    assert len(dense) == 16
    assert sparse == {"music": 2.0, "qqqzzz": 1.0}
    assert by_number(sparse, numbers) == {numbers["music"]: 2.0}
    _, _, impacts, _ = next(read_rows(word_bundle))
    assert "player" in impacts
    assert list(by_number(impacts, numbers)) == sorted(numbers[term] for term in impacts)


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_the_model_encodes_the_queries(
    real_bundle: tuple[Path, Path], mode: Literal["dense", "sparse"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTRETRIEVER_DEADLINE_MS", "60000")
    bundle, asked = Bundle.open(real_bundle[0]), SearchRequest(query="music player", mode=mode)
    with opened(bundle, real_bundle[1]) as heavy, SearchEngine.open(bundle, SETTINGS) as light:
        whole, table = ([(hit.id, hit.score) for hit in engine.search(asked).hits] for engine in (heavy, light))
    assert whole
    assert whole != table
