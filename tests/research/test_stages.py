"""Stage benchmarks on the tiny bundle, and the file they are recorded in. How long anything takes is not tested."""

import json
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.record import latency
from lightretriever.service.settings import Settings
from research.harness.rows import GOALS, record
from research.pages.speed_tables import goal_table
from research.speed import stages
from tests.loadtest.conftest import QUERIES
from tests.service.live import warm


def test_every_stage_is_timed_once_per_query(tiny_bundle: Bundle) -> None:
    with warm(tiny_bundle, Settings(warm_up_queries=3)) as engine:
        seconds = stages.measure(engine, QUERIES, candidates=20)
    assert set(seconds) == {*stages.STAGES, "fresh", "tokenizers"}
    for stage, values in seconds.items():
        assert len(values) == len(QUERIES), stage
        assert min(values) > 0, stage


@pytest.mark.slow
def test_one_command_measures_and_records(
    tiny_path: Path, queries: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = queries / "speed.json"
    monkeypatch.setattr(stages, "_TURNS", 2)
    monkeypatch.setattr(stages, "_WARM_UP_TURNS", 1)
    monkeypatch.setattr(stages, "_TURN_S", 0.2)
    command = [str(tiny_path), "--queries", str(queries), "--results", str(file)]
    assert stages.main(command) == 0
    assert "tokenize" in capsys.readouterr().out
    content = json.loads(file.read_text())
    assert all(content[name] for name in ("machine", "date", "commit"))
    rows = {(row["key"], row.get("setting")): row for row in content["rows"]}
    assert len(rows) == len(stages.STAGES) + 2 + 5
    assert str(queries) not in rows["http_overhead", None]["command"]
    middle = {row["setting"].split()[0].rstrip(","): row["p50"] for row in content["rows"] if row["key"] == "stage"}
    slower = max(middle["dense"], middle["sparse"])
    whole = rows["search_overhead", None]
    assert whole["value"] == pytest.approx(middle["search"] / slower, rel=0.01)
    assert (whole["goal"], whole["queries"], whole["documents"]) == (GOALS["search_overhead"][1], len(QUERIES), 120)
    both = middle["dense"] + middle["sparse"]
    assert rows["parallel_gain", None]["value"] == pytest.approx(both / middle["search"], rel=0.01)
    assert rows["encode_overhead", None]["value"] == pytest.approx(middle["fresh"] / middle["tokenizers"], rel=0.01)
    http = rows["http_overhead", None]
    assert len(http["turns"]) == 2
    assert min(http["http_ms"], http["in_process_ms"], http["empty_ms"]) > 0
    assert [line for line in goal_table(file) if "hybrid search in process" in line]


def test_rows_replace_older_ones_of_the_same_setting(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    record(file, [{"key": "ready_s", "value": 2.0, "unit": "s"}, {"key": "x", "setting": "a", "value": 1}], "first")
    overhead = {"key": "http_overhead", "value": 1.0, "unit": "s"}
    record(file, [{"key": "x", "setting": "b", "value": 2}, overhead], "next")
    record(file, [{"key": "ready_s", "value": 1.5, "unit": "s"}], "again")
    rows = json.loads(file.read_text())["rows"]
    expected = [("http_overhead", None, 1.0), ("ready_s", None, 1.5), ("x", "a", 1), ("x", "b", 2)]
    assert [(row["key"], row.get("setting"), row["value"]) for row in rows] == expected
    assert [row["command"] for row in rows] == ["next", "again", "first", "next"]
    assert "goal" not in rows[2]
    assert len(goal_table(file)) == 4


def test_rows_of_a_whole_key_replace_all_older_ones(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    record(file, [{"key": "x", "setting": "a", "value": 1}, {"key": "y", "setting": "a", "value": 1}], "first")
    record(file, [{"key": "x", "setting": "b", "value": 2}], "next", whole=("x",))
    rows = json.loads(file.read_text())["rows"]
    assert [(row["key"], row["setting"], row["value"]) for row in rows] == [("x", "b", 2), ("y", "a", 1)]


def test_percentiles() -> None:
    assert latency([i / 1000 for i in range(1, 101)], 1000) == {"p50": 50.5, "p95": 95.05, "p99": 99.01}


def test_without_measurements_there_is_no_table(tmp_path: Path) -> None:
    assert goal_table(tmp_path / "none.json") == []
