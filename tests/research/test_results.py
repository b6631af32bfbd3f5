"""The documentation's tables of results: made from the result files, and up to date."""

import json
from pathlib import Path
from typing import Any

import pytest

from research.pages import result_tables, results
from research.quality.recorded import record
from tests.support.wordings import raises

REPORT: dict[str, Any] = {
    "dataset": {"name": "scifact", "split": "test", "queries": 300},
    "bundle": {"documents": 5183, "model": {"name": "SomeLM", "trained": False}},
    "environment": {"date": "2026-11-21T03:00:00+00:00", "machine": {"processor": "Some CPU"}},
    "metrics": {"hybrid": {"nDCG@10": 0.12345, "R@100": 0.5}, "bm25": {"nDCG@10": 0.67891, "R@100": 0.9}},
}


def test_the_documentation_is_up_to_date() -> None:
    assert results.main(["--check"]) == 0


def test_a_table() -> None:
    assert results.render(REPORT, "scifact.json").splitlines() == [
        "**scifact** (test: 300 queries, 5,183 documents), SomeLM, not trained for retrieval; "
        "[scifact.json](results/scifact.json), 2026-11-21, Some CPU.",
        "",
        "| | nDCG@10 | R@100 |",
        "|---|---:|---:|",
        "| BM25 on the words | 0.679 | 0.900 |",
        "| hybrid, as served | 0.123 | 0.500 |",
    ]


def test_only_what_is_between_the_markers_changes() -> None:
    readme = f"before\n{results.PART.begin}\nold\n{results.PART.end}\nafter\n"
    with raises(ValueError, naming="results.py"):
        results.PART.replaced("no markers", "new")
    assert results.PART.replaced(readme, "new\n") == f"before\n{results.PART.begin}\nnew\n{results.PART.end}\nafter\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with nothing but the pages."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "howto").mkdir()
    (tmp_path / "docs" / "lab").mkdir()
    pages = ("lab/quality.md", "speed.md", "lab/measuring.md", "lab/faults.md", "lab/scale.md")
    for page in ("README.md", *(f"docs/{name}" for name in (*pages, "howto/cluster.md"))):
        (tmp_path / page).write_text(f"before\n{results.PART.begin}\nold\n{results.PART.end}\nafter\n")
    with (tmp_path / "docs" / "lab" / "measuring.md").open("a") as measuring:
        measuring.write(f"{results.GROWTH.begin}\nold\n{results.GROWTH.end}\n")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    return tmp_path


def fill(root: Path, values: dict[str, dict[str, float]]) -> None:
    """Record systems with a value per dataset; three queries each, the first one a little better."""
    for system, by_dataset in values.items():
        for dataset, value in by_dataset.items():
            row = {"system": system, "dataset": dataset, "ndcg@10": value, "recall@100": 0.5, "queries": 3}
            queries = {system: {"q1": value + 0.01, "q2": value, "q3": value}}
            record(root / "docs" / "results" / "quality.json", [row], queries)


