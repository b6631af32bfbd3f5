"""The load generator against real servers, some of which misbehave on purpose. Only what can't be faster is timed."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import orjson
import pytest

from lightretriever.loadtest.connection import search_requests
from lightretriever.loadtest.generator import COUNTS, closed_loop, main, open_loop, run_loop
from lightretriever.loadtest.process import ROOT
from tests.client.scripted import Scripted, answer, hang_up, stall_until
from tests.support.waiting import free_port


def requests(url: str, count: int = 50) -> list[bytes]:
    return search_requests(url, [f"query {number}" for number in range(count)], {"k": 5})


def bodies(asked: Scripted) -> list[dict[str, Any]]:
    return [orjson.loads(request["body"]) for request in asked.seen]


def test_requests_come_at_the_rate_that_was_asked_for() -> None:
    with Scripted(answer()) as asked:
        before = time.monotonic()
        result = run_loop(open_loop(asked.url, requests(asked.url), rate=100, seconds=1))
    assert (result["sent"], result["answered"], result["rate"]) == (100, 100, 100)
    assert [result[kind] for kind in ("degraded", "refused", "failed", "late")] == [0, 0, 0, 0]
    # Never too early: the request after n others can't come before n/100 s.
    assert [n for n, request in enumerate(asked.seen) if request["at"] < before + n / 100] == []
    # Two connections may overtake each other, so the order of arrival is not looked at.
    assert Counter(body["query"] for body in bodies(asked)) == {f"query {n}": 2 for n in range(50)}
    assert {body["k"] for body in bodies(asked)} == {5}
    assert 0 < result["p50_ms"] <= result["p95_ms"] <= result["p99_ms"]
    assert result["client_us"] > 0
    assert result["wall_s"] >= 0.99


def test_waiting_for_a_server_that_stalls_is_not_hidden() -> None:
    """The server sleeps half a second at the 40th request. Whatever was due in the first half of that waits at least
    the second half, though a client that waits for answers would have sent none of it."""
    stall = 0.5

    def sleep(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(stall)
        answer()(handler)

    with Scripted(*[answer()] * 40, sleep, answer()) as asked:
        result = run_loop(open_loop(asked.url, requests(asked.url), rate=200, seconds=1, connections=1))
    assert (result["sent"], result["answered"]) == (200, 200)
    # 100 requests are due during the stall, half of the run, so the median and more show it.
    assert result["p95_ms"] >= 0.75 * stall * 1e3
    assert result["p50_ms"] >= 1
    # One connection can hold one of them; the others were written late, and that is told.
    assert result["lag_p99_ms"] >= 0.75 * stall * 1e3


def break_rules(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"this is no HTTP\r\n\r\n")


def test_endings_are_told_apart() -> None:
    refusals = [answer({}, status) for status in (503, 504, 429, 500, 422)]
    endings = [*refusals, hang_up, answer(b'{"hits":[],"degraded":["dense"]}'), break_rules]
    with Scripted(*endings, answer()) as asked:
        result = run_loop(open_loop(asked.url, requests(asked.url), rate=50, seconds=0.4, connections=1))
    counts = {kind: result[kind] for kind in COUNTS}
    assert counts == {"answered": 13, "degraded": 1, "refused": 3, "failed": 4, "late": 0}
    assert sum(counts.values()) - counts["degraded"] == result["sent"] == 20
    assert result["qps"] * result["wall_s"] == pytest.approx(counts["answered"] - 1, rel=0.01)


def test_what_comes_too_late_is_given_up() -> None:
    over = threading.Event()

    with Scripted(stall_until(over)) as asked:
        result = run_loop(open_loop(asked.url, requests(asked.url), rate=100, seconds=0.1, connections=2, limit_s=0.2))
        over.set()
    assert result["late"] == 10
    assert result["answered"] == 0
    assert "p50_ms" not in result
    assert result["qps"] == 0


def test_nobody_listens() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = run_loop(open_loop(url, requests(url), rate=50, seconds=0.2))
    assert result["refused"] == result["sent"] > 0
    assert result["answered"] == 0


def test_connections_that_the_server_closes_are_opened_again() -> None:
    with Scripted(answer(connection="close")) as asked:
        result = run_loop(open_loop(asked.url, requests(asked.url), rate=100, seconds=0.3, connections=2))
    assert result["answered"] == asked.connections == 30


def test_closed_loop_keeps_its_concurrency() -> None:
    with Scripted(answer()) as asked:
        result = run_loop(closed_loop(asked.url, requests(asked.url), connections=3, seconds=1))
    assert asked.connections == 3
    assert result["answered"] == result["sent"] == len(asked.seen) > 3
    assert result["connections"] == 3
    assert result["qps"] == pytest.approx(result["answered"] / result["wall_s"], rel=0.01)


def test_the_command_prints_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id":"1","text":"first"}\n{"_id":"2","text":"second"}\n')
    with Scripted(answer()) as asked:
        assert main([asked.url, "--queries", str(tmp_path), "--rate", "20", "--seconds", "0.2"]) == 0
        assert json.loads(capsys.readouterr().out)["sent"] == 4
        assert main([asked.url, "--queries", str(tmp_path), "--connections", "1", "--seconds", "0.1"]) == 0
        assert {body["query"] for body in bodies(asked)} == {"first", "second"}
    assert main(["ftp://somewhere", "--queries", str(tmp_path), "--rate", "1"]) == 2
    assert "ftp://somewhere" in capsys.readouterr().err


def test_users_of_locust_search_until_the_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id":"1","text":"first"}\n{"_id":"2","text":"second"}\n')
    endings = {1: answer({}, 503), 2: answer(b'{"hits":[],"degraded":["sparse"]}'), 3: answer({}, 422)}
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "-u", "2", "-r", "2"]
    command += ["-t", "2s", "--queries", str(tmp_path), "--k", "3", "--json"]
    with Scripted(*(endings.get(number, answer()) for number in range(5))) as asked:
        run = subprocess.run([*command, "--host", asked.url], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr  # as locust says that requests failed
    (searches,) = json.loads(run.stdout)
    assert searches["num_failures"] == 3  # a refusal, an answer without a leg, and an error
    assert searches["num_requests"] > 4
    assert {body["query"] for body in bodies(asked)} == {"first", "second"}
    assert {body["k"] for body in bodies(asked)} == {3}
