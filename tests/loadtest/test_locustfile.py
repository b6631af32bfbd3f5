"""locust, as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path

import orjson

from tests.loadtest.server import answer, serving

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
