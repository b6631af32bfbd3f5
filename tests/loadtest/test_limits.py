"""What a search reads, on the tiny bundle. How long anything takes is not tested."""

import json
from pathlib import Path

import numpy as np
import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest import limits
from lightretriever.loadtest.details import detail_tables, load_table
from lightretriever.loadtest.wire import LoadError

from tests.support.tiny import make_tiny_bundle

QUERIES = ["music player", "a small library for numbers", "terminal"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle without words."""
    return make_tiny_bundle(tmp_path_factory.mktemp("plain") / "bundle")


def test_bytes_of_a_dense_search() -> None:
    parameters = {"nprobe": 64, "k_factor_rf": 4}
    assert limits.dense_bytes_read("Flat", 256, 1000, {}) == 1_024_000
    assert limits.dense_bytes_read("SQ8", 256, 1000, {}) == 256_000
    # 1,024 centroids of 1 KiB, a sixteenth of a million codes of 64 bytes, and 400 vectors of 256.
    expected = 1024 * 1024 + 1_000_000 / 16 * 64 + 400 * 256
    assert limits.dense_bytes_read("IVF1024,PQ128x4fsr,Refine(SQ8)", 256, 1_000_000, parameters) == expected
    mapped = limits.dense_bytes_read("Queries,IVF1024,PQ64x4fsr,Refine(SQ8)", 256, 1_000_000, parameters)
    # 128 rows map a query, 1,024 rough centres have 128 bytes, 64 exact ones four times as many, directions 2 times 64.
    chosen = 128 * 256 * 4 + 1024 * 128 + 64 * 128 * 4 + 1024 * 2 * 64
    assert mapped == 1_000_000 / 16 * 32 + 400 * 256 + chosen
    with pytest.raises(LoadError, match=r"'HNSW32,Flat' reads has no formula"):
        limits.dense_bytes_read("HNSW32,Flat", 256, 1000, {"efSearch": 128})


def test_one_command_measures_and_records(plain: Bundle, tmp_path: Path) -> None:
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(QUERIES)]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines) + "\n")
    file = tmp_path / "speed.json"
    assert limits.main([str(plain.path), "--queries", str(tmp_path), "--results", str(file)]) == 0
    rows = {row["setting"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == [f"{part}, {plain.manifest.documents} documents" for part in ("table", "dense", "sparse")]
    tokens = np.mean([len(ids) for ids in plain.tokenizer().encode_batch(QUERIES)])
    assert rows["table, 120 documents"]["bytes"] == round(tokens * plain.manifest.dimension * 2)  # float16
    assert rows["dense, 120 documents"]["bytes"] == 120 * plain.manifest.dimension * 4  # all vectors
    for row in rows.values():
        assert row["value"] == pytest.approx(row["bytes"] / row["gigabytes_per_s"] / 1e3, rel=0.02)
        assert row["times"] == pytest.approx(row["measured"] / row["value"], rel=0.02)
    (block,) = detail_tables(file)
    assert f"| dense, 120 documents | {120 * plain.manifest.dimension * 4:,} |" in block


def test_a_bundle_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "music"}\n')
    assert limits.main([str(tmp_path / "none"), "--queries", str(tmp_path)]) == 2
    assert "none" in capsys.readouterr().err


def test_every_kind_of_row_has_its_table(tmp_path: Path) -> None:
    assert detail_tables(tmp_path / "none.json") == []
    times = {"p50": 1000.5, "p95": 2.0, "p99": 3.0}
    rows = [
        {"key": "stage", "setting": "fuse", **times},
        {"key": "dense", "setting": "nprobe 8", "recall@100": 0.95, "qps": 1200, **times},
        {"key": "sparse", "setting": "impacts", **times},
        {"key": "instructions", "setting": "encode", "value": 180523, "documents": 120},
        {"key": "paper_table", "setting": "without the LLM", "both_s": 0.5, "search_s": 7.0, "value": 7.5, "qps": 8738},
        {
            "key": "processors",
            "setting": "searching",
            "processors": 2,
            "one_per_s": 300.5,
            "all_per_s": 390.0,
            "value": 1.3,
        },
        {"key": "ready_s", "value": 3.0, "goal": "≤ 3"},
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"rows": rows}))
    stages, counts, dense, sparse, paper, processors = detail_tables(tmp_path / "speed.json")
    assert "| fuse | 1,000.5 | 2.0 | 3.0 |" in stages
    assert "| encode | 180,523 | 120 |" in counts
    assert "| nprobe 8 | 0.95 | 1,200 | 1,000.5 | 3.0 |" in dense
    assert "| impacts | 1,000.5 | 2.0 | 3.0 |" in sparse
    assert "| without the LLM | 0.5 | 7.0 | 7.5 | 8,738 |" in paper
    assert "| searching | 2 | 300.5 | 390.0 | 1.3 |" in processors


def test_systems_under_load_stand_by_their_throughput(tmp_path: Path) -> None:
    assert load_table(tmp_path / "none.json") == []
    opened = [
        {"system": name, "of": of, "p50_ms": p50, "p99_ms": 9.0, "rate": 50.0}
        for name, of, p50 in (("slow", 0.5, 20.0), ("slow", 0.9, 80.0), ("fast", 0.5, 2.0), ("fast", 0.5, 4.0))
    ]
    systems = [{"name": name, "label": name.title()} for name in ("slow", "fast", "left out")]
    load = {"systems": systems, "saturated": {"slow": 100.0, "fast": 1234.5}, "open": opened}
    (tmp_path / "load.json").write_text(json.dumps(load))
    assert load_table(tmp_path / "load.json")[2:] == ["| Fast | 1,234 | 3 | 9 | 50 |", "| Slow | 100 | 20 | 9 | 50 |"]
