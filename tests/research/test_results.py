"""The documentation's tables of results: made from the result files, and up to date."""

import json
from pathlib import Path
from typing import Any

import pytest

from research.pages import results
from research.pages.objectives import OBJECTIVES, objectives_table, record
from research.quality import recorded
from research.record import ROOT
from tests.support.wordings import raises

LOAD: dict[str, Any] = {
    "bundle": {"corpus": "toy", "documents": 1200},
    "machine": "m",
    "date": "2026-01-02T03",
    "commit": "c",
    "systems": [{"name": "bm25", "label": "BM25 (Lucene)"}],
    "saturated": {"bm25": 12.5},
    "memory_mb": {"bm25": 99.0},
    "open": [],
}


def test_the_documentation_is_up_to_date() -> None:
    for page, text in results.outputs(ROOT).items():
        assert page.read_text("utf-8") == text, (
            f"{page} differs from docs/results/: run python -m research.pages.results"
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with nothing but the pages and a load test."""
    folder = tmp_path / "docs" / "results"
    (folder / "judged").mkdir(parents=True)
    (tmp_path / "docs" / "lab").mkdir()
    for page in ("README.md", "docs/lab/results.md"):
        (tmp_path / page).write_text(f"before\n{results.PART.begin}\nold\n{results.PART.end}\nafter\n")
    (folder / "judged" / "load.json").write_text(json.dumps(LOAD))
    ways = {way: {"scifact": 0.25, "cacm": 0.75} for way in results.FUSIONS}
    origin = {"machine": "a processor, 2 cores", "date": "2026-11-29T00:00", "commit": "abc"}
    fusions = {"nDCG@10": ways, "average": dict.fromkeys(ways, 0.5), "origin": origin}
    (folder / "fusion.json").write_text(json.dumps(fusions))
    record(folder / "reliability.json", [{"key": "soak_failures", "value": 0, "unit": "answers"}], "make faults")
    return tmp_path


def fill(root: Path, values: dict[str, dict[str, float]]) -> None:
    """Record systems with a value per dataset; three queries each, the first one a little better."""
    for system, by_dataset in values.items():
        for dataset, value in by_dataset.items():
            row = {"system": system, "dataset": dataset, "ndcg@10": value, "queries": 3}
            queries = {system: {"q1": value + 0.01, "q2": value, "q3": value}}
            recorded.record(root / "docs" / "results" / "quality.json", [row], queries)


def test_recorded_results_become_tables(root: Path) -> None:
    every = dict.fromkeys(results.DATASETS, 0.5)
    fill(root, {"bm25": every, "minilm hybrid": {**every, "wikiqa": 0.85, "cacm": 0.25}, "new thing": {"cacm": 0.125}})
    pages = results.outputs(root)
    readme = pages[root / "README.md"].splitlines()
    assert (readme[0], readme[-1]) == ("before", "after")
    assert "| **by evidence, with feedback (the default)** | 0.500 | 0.250 | 0.750 |" in readme
    assert "| BM25 (Lucene) | 12.5 | – | – | 99 | 0.5 |" in readme
    page = pages[root / "docs" / "lab" / "results.md"]
    line = "0.500 | 0.500 | 0.500 | 0.250 | 0.850 | 0.500 | 0.500 | 0.514 | 1 | cacm |"
    assert "| both legs, fused by range (the default before) | 0.500 | 0.250 | 0.750 |" in page
    assert f"| MiniLM's table fitted to the corpus, hybrid | {line}" in page
    assert "| new thing | – | – | – | 0.125 | – | – | – | – | 0 | cacm |" in page
    assert "1 of 1 bounds are kept" in page


def test_the_paired_test_is_that_of_the_book() -> None:
    # Student's sleep data (1908): t = -4.0621 with 9 degrees of freedom, p = 0.002833.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    difference, p = results.paired_test(first, second)
    assert difference == pytest.approx(-1.58)
    assert p == pytest.approx(0.002833, abs=1e-6)
    assert results.paired_test(first, first) == (0.0, 1.0)
    assert results.paired_test([1.0, 2.0], [0.5, 1.5]) == (0.5, 0.0)
    for ours, theirs in (([1.0], [1.0]), ([1.0, 2.0], [1.0])):
        with raises(ValueError, naming="two values"):
            results.paired_test(ours, theirs)


def test_objectives_keep_the_rows_of_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "reliability.json"
    record(file, [{"key": "soak_failures", "value": 3, "unit": "answers"}], "make faults")
    record(file, [{"key": "overload_failures", "value": 1, "unit": "requests"}], "make faults")
    record(file, [{"key": "soak_failures", "value": 0, "unit": "answers"}], "make faults")
    content = json.loads(file.read_text())
    assert [(row["key"], row["value"]) for row in content["rows"]] == [("soak_failures", 0), ("overload_failures", 1)]
    assert content["rows"][0]["goal"] == OBJECTIVES["soak_failures"][1]
    lines = objectives_table(content)
    assert lines[0].startswith("1 of 2 bounds are kept")
    assert [line for line in lines if "five times the capacity" in line] == [
        f"| {OBJECTIVES['overload_failures'][0]} | 1 | requests | 0 |"
    ]
    assert not any(OBJECTIVES["soak_failures"][0] in line for line in lines)