def test_check_names_the_remedy(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (root / "README.md").read_text()
    assert results.main(["--check"]) == 1
    assert "README.md: differs from docs/results/; run: python -m research.pages.results" in capsys.readouterr().err
    assert (root / "README.md").read_text() == before
    assert results.main([]) == 0
    assert results.main(["--check"]) == 0


def test_recorded_results_become_tables_tests_and_a_plot(root: Path) -> None:
    fill(root, {"bm25": {"scifact": 0.5, "cacm": 0.4}, "smollm2 hybrid": {"scifact": 0.75, "cacm": 0.5}})
    fill(root, {"smollm2 dense": {"scifact": 0.25, "cacm": 0.5}, "new thing": {"scifact": 0.125}})
    (root / "docs" / "results" / "scifact.json").write_text(json.dumps(REPORT))
    assert results.main([]) == 0
    page = (root / "docs" / "lab" / "quality.md").read_text()
    assert "| | scifact | cacm | average |" in page
    assert "| BM25 | 0.500 | 0.400 | 0.450 |" in page
    assert "| SmolLM2-135M, fitted table, hybrid | **0.750** | **0.500** | **0.625** |" in page
    places = [page.index(row) for row in ("| BM25 |", "| SmolLM2-135M, fitted table, dense |", "hybrid | **0.750**")]
    assert places == sorted(places)
    assert "### Every system, Recall@100" in page
    assert page.index("hybrid | **0.750**") < page.index("| hybrid, as served | 0.123 | 0.500 |")
    assert "![Average nDCG@10 of the systems](../results/quality.svg)" in page
    assert "| new thing | 0.125 |" in page
    assert "| smollm2 hybrid − bm25 | **+0.250 (p < 0.001)** | **+0.100 (p < 0.001)** |" in page
    (first, *_) = json.loads((root / "docs" / "results" / "significance.json").read_text())["tests"]
    assert first == {
        "system": "smollm2 hybrid",
        "against": "bm25",
        "dataset": "scifact",
        "queries": 3,
        "ndcg@10_difference": 0.25,
        "p": first["p"],
    }
    assert "SmolLM2-135M, fitted table, hybrid" in (root / "docs" / "results" / "quality.svg").read_text()
    assert results.main(["--check"]) == 0


def test_chinese_sets_have_a_table_of_their_own(root: Path) -> None:
    fill(root, {"bm25": {"scifact": 0.5, "cmrc2018-zh": 0.75}, "smollm2 hybrid": {"scifact": 0.75}})
    fill(root, {"e5 hybrid": {"cmrc2018-zh": 0.875}})
    assert results.main([]) == 0
    page = (root / "docs" / "lab" / "quality.md").read_text()
    every, chinese = page.split("### Chinese, nDCG@10")
    assert "| | scifact |" in every
    assert "zh" not in every
    assert "e5 hybrid" not in every
    assert "| | cmrc2018-zh |" in chinese
    assert "| BM25, pairs of neighbouring signs | 0.750 |" in chinese
    assert "| e5 hybrid − bm25 | **+0.125 (p < 0.001)** |" in chinese
    assert "cmrc2018-zh" in (root / "docs" / "results" / "significance.json").read_text()


def test_the_readme_has_the_short_table_of_systems_that_have_every_set(root: Path) -> None:
    sets = result_tables.DATASETS
    fill(root, {"bm25": dict.fromkeys(sets, 0.5), "minilm-tuned hybrid": {**dict.fromkeys(sets, 0.5), "wikiqa": 0.85}})
    fill(root, {"minilm hybrid": {"scifact": 0.9}, "minilm full-hybrid": dict.fromkeys(sets, 0.75)})
    assert results.main([]) == 0
    readme = (root / "README.md").read_text()
    assert readme.splitlines()[2:] == [
        "| nDCG@10 | model per query | average of 7 sets | scifact | wikiqa |",
        "|---|---|---:|---:|---:|",
        "| BM25 | no | 0.500 | 0.500 | 0.500 |",
        "| the same, the table fitted and the weights tuned | no | 0.550 | 0.500 | 0.850 |",
        "| its encoder: MiniLM, weights 0.5 / 0.5 | yes | 0.750 | 0.750 | 0.750 |",
        results.PART.end,
        "after",
    ]


def test_latency_over_throughput_becomes_a_table_and_curves(root: Path) -> None:
    content = {
        "machine": "m",
        "date": "2026-01-02T03",
        "commit": "c",
        "locust": "2",
        "bundle": {"documents": 1200},
        "plan": {"users": [1, 4], "seconds": 3.0, "rounds": 1},
        "systems": [{"name": "llm", "label": "LLM & table"}],
        "runs": [{"system": "llm", "users": users, "qps": 5.0 * users, "p50_ms": 70.0} for users in (1, 4)],
    }
    (root / "docs" / "results" / "users.json").write_text(json.dumps(content))
    assert results.main([]) == 0
    page = (root / "docs" / "lab" / "measuring.md").read_text()
    assert "| LLM & table, 4 users | 20 | 70 | – | – |" in page
    assert "![Latency over throughput](../results/users.svg)" in page
    chart = (root / "docs" / "results" / "users.svg").read_text()
    assert "LLM &amp; table" in chart
    assert chart.count("<polyline") == 1  # there is no p95
    assert chart.count("<circle") == 2
    assert results.main(["--check"]) == 0


@pytest.mark.parametrize("file", ["quality.svg", "significance.json"])
def test_a_changed_plot_or_test_is_noticed(root: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(root, {"bm25": {"scifact": 0.5}, "smollm2 hybrid": {"scifact": 0.75}})
    assert results.main([]) == 0
    (root / "docs" / "results" / file).write_text("changed")
    assert results.main(["--check"]) == 1
    assert file in capsys.readouterr().err


def test_every_label_is_given_once_in_a_table() -> None:
    short = [(system, label) for system, label, _ in result_tables.SHORT]
    for systems in (short, result_tables.MAIN, result_tables.POSTINGS, *result_tables.ABLATIONS.values()):
        names, labels = zip(*systems, strict=True)
        assert len(set(names)) == len(names)
        assert len(set(labels)) == len(labels)


def test_every_tested_system_stands_in_a_table() -> None:
    placed = {name for systems in (result_tables.MAIN, *result_tables.ABLATIONS.values()) for name, _ in systems}
    assert {name for pair in result_tables.COMPARISONS for name in pair} <= placed
