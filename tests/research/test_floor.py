"""The floor answers as the service does, and both are measured by one command."""

import json
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from research.floor.__main__ import alone_table, floor_table, main
from research.floor.floor import Floor
from tests.support.tiny import tiny_documents

TEXTS = [f"{document.title} {document.text.split()[-2]}" for document in tiny_documents(40)[-19:]]
TEXTS.append("Übergröße of the terminal terminal, reads music")


def test_the_floor_has_the_hits_and_scores_of_the_service(word_bundle: Bundle) -> None:
    floor = Floor(word_bundle)
    moved = 0
    with floor.sparse, SearchEngine.open(word_bundle, Settings(deadline_ms=60_000)) as engine:
        assert engine.reader.normalization == "evidence"
        assert engine.reader.feedback > 0
        for text in TEXTS:
            request = SearchRequest(query=text)
            expected, found = engine.answer(request), json.loads(floor.search(request.model_dump_json().encode()))
            floor.feedback = 0.0
            moved += json.loads(floor.search(request.model_dump_json().encode()))["hits"] != found["hits"]
            floor.feedback = engine.reader.feedback
            assert [hit["id"] for hit in found["hits"]] == [hit["id"] for hit in expected["hits"]]
            for hit, of_service in zip(found["hits"], expected["hits"], strict=True):
                of_service.pop("matched", None)
                for score, of_hit in ((hit, of_service), (hit["dense"], of_service["dense"])):
                    assert score.pop("score") == pytest.approx(of_hit.pop("score"), abs=1e-6)
                assert hit == of_service
            assert found["candidates"] == expected["candidates"]
    assert moved  # else the queries would say nothing of feedback


@pytest.mark.slow
def test_floor_and_service_are_measured_in_turns(word_bundle: Bundle, tmp_path: Path) -> None:
    queries, output = tmp_path / "queries.jsonl", tmp_path / "floor.json"
    queries.write_text("".join(json.dumps({"_id": f"{row}", "text": text}) + "\n" for row, text in enumerate(TEXTS)))
    options = ["--turns", "2", "--seconds", "0.5", "--warm-up-s", "0.5", "--connections", "2", "--starts", "1"]
    assert main([str(word_bundle.path), "--queries", str(queries), "--output", str(output), *options]) == 0
    content = json.loads(output.read_text())
    assert {name: len(turns) for name, turns in content["turns"].items()} == {"floor": 2, "service": 2}
    assert all(turn["cpu_ms"] > 0 and turn["qps"] > 0 for turns in content["turns"].values() for turn in turns)
    assert content["bundle"] == {"corpus": "tiny", "documents": 120}
    alone = content["alone"]
    assert alone["half"]["answered"] == alone["half"]["sent"]
    assert alone["greedy"]["answered"] == alone["greedy"]["sent"]
    refused = [result["refused"] for result in alone["overload"].values()]
    assert refused[-1] > 0
    assert content["milliseconds"]["search"] > content["milliseconds"]["sparse"] > 0
    assert not any(result["failed"] or result["late"] for result in alone["overload"].values())


def test_the_table_has_medians_and_their_ratio() -> None:
    turn = {"cpu_ms": 1.0, "switches": 1, "qps": 1000, "p50_ms": 8, "p99_ms": 16}
    turns = {
        "floor": [turn, turn | {"cpu_ms": 0.8}, turn | {"cpu_ms": 9}],
        "service": [turn | {"cpu_ms": 1.25, "switches": 2}],
        "before": [turn | {"cpu_ms": 2.5, "qps": 500}],
    }
    alone = {"ready_s": [3, 2, 9], "memory_mb": [200], "greedy": turn, "half": turn | {"rate": 250}}
    alone["capacity"] = {"qps": 500, "cpu_s": 5.0, "answered": 2500}
    most = {"qps": 250, "cpu_s": 5.0, "answered": 1250, "refused": 12500}
    alone["overload"] = {"4": {"qps": 450}, "16": most}
    times = {"search": 1.3, "dense": 0.2, "sparse": 1.0, "rank": 0.001}
    content = {"turns": turns, "alone": alone, "milliseconds": times, "bundle": {"documents": 1200}}
    assert floor_table(content)[2:] == [
        "| the floor | 1.00 | 1.00 | 1,000 | 8.00 | 16.00 |",
        "| the service | 1.25 | 2.00 | 1,000 | 8.00 | 16.00 |",
        "| the version before | 2.50 | 1.00 | 500 | 8.00 | 16.00 |",
        "| service ÷ floor | 1.25 | 2.00 | 1.00 | 1.00 | 1.00 |",
        "| service ÷ version before | 0.50 | 2.00 | 2.00 | 1.00 | 1.00 |",
    ]
    assert alone_table([content, content | {"milliseconds": times | {"rank": 0.5}}]) == [
        "| the service alone | 1,200 documents | 1,200 documents |",
        "|---|---:|---:|",
        "| start to ready, s | 3.0 | 3.0 |",
        "| memory after the start, MiB | 200 | 200 |",
        "| open loop at half of the throughput: p50, p99 in ms | 8.0, 16.0 | 8.0, 16.0 |",
        "| one plain client beside two that ask for 100 hits with snippets: p50, p99 in ms | 8.0, 16.0 | 8.0, 16.0 |",
        "| answers with 4, 16 times the clients that are admitted, of the throughput | 0.90, 0.50 | 0.90, 0.50 |",
        "| processor time of a refusal, of an answer's | 0.10 | 0.10 |",
        "| a search in process ÷ the slower of its libraries | 1.30 | 1.30 |",
        "| search, ms | 1.30 | 1.30 |",
        "| dense, ms | 0.20 | 0.20 |",
        "| sparse, ms | 1.00 | 1.00 |",
        "| rank, ms | – | 0.50 |",
    ]
