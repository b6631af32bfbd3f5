"""The program that measures documents written beside a bundle, on a tiny one."""

import json
import shutil
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from research.pages.run_tables import live_table
from research.speed import live


@pytest.mark.slow
def test_one_command_measures_and_a_table_shows_it(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"_WRITES": 3, "_BULK": 10, "_SEARCHES": 5, "_SEEN": 2}.items():
        monkeypatch.setattr(live, name, value)
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle.path, bundle)
    results = tmp_path / "live.json"
    assert live.main([str(bundle), "--sizes", "0", "20", "--results", str(results)]) == 0
    (found,) = json.loads(results.read_text("utf-8")).values()
    assert json.loads(capsys.readouterr().out)["documents"] == found["documents"] == 120
    assert [row["written"] for row in found["overlay"]] == [0, 20]
    assert all(row["p50_ms"] > 0 for row in found["overlay"])
    assert found["overlay"][1]["rebuilt_p50_ms"] > 0
    assert found["command"].startswith("python -m research.speed.live ")
    (table,) = live_table(results)
    assert "| s to open the journal of 20 documents |" in table
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "live.json"]  # the journals are gone
