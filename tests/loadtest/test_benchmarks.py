"""The suite for pytest-benchmark, on the tiny bundle. How long anything takes is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.stage_calls import Inputs, calls_in_java, calls_outside_java
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

from tests.service.process import ROOT

QUERIES = ["music player", "a small library for numbers", "terminal"]
STAGES = {
    "tokenize",
    "encode_sparse",
    "encode_dense",
    "encode",
    "dense",
    "sparse",
    "rescore",
    "fuse",
    "fetch",
    "serialise",
}


@pytest.mark.parametrize("given", [True, False], ids=["queries", "words of the documents"])
def test_every_stage_is_timed_with_every_query(tiny_path: Path, queries: Path, tmp_path: Path, given: bool) -> None:
    file = tmp_path / "times.json"
    command = [sys.executable, "-m", "pytest", "tests/benchmarks", "-p", "no:xdist", "-p", "no:cacheprovider"]
    options = ["--bundle", str(tiny_path), "--benchmark-json", str(file), *(["--queries", str(queries)] * given)]
    # Beside other workers of one run, pytest-benchmark would measure nothing.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([*command, *options], cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["params"]["stage"]: row["stats"] for row in json.loads(file.read_text())["benchmarks"]}
    assert set(found) == STAGES
    for stage, times in found.items():
        assert times["rounds"] == (4 if given else 120), stage
        assert times["min"] > 0, stage


def test_the_stages_do_what_a_search_does(tiny_bundle: Bundle) -> None:
    task = tiny_bundle.manifest.default_task
    with SearchEngine.open(tiny_bundle, Settings(warm_up_queries=3)) as engine:
        engine.warm_up()
        parts = engine.parts
        inputs = Inputs.from_json(json.loads(json.dumps(Inputs.of(engine, QUERIES).to_json())))
        outside = calls_outside_java(parts.encoder, task, parts.legs["dense"], inputs)
        calls = {**outside, **calls_in_java(parts, task, inputs)}
        assert set(calls) == STAGES
        for number in range(len(QUERIES)):
            results = {stage: call(number) for stage, call in calls.items()}
            (dense, dense_scores), (sparse, sparse_scores) = inputs.found[number]
            assert list(results["dense"][0]) == list(dense)  # type: ignore[index]
            assert list(results["sparse"][1]) == list(sparse_scores)  # type: ignore[index]
            assert len(dense_scores) == len(dense)
            assert len(sparse) == len(sparse_scores)
            order = results["fuse"].order  # type: ignore[attr-defined]
            assert len(order) == len(set(dense) | set(sparse))
            assert len(results["fetch"]) == min(10, len(order))  # type: ignore[arg-type]
            assert json.loads(results["serialise"].body) == inputs.answers[number]  # type: ignore[attr-defined]
            assert list(results["encode"].terms) == list(results["encode_sparse"].terms)  # type: ignore[attr-defined]
