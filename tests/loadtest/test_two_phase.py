"""Two-phase search compared with the exact search, on the tiny bundle. How long anything takes is not tested."""

import json
from pathlib import Path

import pytest
from lightretriever.loadtest.comparison import two_phase
from lightretriever.loadtest.results.two_phase_tables import two_phase_tables


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    texts = {"one": "play music from the terminal", "two": "scientific papers and large images", "three": "zzzzqqqq"}
    lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\none\tmusic\t1\ntwo\teditor\t1\nthree\tlong\t1\n"
    )
    return folder


def test_one_command_measures_and_records(tiny_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = dataset / "two-phase.json"
    tiny = str(tiny_path)
    assert two_phase.main(["--judged", tiny, str(dataset), "--results", str(file)]) == 0
    assert "sparse_ndcg@10" in capsys.readouterr().out
    assert two_phase.main(["--timed", tiny, "--queries", str(dataset), "--results", str(file)]) == 0
    content = json.loads(file.read_text())
    for part in content.values():
        assert str(dataset) not in part["command"]
        exact, *others = part["rows"]
        assert (exact["share"], exact["depth"], exact["of_top_10"], exact["of_top_100"]) == (None, None, 1.0, 1.0)
        assert [(row["share"], row["depth"]) for row in others] == two_phase.CUTS
        assert all(0 < row["of_top_100"] <= 1 for row in others)
        assert any(row["of_top_100"] < 1 for row in others)
    assert all(row["hybrid_ndcg@10"] > 0 for row in content["judged"]["rows"])
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in content["timed"]["rows"])
    tables = "\n".join(two_phase_tables(file))
    assert "| exact | " in tables
    assert "| 0.5, 100 | " in tables
    assert "| share, depth | lucene p50 | lucene p99 | of top 10 |" in tables
    assert two_phase_tables(dataset / "none.json") == []


def test_a_bundle_that_is_not_there_is_named(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--queries", str(dataset), "--timed", str(dataset / "none"), "--results", str(dataset / "out.json")]
    assert two_phase.main(command) == 2
    assert "none" in capsys.readouterr().err
    assert not (dataset / "out.json").exists()
