"""One shard measured, many simulated. How long anything takes is not tested."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.push import push
from research.pages.growth_tables import scale_tables
from research.scale import scatter, shard
from tests.support.cluster import connected, remove_indexes
from tests.support.judged import write_queries

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
QUERIES = ["music player", "a small library for numbers", "terminal"]


def times_of(*rows: list[float]) -> dict[str, list[list[float]]]:
    return {trip: list(rows) for trip in shard.TRIPS}


def test_the_slowest_of_many_is_drawn_as_if_each_was() -> None:
    """The trick with u^(1/N) against a maximum over N draws."""
    delays, random = np.sort(np.random.default_rng(1).exponential(size=500)), np.random.default_rng(2)
    for shards in (1, 4, 32):
        drawn = scatter.slowest(delays, shards, random.random(40_000))
        each = random.choice(delays, (40_000, shards)).max(axis=1)
        for share in (10, 50, 90):
            assert np.percentile(drawn, share) == pytest.approx(np.percentile(each, share), rel=0.05)
    assert scatter.slowest(delays, 3, np.array([0.0, 1.0])).tolist() == [delays[0], delays[-1]]


def test_without_delays_many_shards_take_as_long_as_one() -> None:
    found = scatter.scatter(times_of([2.0, 2.0], [5.0, 5.0]), 100, 1000, seed=3)
    assert set(found.tolist()) == {6.0, 15.0}


def test_delays_are_those_of_moments_and_all_shards_share_the_querys_own_time() -> None:
    times = times_of([1.0, 1.0, 3.0], [10.0, 10.0, 30.0])
    found = scatter.scatter(times, 10_000, 1000, seed=3)
    assert found.tolist() == pytest.approx(np.where(found < 10, 9.0, 90.0).tolist())


def test_the_tail_grows_with_the_shards_and_a_seed_repeats() -> None:
    random = np.random.default_rng(5)
    times = times_of(*random.exponential(size=(20, 10)).tolist())
    p99 = [float(np.percentile(scatter.scatter(times, n, 4000, seed=7), 99)) for n in (1, 3, 10, 30)]
    assert all(less < more for less, more in pairwise(p99))
    one, again, other = (scatter.scatter(times, 3, 100, seed=seed).tolist() for seed in (7, 7, 8))
    assert one == again != other


def test_a_billion_documents_on_paper() -> None:
    part = {"name": "postings", "fixed": 0, "per_document": 100.0, "in_memory": True}
    stored = {"name": "documents", "fixed": 0, "per_document": 400.0, "in_memory": False}
    measured = {"documents": 1_000_000, "parts": [part, stored], "ms": times_of([2.0, 2.0])}
    found = scatter.capacity(measured)
    assert found["disk_gib"] == pytest.approx(500e9 / 2**30, rel=1e-3)
    assert found["memory_gib"] == pytest.approx(100e9 / 2**30, rel=1e-3)
    assert found["legs_s"] == 2.0
    assert (found["shards"], found["nodes"]) == (20, 2)  # 20 times 100 ms; 93 GiB on nodes of 48
    small = scatter.capacity({**measured, "documents": 10_000})
    assert (small["legs_s"], small["shards"]) == (None, 10)  # 466 GiB in parts of 50


def test_parts_of_a_cluster_are_told_by_the_endings_of_its_files() -> None:
    parts = {part.name: part for part in shard.cluster_parts({"vec": 800, "vex": 200, "fdt": 50, "si": 10}, 10)}
    assert parts["vectors and their graph"].bytes_per_document == 100
    assert parts["vectors and their graph"].in_memory
    assert parts["documents"].bytes_per_document == 5
    assert not parts["documents"].in_memory
    assert parts["other files"].bytes_per_document == 1


def test_two_commands_measure_and_simulate(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_queries(tmp_path, QUERIES)
    times, results = tmp_path / "times.json.gz", tmp_path / "scale.json"
    command = [str(tiny_path), "--queries", str(tmp_path), "--times", str(times)]
    assert shard.main([*command, "--name", "tiny", "--rounds", "2"]) == 0
    assert shard.main([*command, "--name", "sizes", "--rounds", "0"]) == 0
    sizes, measured = shard.read_times(times)
    assert (sizes["name"], sizes["ms"]) == ("sizes", {})
    assert {trip: np.shape(values) for trip, values in measured["ms"].items()} == dict.fromkeys(shard.TRIPS, (3, 2))
    assert np.min(measured["ms"]["legs"]) > 0
    assert str(tmp_path) not in measured["command"]
    assert scatter.main([str(times), "--results", str(results), "--searches", "500"]) == 0
    assert "tiny, 1000 shards: p50" in capsys.readouterr().out
    page = "\n".join(scale_tables(results))
    assert "| tiny, 120 documents | 16 |" in page
    assert "| 1,000 | ≥ " in page


def test_a_shard_may_be_an_index_on_a_cluster(tiny_bundle: Bundle, opensearch: str, tmp_path: Path) -> None:
    write_queries(tmp_path, QUERIES[:1])
    times, name = tmp_path / "times.json.gz", f"scale-{os.getpid()}"
    command = ["--queries", str(tmp_path), "--times", str(times), "--opensearch-url", opensearch, "--index", name]
    try:
        with connected(opensearch) as cluster:
            push(tiny_bundle, cluster, name, replicas=0, skipped=int, written=int)
        assert shard.main([str(tiny_bundle.path), "--name", "cluster", "--rounds", "1", *command]) == 0
    finally:
        remove_indexes(opensearch, name)
    (measured,) = shard.read_times(times)
    assert [np.shape(values) for values in measured["ms"].values()] == [(1, 1)] * len(shard.TRIPS)
    assert sum(part["per_document"] for part in measured["parts"]) > 100


def test_without_times_there_is_nothing_to_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scatter.main([str(tmp_path / "none.json.gz"), "--results", str(tmp_path / "scale.json")]) == 2
    assert "no shard is measured. Run research.scale.shard first" in capsys.readouterr().err


def test_the_recorded_results_are_those_of_the_recorded_times(tmp_path: Path) -> None:
    recorded: dict[str, Any] = json.loads((RESULTS / "scale.json").read_text(encoding="utf-8"))
    times = RESULTS / "shard-times.json.gz"
    command = [str(times), "--results", str(tmp_path / "scale.json"), "--seed", str(recorded["seed"])]
    assert scatter.main([*command, "--searches", str(recorded["searches"])]) == 0
    assert json.loads((tmp_path / "scale.json").read_text(encoding="utf-8"))["shards"] == recorded["shards"]
