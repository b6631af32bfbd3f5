"""The paper's table on tiny bundles. How long anything takes is not tested, only what is counted and compared."""

import json
from pathlib import Path

import pytest
from lightretriever.artifacts.bundle.reader import Bundle

from research.speed import paper_table
from research.speed.paper_table import PAPER, encode_light, rows_of


def test_the_papers_ratios() -> None:
    assert PAPER["encode_ratio"] > 2500
    assert PAPER["qps_ratio"] == pytest.approx(12.7, abs=0.1)


def test_two_processes_share_the_queries(tiny_bundle: Bundle) -> None:
    times = encode_light(tiny_bundle.path, ["music player", "terminal", "a text"] * 30, 2)
    assert min(times.values()) > 0
    assert times["both_s"] >= (times["tokenize_s"] + times["encode_s"]) / 2 * 0.5


@pytest.mark.slow
def test_one_command_fills_the_table(
    real_bundle: tuple[Path, Path], queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "speed.json"
    command = [str(real_bundle[0]), "--queries", str(queries), "--count", "48", "--results", str(file)]
    command += ["--model", str(real_bundle[1]), "--device", "cpu", "--llm-queries", "12"]
    assert paper_table.main(command) == 0
    rows = {(row["key"], row.get("setting")): row for row in json.loads(file.read_text())["rows"]}
    light = rows["paper_table", "without the LLM, 40 documents"]
    model = rows["paper_table", "with the LLM, 40 documents"]
    assert (light["queries"], light["different_queries"], light["processes"]) == (48, 4, 2)
    assert light["value"] == pytest.approx(light["both_s"] + light["search_s"], rel=1e-2)
    assert light["qps"] == pytest.approx(48 / light["value"], rel=1e-2)
    assert model["scaled_from"] == 12
    assert model["model"] == "model"
    ratio = rows["encode_vs_llm", None]
    assert ratio["value"] == pytest.approx(model["both_s"] / light["both_s"], rel=1e-2)
    assert ratio["qps_ratio"] == pytest.approx(model["value"] / light["value"], rel=1e-2)
    assert ("encode_65536_s", None) not in rows  # of 48 queries it would be another number
    assert "with the LLM" in capsys.readouterr().out


def test_goals_are_for_all_queries_on_a_cpu() -> None:
    facts = {"documents": 5, "device": "cuda", "processes": 2}
    light = {"tokenize_s": 0.2, "encode_s": 0.1, "both_s": 0.2, "search_s": 5.0}
    model = {"both_s": 100.0, "tokenize_s": 10.0, "search_s": 5.0, "measured": 65_536.0}
    rows = rows_of(light, model, 65_536, facts)
    assert [(row["key"], row.get("setting"), row["value"]) for row in rows] == [
        ("paper_table", "without the LLM, 5 documents", 5.2),
        ("encode_65536_s", None, 0.2),
        ("paper_table", "with the LLM, 5 documents", 105.0),
        ("encode_vs_llm", "the LLM on cuda", 500.0),
        ("encode_alone_vs_llm", "the LLM on cuda", 1800.0),
    ]
    assert "scaled_from" not in rows[2]


def test_a_bundle_that_is_not_there_is_named(queries: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper_table.main([str(queries / "none"), "--queries", str(queries)]) == 2
    assert "none" in capsys.readouterr().err
