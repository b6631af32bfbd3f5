"""The floor answers as the service does, and both are measured by one command."""

import json
from pathlib import Path

import pytest

from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from research.floor.__main__ import main
from research.floor.bundles import bundles_table
from research.floor.bundles import main as compare
from research.floor.floor import Floor
from tests.support.tiny import BundleOf, tiny_documents

TEXTS = [f"{document.title} {document.text.split()[-2]}" for document in tiny_documents(40)[-19:]]
TEXTS.append("Übergröße of the terminal terminal, reads music")


def test_the_floor_has_the_hits_and_scores_of_the_service(bundle_of: BundleOf) -> None:
    floor = Floor(bundle_of("words"))
    moved = 0
    with floor.sparse, SearchEngine.open(bundle_of("words"), Settings(deadline_ms=60_000)) as engine:
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
def test_floor_and_service_are_measured_in_turns(bundle_of: BundleOf, tmp_path: Path) -> None:
    queries, output = tmp_path / "queries.jsonl", tmp_path / "floor.json"
    queries.write_text("".join(json.dumps({"_id": f"{row}", "text": text}) + "\n" for row, text in enumerate(TEXTS)))
    options = ["--turns", "2", "--seconds", "0.5", "--warm-up-s", "0.5", "--connections", "2", "--starts", "1"]
    assert main([str(bundle_of("words").path), "--queries", str(queries), "--output", str(output), *options]) == 0
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


@pytest.mark.slow
def test_two_bundles_are_measured_in_turns(bundle_of: BundleOf, tmp_path: Path) -> None:
    bundle, queries, output = f"{bundle_of('words').path}", tmp_path / "queries.jsonl", tmp_path / "bundles.json"
    queries.write_text("".join(json.dumps({"_id": f"{row}", "text": text}) + "\n" for row, text in enumerate(TEXTS)))
    options = ["--turns", "2", "--seconds", "0.5", "--warm-up-s", "0.5", "--queries", str(queries)]
    assert compare([bundle, bundle, "--output", str(output), *options]) == 0
    content = json.loads(output.read_text())
    assert {name: len(turns) for name, turns in content["turns"].items()} == {"light": 2, "best": 2}
    rows = [line.split(" | ") for line in bundles_table(content)]
    assert [row[0] for row in rows[2:]] == ["| light", "| best", "| best ÷ light"]
    assert rows[2][1] == rows[3][1]  # one bundle's size
    assert rows[4][1] == "1.00"
