"""How costs grow: formulas against real indexes of small size, and the whole command on tiny bundles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.build import build_dense_index, choose_factory, write_dense_index
from lightretriever.loadtest import scaling
from lightretriever.loadtest.extrapolate import dense_bytes, line, power
from lightretriever.loadtest.scaling_report import BEGIN, END, predictions, tables, write_tables
from lightretriever.loadtest.wire import LoadError

from tests.support.tiny import make_tiny_bundle


@pytest.mark.parametrize(
    ("factory", "count", "tolerance"),
    [
        ("Flat", 3000, 0.001),
        ("SQ8", 3000, 0.01),
        ("HNSW32,Flat", 3000, 0.01),
        ("HNSW16,SQ8", 3000, 0.01),
        ("IVF16,PQ8x4fsr,Refine(SQ8)", 8000, 0.05),
        ("Queries,IVF16,PQ16x4fsr,Refine(SQ8)", 8000, 0.05),
    ],
)
def test_the_formulas_give_the_size_of_a_real_index(factory: str, count: int, tolerance: float, tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((count, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    write_dense_index(build_dense_index(vectors, factory, vectors[:50]), tmp_path / "index", tmp_path / "spreads")
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size == pytest.approx(dense_bytes(factory, 64, count), rel=tolerance)


def test_every_factory_by_size_has_a_formula() -> None:
    for documents in (1_000, 50_000, 500_000, 1_000_000, 100_000_000):
        for dimension in (16, 384, 576, 1024):
            assert dense_bytes(choose_factory(documents, dimension), dimension, documents) > dimension * documents
    with pytest.raises(LoadError, match="LSH"):
        dense_bytes("LSH", 8, 8)


def test_lines_and_powers() -> None:
    assert line([(1, 5), (2, 7), (4, 11)]) == pytest.approx((3, 2))
    assert line([(0, 0), (1, 2), (2, 1)]) == pytest.approx((0.5, 0.5))
    assert power([(1, 99), (10, 20), (100, 200)]) == pytest.approx((2, 1))
    assert power([(100, 3), (10_000, 30)]) == pytest.approx((0.3, 0.5))
    for bad in ([(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]):
        with pytest.raises(LoadError, match="two sizes"):
            line(bad)
        with pytest.raises(LoadError, match="two sizes"):
            power(bad)


def made_up(documents: int, dimension: int = 64) -> dict[str, Any]:
    """What a bundle would give whose costs grow by simple laws."""
    factory = choose_factory(documents, dimension)
    times = {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    stages = dict.fromkeys(("encode", "dense", "rescore", "fetch", "search"), times)
    return {
        "documents": documents,
        "dimension": dimension,
        "top_k": 128,
        "factory": factory,
        "bytes": {
            "dense": dense_bytes(factory, dimension, documents) * 1.01,
            "lucene": 2**20 + 500 * documents,
            "other": 7,
        },
        "stages": {**stages, "sparse": {"p50": documents / 1e5, "p99": 9.0}},
        "sizes": [{"k": 1, "candidates": 100, **times}],
        "lengths": [{"words": 1, **times}, {"words": 128}],
        "cold": {kind: {"ready_s": 2.5, "first_ms": 40.0, "20th_ms": 3.0} for kind in ("warm_up", "no_warm_up")},
        "processes": [
            {"total_pss": 300.0, "added_pss": 300.0, "private": 900.0 + documents},
            {"total_pss": 420.0, "added_pss": 120.0, "private": 200 + 10e-6 * documents},
        ],
    }


def test_larger_corpora_follow_from_smaller_ones() -> None:
    fit = predictions([made_up(10_000), made_up(100_000), made_up(500_000)])
    million, _, hundred = fit["rows"]
    assert million["lucene_gib"] == pytest.approx((2**20 + 500e6) / 2**30)
    assert hundred["private_mib"] == pytest.approx(200 + 1000)
    assert hundred["sparse_ms"] == pytest.approx(1000)
    assert hundred["factory"].startswith("IVF")
    assert hundred["dense_gib"] == pytest.approx(dense_bytes(hundred["factory"], 64, 10**8) / 2**30)
    assert fit["dense_error"] == pytest.approx(0.01)


def test_larger_corpora_have_lists_as_they_would_be_built_with() -> None:
    asked = {"factory": "Queries,IVF512,PQ16x4fsr,Refine(SQ8)"}
    fit = predictions([made_up(10_000), made_up(100_000) | asked])
    lists = [row["factory"].split(",")[1] for row in fit["rows"]]
    assert lists == ["IVF2048", "IVF8192", "IVF16384"]


def test_the_tables_take_the_series_that_differs_in_size_alone() -> None:
    content = {"machine": "m", "date": "d", "commit": "c", "command": "x"}
    series = [made_up(10_000), made_up(100_000), made_up(10_000, 32)]
    text = "\n".join(tables({**content, "bundles": series}))
    assert "Carried on from 2 sizes with 64 dimensions" in text
    assert "| 100,000,000 | IVF" in text
    assert "500 bytes per document" in text
    assert "| 10,000 | 32 | 128 |" in text
    alone = "\n".join(tables({**content, "bundles": [made_up(10_000), made_up(20_000, 32)]}))
    assert "Nothing is carried on" in alone


@pytest.mark.slow
def test_one_command_measures_bundles_and_writes_the_tables(
    tiny_bundle: Bundle, queries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTRETRIEVER_WARM_UP_QUERIES", "3")
    larger = make_tiny_bundle(tmp_path / "larger", documents=400)
    results, page = tmp_path / "scaling.json", tmp_path / "speed.md"
    page.write_text(f"# Speed\n\n{BEGIN}\nold\n{END}\n\nthe rest\n")
    command = [str(tiny_bundle.path), str(larger.path), "--queries", str(queries), "--results", str(results)]
    assert scaling.main([*command, "--seconds", "0.2", "--docs", str(page)]) == 0
    found = json.loads(results.read_text())["bundles"]
    assert [one["documents"] for one in found] == [120, 400]
    for one, bundle in zip(found, (tiny_bundle, larger), strict=True):
        files = [path for path in bundle.path.rglob("*") if path.is_file() and path.name != "manifest.json"]
        assert sum(one["bytes"].values()) == sum(path.stat().st_size for path in files)
        assert one["bytes"]["dense"] == (bundle.path / "dense.faiss").stat().st_size
        assert [row["k"] for row in one["sizes"]] == [k for k, _ in scaling.SIZES]
        assert [row["words"] for row in one["lengths"] if "p50" in row] == [1, 2, 4, 8]  # there are 12 words in all
        assert one["cold"]["no_warm_up"]["first_ms"] > 0
        assert one["processes"][1]["total_pss"] > one["processes"][0]["total_pss"] > 0
    text = page.read_text()
    assert text.startswith("# Speed\n")
    assert text.endswith("the rest\n")
    assert "old" not in text
    assert "Carried on from 2 sizes with 16 dimensions" in text
    assert "| 120 | 16 | all |" in text
    assert scaling.main(["--results", str(results), "--docs", str(page)]) == 0
    assert page.read_text() == text


def test_a_page_without_a_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.md").write_text("nothing")
    assert scaling.main(["--results", str(tmp_path / "none.json"), "--docs", str(tmp_path / "page.md")]) == 2
    assert "have no place" in capsys.readouterr().err
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}")
    with pytest.raises(LoadError, match="Measure bundles first"):
        write_tables(tmp_path / "none.json", tmp_path / "page.md")
