"""README's tables of results: made from the result files, and up to date."""

from pathlib import Path
from typing import Any

import pytest

from scripts import results

REPORT: dict[str, Any] = {
    "dataset": {"name": "scifact", "split": "test", "queries": 300},
    "bundle": {"documents": 5183, "model": {"name": "SomeLM", "trained": False}},
    "environment": {"date": "2026-11-21T03:00:00+00:00", "machine": {"processor": "Some CPU"}},
    "metrics": {
        "hybrid": {"nDCG@10": 0.12345, "R@100": 0.5},
        "bm25": {"nDCG@10": 0.67891, "R@100": 0.9},
    },
}


def test_the_readme_is_up_to_date() -> None:
    assert results.main(["--check"]) == 0


def test_a_table() -> None:
    assert results.render(REPORT, "scifact.json").splitlines() == [
        "**scifact** (test: 300 queries, 5,183 documents), SomeLM, not trained for retrieval; "
        "[docs/results/scifact.json](docs/results/scifact.json), 2026-11-21, Some CPU.",
        "",
        "| | nDCG@10 | R@100 |",
        "|---|---:|---:|",
        "| BM25 on the words | 0.679 | 0.900 |",
        "| hybrid, as served | 0.123 | 0.500 |",
    ]


def test_only_what_is_between_the_markers_changes() -> None:
    readme = f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n"
    assert results.replaced(readme, "new\n") == f"before\n{results.BEGIN}\nnew\n{results.END}\nafter\n"


def test_a_missing_marker_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        results.replaced("no markers", "new")


def test_check_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{results.BEGIN}\nold\n{results.END}\n")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert results.main(["--check"]) == 1
    assert "scripts/results.py" in capsys.readouterr().err
    assert results.main([]) == 0
    assert results.main(["--check"]) == 0
