"""The table of measured figures: what stands in no committed result file."""

import json
from pathlib import Path

from research.pages.speed_tables import speed_table


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
