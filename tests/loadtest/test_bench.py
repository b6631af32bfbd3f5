"""The comparison from the command line, with real servers on a tiny bundle, and its report; and locust."""

import json
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from lightretriever.loadtest import bench
from lightretriever.loadtest.counters import COUNTS
from lightretriever.loadtest.measure import Plan, _from, saturated
from tests.loadtest.server import answer, serving
from tests.support.waiting import wait_until

PATIENCE_S = 60
SHORT = ["--warm-up-s", "0.1", "--seconds", "0.3", "--rounds", "2", "--limit-s", "60"]


@pytest.fixture
def results(tiny_path: Path, queries: Path, tmp_path: Path) -> Path:
    output = tmp_path / "results"
    command = [str(tiny_path), "--queries", str(queries), "--output", str(output), "--static-bundle", str(tiny_path)]
    assert bench.main([*command, *SHORT, "--systems", "lightretriever,llm,static", "--model", str(tmp_path)]) == 0
    return output


@pytest.mark.slow
def test_one_command_measures_records_and_reports(results: Path) -> None:
    load = json.loads((results / "load.json").read_text())
    assert [one["name"] for one in load["systems"] if "left_out" not in one] == ["lightretriever", "static"]
    reasons = {one["name"]: one["left_out"] for one in load["systems"] if "left_out" in one}
    assert reasons["llm"].startswith("it did not start: ")
    assert reasons["processes"] == "not asked for (--systems)"
    # Systems take turns at every load, and every round has all of them.
    turns = [(system, connections) for connections in (1, 4) for system in ("lightretriever", "static")]
    assert [(row["system"], row["connections"]) for row in load["closed"][:4]] == turns
    assert len(load["closed"]) == 2 * 4 * 2
    assert len(load["open"]) == 2 * 8 * 2
    for row in load["open"]:
        assert sum(row[kind] for kind in COUNTS) - row["degraded"] == row["sent"]
        assert row["rate"] == pytest.approx(row["of"] * load["saturated"][row["system"]], abs=1e-3)
        assert row["server_us"] > 0
    assert str(results.parent) not in json.dumps(load)
    assert load["overlap"]["lightretriever"] == 1.0
    text = (results / "load.md").read_text()
    for content in ("Static embeddings + BM25", "not asked for (--systems)"):
        assert content in text


@pytest.mark.slow
def test_servers_end_with_a_run_that_is_stopped(tiny_path: Path, queries: Path, tmp_path: Path) -> None:
    given = [str(tiny_path), "--queries", str(queries), "--output", str(tmp_path / "out")]
    program = [sys.executable, "-m", "lightretriever.loadtest.bench"]
    command = [*program, *given, "--systems", "lightretriever", "--seconds", "600"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
        wait_until(lambda: servers_of(run.pid) != [])
        (server,) = servers_of(run.pid)
        run.terminate()
        assert run.wait(PATIENCE_S) != 0
        assert not Path(f"/proc/{server}").exists()


def servers_of(pid: int) -> list[int]:
    """Its children that run a server by now, not git, nor a copy of itself on the way to another program."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in children if b"lightretriever.service.cli" in command_of(child)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it ended meanwhile


def test_every_run_begins_with_another_query() -> None:
    requests = [b"%d" % number for number in range(1000)]
    plan = Plan(rounds=3)
    runs = [_from(requests, turn, number, plan) for turn in range(3) for number in range(len(plan.fractions))]
    assert len({run[0] for run in runs}) == 24
    assert all(sorted(run) == sorted(requests) for run in runs)
    assert _from([b"one"], 2, 7, plan) == [b"one"]


def test_the_highest_throughput_is_that_of_the_best_concurrency() -> None:
    rows = [
        {"system": system, "connections": connections, "qps": qps}
        for system, connections, figures in (("a", 1, (10.0, 90.0, 20.0)), ("a", 4, (30.0, 40.0)), ("b", 1, (5.0,)))
        for qps in figures
    ]
    assert saturated(rows) == {"a": 35.0, "b": 5.0}


def test_nothing_to_measure_is_an_error(
    tiny_path: Path, queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(tiny_path), "--queries", str(queries), "--output", str(tmp_path)]
    assert bench.main([*command, *SHORT, "--systems", "llm"]) == 2
    assert "no --model was given" in capsys.readouterr().err
    assert bench.main([*command, "--systems", "elastic"]) == 2
    assert "elastic: no such system" in capsys.readouterr().err
    assert bench.main([str(tmp_path / "none"), *command[1:]]) == 2
    assert not (tmp_path / "load.json").exists()


ROOT = Path(__file__).parents[2]


def test_users_search_until_the_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id":"1","text":"first"}\n{"_id":"2","text":"second"}\n')
    endings = {3: answer(503), 5: answer(body=b'{"hits":[],"degraded":["sparse"]}'), 7: answer(422)}
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "-u", "2", "-r", "2"]
    command += ["-t", "2s", "--queries", str(tmp_path), "--k", "3", "--json"]
    with serving(lambda number: endings.get(number, answer())) as asked:
        run = subprocess.run([*command, "--host", asked.url], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr  # as locust says that requests failed
    (searches,) = json.loads(run.stdout)
    assert searches["num_failures"] == 3  # a refusal, an answer without a leg, and an error
    assert searches["num_requests"] > 8
    assert 0 <= len(asked.times) - searches["num_requests"] <= 2  # those under way at the end
    asked_for = [orjson.loads(body) for body in asked.bodies]
    assert {body["query"] for body in asked_for} == {"first", "second"}
    assert {body["k"] for body in asked_for} == {3}
