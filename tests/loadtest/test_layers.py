"""What the layers of HTTP cost, on the tiny bundle. How much that is, is not tested."""

import json
from pathlib import Path

import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest import layers
from lightretriever.loadtest.details import detail_tables
from lightretriever.loadtest.servers.layers import LAYERS
from lightretriever.loadtest.wire import LoadError


def write_queries(folder: Path) -> None:
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(["music", "a terminal"])]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")


def test_one_command_measures_and_records(tiny_bundle: Bundle, tmp_path: Path) -> None:
    write_queries(tmp_path)
    file = tmp_path / "speed.json"
    short = ["--rounds", "1", "--seconds", "0.1", "--results", str(file)]
    assert layers.main([str(tiny_bundle.path), "--queries", str(tmp_path), *short]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["setting"] for row in rows] == [what for what, _ in LAYERS.values()]
    assert all(row["value"] > 0 for row in rows)
    (table,) = detail_tables(file)
    assert table.count("\n| ") == 1 + len(LAYERS)


def test_a_row_tells_what_its_layer_adds() -> None:
    costs = [dict(zip(LAYERS, (10.0, 20.0 + extra, 50.0, 90.0, 35.0), strict=True)) for extra in (0, 5, 30)]
    rows = layers.rows_of(costs)
    found = [(row["value"], row["more"]) for row in rows]
    assert found == [(10.0, 10.0), (25.0, 15.0), (50.0, 25.0), (90.0, 40.0), (35.0, 25.0)]


def test_what_can_not_be_measured_is_told(
    tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LoadError, match="no queries"):
        layers.measure(tiny_bundle.path, [], rounds=1, seconds=0.1)
    write_queries(tmp_path)
    assert layers.main([str(tmp_path / "none"), "--queries", str(tmp_path)]) == 2
    assert "none" in capsys.readouterr().err
