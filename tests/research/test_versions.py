"""Versions side by side, on the tiny bundle. How long anything takes is not tested."""

import json
import sys
from pathlib import Path

import pytest

from lightretriever.loadtest.connection import LoadError
from research.harness.turns import in_turns
from research.pages.run_tables import FIGURES
from research.speed import versions
from research.speed.versions import Plan, Side, compare, ratios
from tests.support.wordings import raises

QUERIES = ["music player", "a small library for numbers", "terminal"]


def test_a_worker_times_every_question(tiny_path: Path) -> None:
    with Side.of("here", sys.executable, str(tiny_path)).worker() as worker:
        assert worker.facts["documents"] == 120
        assert set(worker.facts["versions"]) == {"pyserini", "faiss", "python"}
        for texts in (QUERIES, QUERIES[:1]):
            found = worker.ask(texts)
            assert set(found) == {"in_process", "dense_alone", "sparse_alone"}
            for seconds in found.values():
                assert len(seconds) == len(texts)
                assert min(seconds) > 0
        with pytest.raises(LoadError, match="The side here can't search"):
            worker.ask([""])  # which has no token


def test_sides_take_turns(tiny_path: Path) -> None:
    plan, turns = Plan(turns=3, warm_up=1), []

    def work(side: int, turn: int) -> dict[str, int]:
        turns.append((side, turn))
        return {"side": side, "turn": turn}

    found = in_turns(2, plan, work)
    assert turns == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)]
    # The first turn warms up.
    assert found == [[{"side": side, "turn": turn} for turn in (1, 2, 3)] for side in (0, 1)]


def test_every_turn_has_questions_of_its_own() -> None:
    texts = [str(number) for number in range(7)]
    plan = Plan(questions=3)
    assert [plan.of(texts, turn) for turn in range(3)] == [["0", "1", "2"], ["3", "4", "5"], ["6", "0", "1"]]


def test_ratios_refer_to_the_first_side() -> None:
    rows = [{"name": "before", "documents": 3, "qps": 4.0}, {"name": "after", "documents": 3, "qps": 6.0}]
    assert ratios(rows) == [{"name": "after", "qps": 1.5}]


def test_sides_that_are_none_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    for program, bundle in ((str(tmp_path / "python"), tiny_path), (sys.executable, tmp_path)):
        with raises(LoadError):
            Side.of("wrong", program, str(bundle))
    command = Path(sys.executable).with_name("lightretriever")
    assert Side.of("here", str(command), str(tiny_path)) == Side.of("here", sys.executable, str(tiny_path))
    with raises(LoadError):
        compare([Side.of("here", sys.executable, str(tiny_path))], [], Plan())


@pytest.mark.slow
def test_one_command_compares_and_records(
    tiny_path: Path, queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "versions.json"
    command = ["--queries", str(queries), "--results", str(file), "--turns", "1", "--questions", "4"]
    command += ["--seconds", "0.3", "--warm-up", "1", "--connections", "2"]
    command += ["--side", "here", sys.executable, str(tiny_path)]
    for name in ("demo", "large", "demo"):
        assert versions.main([*command, "--name", name, "--side", "again", sys.executable, str(tiny_path)]) == 0
    assert "| | here | again | again ÷ here |" in capsys.readouterr().out
    runs = json.loads(file.read_text())["runs"]
    assert list(runs) == ["demo", "large"]
    for row in runs["demo"]["sides"]:
        assert min(row[name] for name in FIGURES) > 0
        slower = max(row["dense_alone_p50_ms"], row["sparse_alone_p50_ms"])
        assert row["over_slower_leg"] == pytest.approx(row["in_process_p50_ms"] / slower, rel=1e-3)
    (ratio,) = runs["demo"]["ratios"]
    first, second = runs["demo"]["sides"]
    assert ratio["saturated_qps"] == pytest.approx(second["saturated_qps"] / first["saturated_qps"], abs=1e-3)
    assert str(tmp_path) not in file.read_text()
    assert versions.main([*command, "--name", "demo", "--side", "gone", str(tmp_path / "python"), str(tiny_path)]) == 2
