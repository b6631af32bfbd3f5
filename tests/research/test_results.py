"""The documentation's tables of results: made from the result files, and up to date."""

import json
from pathlib import Path

import pytest

from research.pages import results
from research.pages.objectives import OBJECTIVES, objectives_table, record
from research.record import ROOT


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
