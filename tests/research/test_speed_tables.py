"""Tables of measured figures."""

import json
from pathlib import Path

from research.pages.run_tables import FIGURES, load_table, versions_tables
from research.pages.speed_tables import speed_table, speed_tables


def test_every_kind_of_row_has_its_table(tmp_path: Path) -> None:
    assert speed_tables(tmp_path / "none.json") == []
    times = {"p50": 1000.5, "p95": 2.0, "p99": 3.0}
    rows = [
        {"key": "stage", "setting": "fuse", **times},
        {"key": "paper_table", "setting": "without the LLM", "both_s": 0.5, "search_s": 7.0, "value": 7.5, "qps": 8738},
        {"key": "ready_s", "value": 3.0, "goal": "≤ 3"},
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"rows": rows}))
    stages, paper = speed_tables(tmp_path / "speed.json")
    assert "| fuse | 1,000.5 | 2.0 | 3.0 |" in stages
    assert "| without the LLM | 0.5 | 7.0 | 7.5 | 8,738 |" in paper


def test_a_figure_of_a_busy_machine_says_so(tmp_path: Path) -> None:
    origin = {"machine": "m", "date": "2026-11-27T10:00:00+00:00", "commit": "c"}
    rows = [
        {"key": "switches", "value": 9.0, "goal": "≤ 12", "load_average": [7.25, 5.0, 5.0], **origin},
        {"key": "half_load", "value": 2.5, "goal": "≤ 3", "load_average": [0.1, 0.2, 0.3], **origin},
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"rows": rows}))
    (table,) = speed_table(tmp_path / "speed.json")
    assert "| context switches a request, one process, 8 connections; the machine's load before: 7.2 | 9 |" in table
    assert "| p99 ÷ p50 at half of the saturated requests/s | 2.5 |" in table


def test_systems_under_load_stand_by_their_throughput(tmp_path: Path) -> None:
    assert load_table(tmp_path / "none.json") == []
    opened = [
        {"system": name, "of": of, "p50_ms": p50, "p99_ms": 9.0, "rate": 50.0}
        for name, of, p50 in (("slow", 0.5, 20.0), ("slow", 0.9, 80.0), ("fast", 0.5, 2.0), ("fast", 0.5, 4.0))
    ]
    systems = [{"name": name, "label": name.title()} for name in ("slow", "fast", "left out")]
    load = {"systems": systems, "saturated": {"slow": 100.0, "fast": 1234.5}, "open": opened}
    (tmp_path / "load.json").write_text(json.dumps(load))
    assert load_table(tmp_path / "load.json")[2:] == ["| Fast | 1,234 | 3 | 9 | 50 |", "| Slow | 100 | 20 | 9 | 50 |"]


def test_versions_stand_side_by_side(tmp_path: Path) -> None:
    assert versions_tables(tmp_path / "none.json") == []
    figures = dict.fromkeys(FIGURES, 2.0)
    side = {"commit": "c", "documents": 1200, "dense": "SQ8", "versions": {"faiss": "1.2"}}
    run = {
        "machine": "m",
        "date": "2026-01-02T03",
        "plan": {"turns": 3, "questions": 5, "connections": 16},
        "sides": [{"name": "before", **side, **figures}, {"name": "after", **side, **figures, "rss_mb": 3.0}],
        "ratios": [{"name": "after", **dict.fromkeys(FIGURES, 1.0), "rss_mb": 1.5}],
    }
    (tmp_path / "versions.json").write_text(json.dumps({"runs": {"demo": run}}))
    lines = versions_tables(tmp_path / "versions.json")
    assert "1,200 documents" in lines[0]
    assert "- before: commit c, dense index SQ8; faiss 1.2" in lines
    assert "| | before | after | after ÷ before |" in lines
    assert "| memory after it, MiB (RSS) | 2.0 | 3.0 | 1.5 |" in lines
