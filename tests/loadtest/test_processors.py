"""What processes get done alone and together, on the tiny bundle. How much that is, is not tested."""

import json
import os
from pathlib import Path

import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest import processors
from lightretriever.loadtest.wire import LoadError

from tests.support.tiny import make_tiny_bundle

QUERIES = ["music player", "a small library for numbers", "terminal"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("plain") / "bundle")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """At most two of the machine's processors: each is a process with a JVM."""
    some = sorted(os.sched_getaffinity(0))[:2]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(some))
    return some


def test_one_command_measures_and_records(bundle: Bundle, tmp_path: Path, two: list[int]) -> None:
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(QUERIES)]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines) + "\n")
    file = tmp_path / "speed.json"
    short = ["--rounds", "2", "--seconds", "0.05", "--results", str(file)]
    assert processors.main([str(bundle.path), "--queries", str(tmp_path), *short]) == 0
    rows = {row["setting"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["counting", "reading", "searching, 120 documents"]
    for row in rows.values():
        assert row["processors"] == len(two)
        assert row["documents"] == 120
        assert row["one_per_s"] > 0
        assert row["all_per_s"] > 0
        assert row["value"] > 0


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    rates = {work: [(100.0, 130.0), (50.0, 90.0), (100.0, 150.0)] for work in processors.WORKS}
    for row in processors.rows_of(rates, 2, 120):
        assert (row["value"], row["one_per_s"], row["all_per_s"]) == (1.5, 100.0, 130.0)


def test_there_may_be_more_processors_than_queries(bundle: Bundle) -> None:
    one = min(os.sched_getaffinity(0))
    rates = processors.measure(bundle.path, QUERIES[:1], [one, one], 1, 0.02)
    assert all(together > 0 for pairs in rates.values() for _, together in pairs)


def test_what_can_not_be_measured_is_told(bundle: Bundle, tmp_path: Path, two: list[int]) -> None:
    with pytest.raises(LoadError, match="A process that should search failed"):
        processors.measure(tmp_path / "none", QUERIES, two[:1], 1, 0.01)
    with pytest.raises(LoadError, match="no queries"):
        processors.measure(bundle.path, [], two, 1, 0.01)


def test_a_bundle_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "music"}\n')
    assert processors.main([str(tmp_path / "none"), "--queries", str(tmp_path)]) == 2
    assert "none" in capsys.readouterr().err
