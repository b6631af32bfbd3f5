"""How costs grow: what follows from measured sizes, and the whole command on tiny bundles."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from research.pages.growth_tables import predict, scaling_tables, tables
from research.speed import scaling
from tests.support.tiny import make_tiny_bundle


def made_up(documents: int, dimension: int = 64) -> dict[str, Any]:
    """What a bundle would give whose costs grow by simple laws."""
    times = {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    stages = dict.fromkeys(("encode", "dense", "rescore", "fetch", "search"), times)
    return {
        "documents": documents,
        "dimension": dimension,
        "top_k": 128,
        "factory": "SQ8",
        "bytes": {"dense": dimension * documents, "lucene": 2**20 + 500 * documents, "other": 7},
        "stages": {**stages, "sparse": {"p50": documents / 1e5, "p99": 9.0}},
        "sizes": [{"k": 1, "candidates": 100, **times}],
        "lengths": [{"words": 1, **times}, {"words": 128}],
        "cold": {"ready_s": 2.5, "first_ms": 40.0, "20th_ms": 3.0},
        "processes": [
            {"total_pss": 300.0, "added_pss": 300.0, "private": 900.0 + documents},
            {"total_pss": 420.0, "added_pss": 120.0, "private": 200 + 10e-6 * documents},
        ],
    }


def test_larger_corpora_follow_from_the_two_largest() -> None:
    skewed = made_up(10_000) | {"bytes": {"dense": 1, "lucene": 1, "other": 1}}
    series = [made_up(500_000), skewed, made_up(100_000), made_up(100_000)]
    found = predict(series, 10**8)
    assert found["dense_gib"] == pytest.approx(64 * 10**8 / 2**30)
    assert found["lucene_gib"] == pytest.approx((2**20 + 500 * 10**8) / 2**30)
    assert found["private_mib"] == pytest.approx(200 + 1000)
    assert found["sparse_ms"] == pytest.approx(1000)


def test_the_tables_take_the_series_that_differs_in_size_alone() -> None:
    content = {"machine": "m", "date": "d", "commit": "c", "command": "x"}
    series = [made_up(10_000), made_up(100_000), made_up(10_000, 32)]
    text = "\n".join(tables({**content, "bundles": series}))
    assert "Carried on from 2 sizes with 64 dimensions" in text
    assert "| 100,000,000 | 5.96 | 46.57 | 1,200.00 | 1,000.00 |" in text
    assert "| 100,000 | 64, 128 | 2.5 | 40.0 | 3.0 | 300.0 | 120.0 |" in text
    assert "| 10,000 | 32, 128 |" in text
    alone = "\n".join(tables({**content, "bundles": [made_up(10_000), made_up(20_000, 32)]}))
    assert "Nothing is carried on" in alone


def test_growth_has_a_slope() -> None:
    quadratic = {documents: {"search": {"p50": documents**2, "p95": 1.0, "p99": 1.0}} for documents in (10, 100, 1000)}
    bundles = [made_up(documents) | {"stages": stages} for documents, stages in quadratic.items()]
    rows = scaling.growth_rows(bundles)
    assert [row["setting"] for row in rows] == [f"{size} documents" for size in ("10", "100", "1,000", "10 to 1,000")]
    assert rows[3]["value"] == pytest.approx(2)
    assert rows[0] | {"p50": 100, "private_mb": 200 + 10e-5, "second_mb": 120, "ready_s": 2.5} == rows[0]


@pytest.mark.slow
def test_one_command_measures_bundles_and_writes_the_tables(tiny_bundle: Bundle, queries: Path, tmp_path: Path) -> None:
    larger = make_tiny_bundle(tmp_path / "larger", documents=400)
    results = tmp_path / "scaling.json"
    command = [str(tiny_bundle.path), str(larger.path), "--queries", str(queries), "--results", str(results)]
    assert scaling.main([*command, "--seconds", "0.2"]) == 0
    found = json.loads(results.read_text())["bundles"]
    assert [one["documents"] for one in found] == [120, 400]
    for one, bundle in zip(found, (tiny_bundle, larger), strict=True):
        files = [path for path in bundle.path.rglob("*") if path.is_file() and path.name != "manifest.json"]
        assert sum(one["bytes"].values()) == sum(path.stat().st_size for path in files)
        assert one["bytes"]["dense"] == (bundle.path / "dense.faiss").stat().st_size
        assert [row["k"] for row in one["sizes"]] == [k for k, _ in scaling.SIZES]
        assert [row["words"] for row in one["lengths"] if "p50" in row] == [1, 2, 4, 8]  # there are 12 words in all
        assert one["cold"]["first_ms"] > 0
        assert one["processes"][1]["total_pss"] > one["processes"][0]["total_pss"] > 0
    (text,) = scaling_tables(results)
    assert "Carried on from 2 sizes with 16 dimensions" in text
    assert "| 120 | 16, all |" in text


def test_without_measurements_there_is_no_table(tmp_path: Path) -> None:
    assert scaling_tables(tmp_path / "none.json") == []
