"""The program that measures plain searches beside heavy clients, on a tiny bundle."""

import json
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from research.pages.run_tables import fairness_table
from research.speed import fairness


@pytest.mark.slow
def test_one_command_measures_and_a_table_shows_it(
    tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "fairness.json"
    assert fairness.main([str(tiny_bundle.path), "--seconds", "0.2", "--results", str(results)]) == 0
    run = json.loads(results.read_text("utf-8"))
    assert json.loads(capsys.readouterr().out)["alone"] == run["alone"]
    assert set(run["alone"]["statuses"]) == {"200"}
    assert run["alone"]["p99_ms"] >= run["alone"]["p50_ms"] > 0
    assert len(run["beside"]) == 22
    assert set(run["beside"][0]["first"]) == {"200"}
    (table,) = fairness_table(results)
    assert "| 64 long texts to encode; 64 long searches at once |" in table
