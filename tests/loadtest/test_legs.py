"""The legs against exact search and BM25, on the tiny bundle. How long anything takes is not tested."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.build import build_dense_index, write_dense_index
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.loadtest import legs
from lightretriever.loadtest.record import GOALS

QUERIES = ["music player", "a small library for numbers", "terminal"]


def unit_vectors(count: int, dimension: int, seed: int) -> npt.NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    unit: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def test_exact_best_is_that_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legs, "_CHUNK", 64)
    vectors = unit_vectors(300, 16, seed=1)
    write_dense_index(build_dense_index(vectors, "HNSW8,Flat"), tmp_path / "dense.faiss")
    queries = unit_vectors(5, 16, seed=2)
    found = legs.exact_best(DenseIndex.open(tmp_path / "dense.faiss"), queries, 40)
    np.testing.assert_array_equal(found, np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :40])


def test_the_goal_counts_what_is_served() -> None:
    wide = legs.DensePoint({"nprobe": 8.0}, 0.96, [0.002, 0.004, 0.002], own=True)
    narrow = legs.DensePoint({"nprobe": 6.0}, 0.955, [0.001], own=False)
    rows = legs.dense_rows([narrow, wide], {"documents": 3}, 0.951)
    assert [(row["key"], row.get("setting")) for row in rows] == [
        ("dense", "nprobe 6"),
        ("dense", "nprobe 8"),
        ("dense_qps_per_core", None),
    ]
    assert (rows[-1]["value"], rows[-1]["parameters"], rows[-1]["documents"]) == (500, {"nprobe": 8.0}, 3)
    assert rows[-1]["recall@100 before codes"] == 0.951
    few = legs.DensePoint({"nprobe": 2.0}, 0.94, [0.001], own=True)
    for point, known in ((few, 0.96), (few, None), (wide, 0.949)):
        assert [row["key"] for row in legs.dense_rows([point], {}, known)] == ["dense"]  # it does not find enough


def test_the_ratio_is_ours_over_theirs() -> None:
    rows = legs.sparse_rows([0.001, 0.001, 0.001], [0.002, 0.002, 0.002], {})
    assert rows[-1] == {"key": "sparse_vs_bm25", "unit": "ratio", "p50": 0.5, "p95": 0.5, "p99": 0.5}


def test_one_command_measures_and_records(
    tiny_path: Path, tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(QUERIES)]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines) + "\n")
    file = tmp_path / "speed.json"
    command = [str(tiny_path), "--queries", str(tmp_path), "--work", str(tmp_path / "work"), "--results", str(file)]
    assert legs.main(command) == 0
    assert "BM25 on words" in capsys.readouterr().out
    rows = {row["key"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["dense_qps_per_core"]["recall@100"] == 1.0  # a flat index
    assert rows["dense_qps_per_core"]["goal"] == GOALS["dense_qps_per_core"][1]
    assert rows["sparse_vs_bm25"]["documents"] == tiny_bundle.manifest.documents
    assert rows["sparse_vs_bm25"]["queries"] == len(QUERIES)
    assert legs.main([str(tmp_path / "none"), *command[1:]]) == 2
