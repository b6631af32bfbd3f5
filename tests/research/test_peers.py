"""The comparison with other systems from the command line, with real servers on a tiny bundle, and its rows."""

import json
from pathlib import Path

import pytest

from research.servers import __main__ as peers


@pytest.mark.slow
def test_one_command_measures_and_records(tiny_path: Path, queries: Path, tmp_path: Path) -> None:
    command = [str(tiny_path), "--queries", str(queries), "--output", str(tmp_path), "--work", str(tmp_path / "work")]
    command += ["--warm-up-s", "0.1"]
    command += ["--systems", "lightretriever,bm25", "--seconds", "0.3", "--rounds", "2", "--limit-s", "60"]
    assert peers.main([*command, "--concurrencies", "1,4", "--fractions", "0.5"]) == 0
    load = json.loads((tmp_path / "load.json").read_text())
    own = load["own"]
    assert len(own["ready_s"]) == 2
    assert own["processes"][1]["total_pss"] > own["processes"][0]["total_pss"]
    assert "BM25 (Lucene)" in (tmp_path / "load.md").read_text()
    speed = {row["key"]: row for row in json.loads((tmp_path / "speed.json").read_text())["rows"]}
    assert set(speed) == {"peers", "qps_http_hybrid", "ready_s", "second_process_mb"}
    assert speed["qps_http_hybrid"]["value"] == round(load["saturated"]["lightretriever"], 1)
    assert speed["second_process_mb"]["value"] == own["processes"][1]["added_pss"]


def test_rows_for_the_goals() -> None:
    load = {
        "bundle": {"corpus": "pages", "documents": 9},
        "queries": {"count": 3},
        "model": "smol",
        "systems": [{"name": "bm25", "label": "BM25 (Lucene)"}],
        "saturated": {"lightretriever": 1000.0, "llm": 4.0, "bm25": 500.0},
        "open": [
            {"system": name, "of": 0.5, "p99_ms": p99}
            for name, p99 in (("lightretriever", 10.0), ("bm25", 30.0), ("llm", None))
        ],
        "overlap": {"lightretriever": 0.99, "bm25": 0.4},
        "ndcg": {"lightretriever": 0.7, "bm25": 0.6, "llm": 0.8},
        "own": {
            "ready_s": [3.0, 1.0, 2.0],
            "processes": [{"added_pss": 300.0}, {"added_pss": 120.5, "private": 110.0}],
        },
    }
    rows = {row["key"]: row for row in peers.goal_rows(load)}
    assert rows["qps_vs_llm"]["value"] == 250
    assert rows["qps_vs_llm"]["llm_qps"] == 4
    peer = rows["peers"]
    assert (peer["setting"], peer["system"]) == ("BM25 (Lucene) (pages, 9 documents)", "bm25")
    assert (peer["value"], peer["p99"]) == (2.0, 3.0)
    assert (peer["ndcg"], peer["our_ndcg"]) == (0.6, 0.7)
    assert (peer["overlap"], peer["our_overlap"]) == (0.4, 0.99)
    assert rows["ready_s"]["value"] == 2
    assert rows["second_process_mb"]["value"] == 120.5
