"""Requests made from the API's description, and bytes at the parsers that read what strangers send or files have."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from lightretriever.service.http.openapi import description
from lightretriever.service.http.routes import router
from lightretriever.service.settings import Settings
from tests.faults.conftest import Figure
from tests.faults.targets import TARGETS, corpus
from tests.service.process import ROOT, Server

SEED: Final = 20_262
CASES: Final = (8, 400)
"""Valid, and invalid, requests to each route, short and in full; what has no input is asked for once."""

# A valid query may have no token, a valid window may be too small for k, a valid deadline may be too short.
STATUSES: Final = {
    "positive_data_acceptance": ["2xx", "404", "422", "504"],
    "negative_data_rejection": ["400", "404", "406", "413", "415", "422", "429"],
    "not_a_server_error": ["2xx", "3xx", "4xx", "504"],
}

RUNS: Final = {
    "body": (3_000, 1_000_000),
    "manifest": (5_000, 4_000_000),
    "lines": (3_000, 1_000_000),
    "rules": (1_000, 100_000),
    "journal": (1_000, 50_000),
}
"""Iterations, short and in full; the latter are about ten minutes for each on a free core, or less."""


@schemathesis.serializer("application/x-ndjson")
def line(context: Any, value: Any) -> bytes:
    """One line of JSON: the description has the schema of each."""
    return json.dumps(value).encode() + b"\n"


@pytest.mark.slow
def test_the_api_answers_as_it_is_described(tiny_path: Path, full: bool, figure: Figure) -> None:
    """Valid and invalid requests to every route of a real server: no 500, and every answer fits its schema."""
    described = description(router.routes, Settings(deadline_ms=60_000))  # as of `Server`
    checks = {check: {"expected-statuses": statuses} for check, statuses in STATUSES.items()}
    config = schemathesis.Config.from_dict({"checks": checks})
    schema = schemathesis.openapi.from_dict(described, config=config)
    results: Any = schema.get_all_operations()
    operations = [result.ok() for result in results]
    asked = 0
    with Server(tiny_path, log_level="error") as server:
        url = server.url
        for operation in operations:
            # An id alone may be any text.
            wrong = [GenerationMode.NEGATIVE] if operation.body or list(operation.query) else []
            for mode in (GenerationMode.POSITIVE, *wrong):

                @seed(SEED)
                @settings(
                    max_examples=CASES[full],
                    database=None,
                    phases=(Phase.generate,),
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(generation_mode=mode))
                def call(case: Any) -> None:
                    nonlocal asked
                    asked += 1
                    case.call_and_validate(base_url=url)

                call()
    figure("api_cases_failed", 0, f"of {asked:,}", routes=len(operations))


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_that_were_found_before(target: str) -> None:
    kept = corpus(target)
    assert kept
    for content in kept:
        TARGETS[target](content)


@pytest.mark.parametrize(
    "target", [one if one in ("body", "manifest") else pytest.param(one, marks=pytest.mark.slow) for one in TARGETS]
)
def test_no_bytes_raise_what_is_no_error_of_the_project(
    target: str, tmp_path: Path, full: bool, figure: Figure
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip(f"atheris is built for x86_64, this is {platform.machine()}; the inputs found before are tried")
    runs = RUNS[target][full]
    (tmp_path / "found").mkdir()
    command = [sys.executable, "-m", "tests.faults.fuzz", target, str(tmp_path / "found"), f"-runs={runs}"]
    run = subprocess.run([*command, f"-seed={SEED}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    done = re.search(r"Done (\d+) runs in (\d+) second", run.stderr)
    assert done, run.stderr[-1000:]
    # It reads what it found again every second, which counts, too.
    assert runs <= int(done[1]) < 2 * runs
    hourly = runs * 3600 // max(1, int(done[2]))
    figure(f"fuzz_{target}_findings", 0, f"of {runs:,} inputs", per_hour=hourly)
