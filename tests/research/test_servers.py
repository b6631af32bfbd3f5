"""Every system that is compared starts by its one command on a tiny bundle, and answers over HTTP."""

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.loadtest.connection import search_requests
from lightretriever.loadtest.generator import COUNTS, open_loop, run_loop
from lightretriever.loadtest.model_server import model_encoder, open_engine
from lightretriever.loadtest.process import Server, finish
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from research.servers import __main__ as servers
from research.servers.systems import System, systems
from tests.support.biencoder import save_biencoder
from tests.support.judged import write_judged
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises

FAST = {"LIGHTRETRIEVER_WARM_UP_QUERIES": "3", "LIGHTRETRIEVER_DEADLINE_MS": "60000"}


def ask(url: str, body: object, what: str = "search") -> Any:
    answer = httpx2.post(f"{url}/{what}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def found(real_bundle: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, System]]:
    """Every system, with all that it needs."""
    folder, work = tmp_path_factory.mktemp("given"), Path(mkdtemp(prefix="loadtest-"))
    work.chmod(0o755)  # the user of a node can't enter pytest's own folders
    same = make_tiny_bundle(folder / "same", documents=Bundle.open(real_bundle[0]).manifest.documents).path
    given = {"bundle": real_bundle[0], "model": str(real_bundle[1]), "device": "cpu", "work": work}
    given |= {"biencoder": str(save_biencoder(folder / "encoder")), "biencoder_bundle": same}
    inputs = Namespace(**given, adapter=None, bos_token=None)
    yield {one.name: one for one in systems(inputs) if one.missing is None}
    rmtree(work)


def needed(name: str, found: dict[str, System]) -> System:
    """The system; the test is skipped without its package or, for OpenSearch, its folder."""
    if find_spec(PACKAGES.get(name, "json")) is None or (name == "opensearch" and "OPENSEARCH_HOME" not in os.environ):
        pytest.skip(f"{name} is not installed, or OPENSEARCH_HOME not set")
    if found[name].prepare:
        finish(found[name].prepare)
    return found[name]


PACKAGES = {"opensearch": "opensearchpy", "milvus": "milvus_lite", "lancedb": "lancedb"}
NAMES = ("lightretriever", "bm25")
SLOW = ("processes", "llm", "biencoder", "onnx", "opensearch", "milvus", "lancedb")


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_system_starts_and_answers(name: str, found: dict[str, System]) -> None:
    with Server([*needed(name, found).command, "--port", "0"], environment=FAST) as server:
        assert server.ready_s > 0
        requests = search_requests(server.url, ["music player", "terminal"], {"k": 5})
        before = server.cpu_s()
        result = run_loop(open_loop(server.url, requests, rate=20, seconds=0.5, limit_s=60))
        assert result["answered"] == result["sent"] == 10
        assert result["degraded"] == 0
        assert server.cpu_s() > before
        assert server.memory_mb() > 10
        hits = ask(server.url, {"query": "music player", "k": 2})["hits"]
        assert [hit["rank"] for hit in hits] == [1, 2]
        assert hits[0]["score"] >= hits[1]["score"]
        assert "_id" not in hits[0]["fields"]
        assert {"title", "text", "year"} == set(hits[0]["fields"])
        if name in ("lightretriever", "llm", "biencoder", "onnx"):
            encoded = ask(server.url, {"text": "music player"}, "encode")
            assert encoded["dimension"] == 16
            assert encoded["terms"]
            assert bool(encoded["tokens"]) == (name == "lightretriever")  # a model's vector is no sum over tokens
        if name == "bm25":  # finds words of the query alone
            assert all("music" in json.dumps(hit["fields"]).lower() for hit in hits)
            assert ask(server.url, {"query": "qqqzzz", "k": 3})["hits"] == []


@pytest.mark.slow
def test_one_command_compares_in_turns(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_judged(tmp_path / "set", {"q1": "music player", "q2": "terminal"}, {"q1": {"doc-00000": 1}, "q2": {}})
    command = [str(tiny_path), "--queries", str(tmp_path / "set"), "--judged", "test"]
    command += ["--output", str(tmp_path / "out")]
    command += ["--warm-up-s", "0.1", "--seconds", "0.3", "--rounds", "2", "--concurrencies", "1", "4"]
    command += ["--work", str(tmp_path / "work"), "--limit-s", "60", "--systems"]
    assert servers.main([*command, "none"]) == 2
    assert "none: no such system" in capsys.readouterr().err
    assert servers.main([*command, "lightretriever,bm25,llm"]) == 0
    load = json.loads((tmp_path / "out" / "load.json").read_text())
    left = {one["name"]: one["left_out"] for one in load["systems"] if "left_out" in one}
    assert (left["llm"], left["processes"]) == ("no --model was given", "not asked for (--systems)")
    turns = [(name, count) for count in (1, 4) for name in ("lightretriever", "bm25")]
    assert [(row["system"], row["connections"]) for row in load["closed"]] == turns * 2
    for row in load["open"]:
        assert sum(row[kind] for kind in COUNTS) - row["degraded"] == row["sent"]
        assert row["rate"] == pytest.approx(0.5 * load["saturated"][row["system"]], abs=1e-3)
        assert row["server_us"] > 0
    assert str(tmp_path) not in json.dumps(load)
    assert set(load["ndcg"]) == set(load["memory_mb"]) == {"lightretriever", "bm25"}
    assert capsys.readouterr().out.count("| BM25 (Lucene) |") == 1


def test_the_highest_throughput_is_the_best_median() -> None:
    rows = [("a", 1, 5.0), ("a", 1, 7.0), ("a", 1, 100.0), ("a", 4, 8.0), ("a", 4, 9.0), ("a", 4, 6.0), ("b", 1, 3.0)]
    closed = [{"system": name, "connections": count, "qps": qps} for name, count, qps in rows]
    assert servers.saturated(closed) == {"a": 8.0, "b": 3.0}


def test_the_model_encodes_the_queries(
    real_bundle: tuple[Path, Path], tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTRETRIEVER_DEADLINE_MS", "60000")

    def opened(bundle: Bundle) -> SearchEngine:
        given = ModelRecipe(path=str(real_bundle[1]), device="cpu")
        return open_engine(bundle, lambda base: model_encoder(given, bundle, base), batch=2)

    bundle = Bundle.open(real_bundle[0])
    with opened(bundle) as heavy, SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as light:
        for mode in ("dense", "sparse"):
            asked = SearchRequest.model_validate({"query": "music player", "mode": mode})
            whole, table = ([(hit.id, hit.score) for hit in engine.search(asked).hits] for engine in (heavy, light))
            assert whole
            assert whole != table
    with raises(ModelError):
        opened(tiny_bundle)
