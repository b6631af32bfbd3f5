"""What a request costs, and when a hand-over pays: that both are measured and recorded. No figure is tested."""

import json
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.backends.local import HAND_OVER_BYTES
from lightretriever.service.settings import Settings
from research.harness.rows import GOALS
from research.pages.speed_tables import speed_tables
from research.speed import hand_over, serving
from tests.loadtest.conftest import QUERIES
from tests.service.live import warm


def test_each_size_is_measured_in_both_ways(tiny_bundle: Bundle) -> None:
    with warm(tiny_bundle, Settings(warm_up_queries=3)) as engine:
        rows = hand_over.measure(engine, QUERIES, sizes_mib=(1, HAND_OVER_BYTES >> 20))
    assert [row["rule"] for row in rows] == ["inline", "handed over"]
    for row in rows:
        assert row["value"] == pytest.approx(row["inline_us"] / row["handed_us"], rel=0.01)
        assert min(row[name] for name in ("dense_us", "sparse_us", "inline_us", "handed_us")) > 0


def test_a_bundle_that_is_not_there_is_named(queries: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for program in (hand_over, serving):
        assert program.main([str(queries / "none"), "--queries", str(queries)]) == 2
        assert "none" in capsys.readouterr().err


@pytest.mark.slow
def test_the_commands_measure_and_record(tiny_path: Path, queries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = queries / "speed.json"
    command = [str(tiny_path), "--queries", str(queries), "--results", str(file)]
    assert serving.main([*command, "--warm-up-s", "0.5", "--seconds", "0.5", "--turns", "2"]) == 0
    monkeypatch.setattr(hand_over, "_MIB", (1,))
    assert hand_over.main([*command, "--count", "3"]) == 0
    written = json.loads(file.read_text())["rows"]
    rows = {row["key"]: row for row in written}
    goals = {"request_cpu_ms", "saturated_qps", "saturated_two_qps", "switches", "half_load"}
    assert set(rows) == {*goals, "hand_over", "threads"}
    threads = {row["setting"]: row["value"] for row in written if row["key"] == "threads"}
    defaults = [value for setting, value in threads.items() if setting.endswith("default")]
    assert len(threads) >= 4
    assert defaults == [rows["saturated_qps"]["value"], rows["saturated_two_qps"]["value"]]
    assert min(row["value"] for row in rows.values()) > 0
    assert rows["switches"]["goal"] == GOALS["switches"][1]
    assert rows["half_load"]["p99_ms"] >= rows["half_load"]["p50_ms"]
    assert "1 MiB" in "".join(speed_tables(file))
