"""Users of locust at several numbers: figures of a run, and the whole command on a tiny bundle."""

import json
from pathlib import Path

import pytest

from lightretriever.artifacts.evaluation.runs import JudgedQueries
from lightretriever.loadtest.overlap import ndcg
from research.pages.run_tables import users_table
from research.speed import users
from tests.loadtest.server import answer, serving

STATISTICS = {
    "num_requests": 100,
    "num_failures": 2,
    "start_time": 50.004,
    "min_response_time": 4,
    "last_request_timestamp": 54.0,
    "response_times": {"30": 1, "4": 50, "9": 49},
}


def test_a_run_has_figures_from_locusts_own_counts() -> None:
    row = users.row_of(STATISTICS)
    assert (row["qps"], row["p50_ms"], row["p95_ms"], row["failures"]) == (25.0, 6.5, 9.0, 2)
    assert 9 <= row["p99_ms"] < 30
    few = {**STATISTICS, "num_requests": 10, "response_times": {"4": 10}}
    assert users.row_of(few).keys() == {"qps", "p50_ms", "requests", "failures"}


def test_a_servers_answers_are_measured_by_judgments() -> None:
    judged = JudgedQueries({"q": "first", "r": "second"}, {"q": {"a": 1}, "r": {"c": 1}}, [])
    hits = [{"id": "a"}, {"id": "b"}]
    with serving(lambda number: answer(body=json.dumps({"hits": hits}).encode(), close=True)) as asked:
        assert ndcg(asked.url, judged) == pytest.approx(0.5)
    assert json.loads(asked.bodies[0]) == {"query": "first", "k": 10}


@pytest.mark.slow
def test_one_command_measures_with_and_without_the_model(
    real_bundle: tuple[Path, Path], queries: Path, tmp_path: Path
) -> None:
    bundle, model = real_bundle
    file = tmp_path / "users.json"
    given = [str(bundle), "--queries", str(queries), "--model", str(model), "--device", "cpu"]
    options = ["--users", "1,2", "--seconds", "1", "--rounds", "1", "--results", str(file)]
    assert users.main([*given, *options]) == 0
    content = json.loads(file.read_text())
    expected = [(system, number) for number in (1, 2) for system in ("lightretriever", "llm")]
    assert [(row["system"], row["users"]) for row in content["runs"]] == expected
    assert all(row["requests"] > 0 and row["failures"] == 0 for row in content["runs"])
    assert str(tmp_path) not in json.dumps(content["command"])
    assert "LLM in the query path, 2 users" in users_table(file)[0]


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_an_error(
    tiny_path: Path, queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.json"
    given = [str(tiny_path), "--queries", str(queries), "--model", str(tmp_path), "--results", str(file)]
    assert users.main(given) == 2
    assert "it did not start" in capsys.readouterr().err
    assert not file.exists()
