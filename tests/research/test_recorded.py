"""The file of results, rows and values of single queries, and the tables that pages make of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import RecipeError
from lightretriever.loadtest.program import typed_command
from research.pages import objectives, results
from research.quality.recorded import queries_file, read_queries_file, read_rows, record, result_rows
from research.record import ROOT
from tests.artifacts.test_evaluate import QRELS, SYSTEMS, write_dataset
from tests.support.judged import evaluate_bundle
from tests.support.wordings import raises


@pytest.fixture(scope="module")
def evaluated(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("quality")
    return evaluate_bundle(tiny_bundle.path, write_dataset(folder / "toy", QRELS), folder / "out")


def test_rows_of_an_evaluation(evaluated: dict[str, Any], tiny_bundle: Bundle) -> None:
    rows = result_rows(evaluated, "tiny", "lightretriever evaluate …", "a remark")
    assert [row["system"] for row in rows] == [*(f"tiny {name}" for name in SYSTEMS[:-1]), "bm25"]
    for row, system in zip(rows, SYSTEMS, strict=True):
        assert row["ndcg@10"] == pytest.approx(evaluated["metrics"][system]["nDCG@10"], abs=1e-5)
        assert row["recall@100"] == pytest.approx(evaluated["metrics"][system]["R@100"], abs=1e-5)
        assert (row["dataset"], row["queries"], row["documents"], row["split"]) == ("toy", 5, 120, "test")
        assert (row["command"], row["note"]) == ("lightretriever evaluate …", "a remark")
        assert row["machine"].endswith(" cores")
        assert row["date"] == evaluated["environment"]["date"]
    dense, _, hybrid, bm25 = rows
    assert dense["bundle"] == hybrid["bundle"] == tiny_bundle.manifest.digest
    assert (dense["dimension"], dense["sparse"]["vocabulary"]) == (16, "tokens")
    assert bm25["bm25"] == {"k1": 0.9, "b": 0.4}
    assert not {"bundle", "model", "settings", "dimension"} & set(bm25)


def test_what_lowers_a_result_stands_in_its_row(evaluated: dict[str, Any]) -> None:
    dataset = evaluated["dataset"] | {"relevant_documents_missing_in_bundle": 3, "split": "dev"}
    report = evaluated | {"dataset": dataset, "queries_without_answer": {"dense": ["q1", "q2"]}}
    dense, sparse, *_ = result_rows(report, "tiny", "…")
    assert (dense["relevant_documents_missing"], sparse["relevant_documents_missing"]) == (3, 3)
    assert dense["dataset"] == "toy/dev"  # another split is another set
    assert dense["queries_without_answer"] == 2
    assert "queries_without_answer" not in sparse


def row(system: str, dataset: str, value: float) -> dict[str, Any]:
    return {"system": system, "dataset": dataset, "ndcg@10": value}


def test_recorded_rows_replace_their_like_and_are_sorted(tmp_path: Path) -> None:
    file = tmp_path / "results" / "quality.json"
    record(file, [row("b dense", "toy", 0.1), row("bm25", "toy", 0.2)], {"b dense": {"q2": 0.2, "q1": 0.0}})
    record(file, [row("a dense", "zoo", 0.3)], {"a dense": {"q7": 0.30001}})
    record(file, [row("b dense", "toy", 0.4), row("a dense", "toy", 0.5)], {"b dense": {"q1": 0.25, "q2": 0.55}})
    assert read_rows(file) == [
        row("a dense", "toy", 0.5),
        row("b dense", "toy", 0.4),
        row("bm25", "toy", 0.2),
        row("a dense", "zoo", 0.3),
    ]
    assert set(json.loads(file.read_text())) == {"rows"}
    assert read_queries_file(file) == {
        "toy": {"queries": ["q1", "q2"], "ndcg@10": {"b dense": [0.25, 0.55]}},
        "zoo": {"queries": ["q7"], "ndcg@10": {"a dense": [0.30001]}},
    }
    assert sorted(path.name for path in file.parent.iterdir()) == ["quality.json", "quality.queries.json.gz"]


def test_other_queries_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "quality.json"
    record(file, [row("a", "toy", 0.5)], {"a": {"q1": 0.5}})
    before = file.read_bytes(), queries_file(file).read_bytes()
    with raises(RecipeError, naming="queries.json.gz"):
        record(file, [row("b", "toy", 0.5)], {"b": {"q1": 0.5, "q2": 0.5}})
    assert (file.read_bytes(), queries_file(file).read_bytes()) == before


def test_no_folder_gets_into_the_recorded_command() -> None:
    typed = ["lightretriever", "evaluate", "/home/me/runs/bundle/", "../data/scifact", "--output=/tmp/x y/out"]
    typed += ["--weights", "0.7", "0.3", "--query-model", "models/mpnet", "--note", "two words"]
    assert typed_command(typed) == (
        "lightretriever evaluate bundle scifact --output=out --weights 0.7 0.3 --query-model mpnet --note 'two words'"
    )


def test_the_documentation_is_up_to_date() -> None:
    for page, text in results.outputs(ROOT).items():
        assert page.read_text("utf-8") == text, (
            f"{page} differs from docs/results/: run python -m research.pages.results"
        )


def test_the_paired_test_is_that_of_the_book() -> None:
    # Student's sleep data (1908): t = -4.0621 with 9 degrees of freedom, p = 0.002833.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    difference, p = results.paired_test(first, second)
    assert difference == pytest.approx(-1.58)
    assert p == pytest.approx(0.002833, abs=1e-6)
    assert results.paired_test([1.0, 2.0], [0.5, 1.5]) == (0.5, 0.0)


def test_objectives_keep_the_rows_of_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "reliability.json"
    objectives.record(file, [{"key": "soak_failures", "value": 3, "unit": "answers"}], "make faults")
    objectives.record(file, [{"key": "overload_failures", "value": 1, "unit": "requests"}], "make faults")
    objectives.record(file, [{"key": "soak_failures", "value": 0, "unit": "answers"}], "make faults")
    content = json.loads(file.read_text())
    assert [(row["key"], row["value"]) for row in content["rows"]] == [("soak_failures", 0), ("overload_failures", 1)]
    assert content["rows"][0]["goal"] == objectives.OBJECTIVES["soak_failures"][1]
    lines = objectives.objectives_table(content)
    assert lines[0].startswith("1 of 2 bounds are kept")
    assert [line for line in lines if "five times the capacity" in line] == [
        f"| {objectives.OBJECTIVES['overload_failures'][0]} | 1 | requests | 0 |"
    ]
    assert not any(objectives.OBJECTIVES["soak_failures"][0] in line for line in lines)
