"""Tables and chart of recorded results."""

import math
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.pages.charts import Bar, bar_chart
from research.pages.quality_tables import Results, Table, average_sets, kept_table, paired_test, paired_tests


def results(values: dict[tuple[str, str], float], queries: dict[str, Any] | None = None) -> Results:
    rows = {key: {"system": key[0], "dataset": key[1], "ndcg@10": value} for key, value in values.items()}
    return Results(rows, queries or {}, ["one", "two"])


SYSTEMS = [("a", "System A"), ("b", "System B"), ("none", "never measured")]


def test_the_best_of_each_column_is_bold_and_a_missing_cell_is_a_dash() -> None:
    found = results({("a", "one"): 0.5, ("b", "one"): 0.25, ("b", "two"): 0.75})
    assert Table(SYSTEMS).markdown(found) == [
        "| | one | two |",
        "|---|---:|---:|",
        "| System A | **0.500** | – |",
        "| System B | 0.250 | 0.750 |",
    ]


def test_the_average_is_over_what_all_have() -> None:
    values = {("a", "one"): 0.5, ("b", "one"): 0.25, ("a", "two"): 0.25, ("b", "two"): 0.75, ("b", "three"): 1.0}
    found = results(values)
    assert Table(SYSTEMS).markdown(Results(found.rows, {}, ["one", "two", "three"])) == [
        "| | one | two | three | average of 2 |",
        "|---|---:|---:|---:|---:|",
        "| System A | **0.500** | 0.250 | – | 0.375 |",
        "| System B | 0.250 | **0.750** | 1.000 | **0.500** |",
    ]


def test_what_is_kept() -> None:
    found = results({("a", "one"): 0.3, ("b", "one"): 0.5, ("a", "two"): 0.6, ("b", "two"): 0.7, ("none", "one"): 0.0})
    (text,) = kept_table([("a", "b"), ("a", "none"), ("a", "elsewhere")], found)
    assert text.splitlines()[4:] == ["| a | 0.450 | 75.0% | b | 2 |", "| a | 0.300 | – | none | 1 |"]
    assert kept_table([("a", "elsewhere")], found) == []


def test_the_average_is_over_all_when_all_are_there() -> None:
    found = results({("a", "one"): 0.5, ("b", "one"): 0.25, ("a", "two"): 0.25, ("b", "two"): 0.75})
    assert Table(SYSTEMS).markdown(found) == [
        "| | one | two | average |",
        "|---|---:|---:|---:|",
        "| System A | **0.500** | 0.250 | 0.375 |",
        "| System B | 0.250 | **0.750** | **0.500** |",
    ]


def test_nothing_in_common_gives_no_average_and_equal_values_are_both_best() -> None:
    assert Table(SYSTEMS).markdown(results({("a", "one"): 0.5, ("b", "two"): 0.5}))[0] == "| | one | two |"
    found = Table(SYSTEMS).markdown(results({("a", "one"): 0.5001, ("b", "one"): 0.5002}))
    assert found[2:] == ["| System A | **0.500** |", "| System B | **0.500** |"]


def test_counts_are_whole_and_none_is_bold() -> None:
    found = results({("a", "one"): 0, ("b", "one"): 0})
    found.rows["a", "one"]["postings_per_query"] = 12345.6
    assert Table(SYSTEMS, "postings_per_query", digits=0).markdown(found)[2:] == [
        "| System A | 12,346 |",
        "| System B | – |",
    ]


def test_average_sets() -> None:
    found = results({("a", "one"): 0.5, ("a", "two"): 0.5, ("b", "two"): 0.5})
    assert average_sets(["a"], found) == ["one", "two"]
    assert average_sets(["a", "b"], found) == ["two"]
    assert average_sets([], found) == []


def test_pairs_are_tested_where_both_have_their_single_queries() -> None:
    values = {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [0.0] * 5}
    queries = {"one": {"queries": list("vwxyz"), "ndcg@10": values}, "two": {"queries": ["q"], "ndcg@10": {"a": [1.0]}}}
    (test,) = paired_tests(("a", "b"), results({}, queries)).values()
    assert (test.difference, test.queries) == (3.0, 5)
    assert test.p == pytest.approx(0.0132, abs=1e-4)
    assert paired_tests(("a", "none"), results({}, queries)) == {}


def test_the_chart_is_svg_and_always_the_same() -> None:
    bars = [Bar("A & B <x>", 0.5, [0.25, 0.75]), Bar("C", 1.0, [1.0], accent=True)]
    chart = bar_chart("Title", bars)
    assert chart == bar_chart("Title", bars)
    root = ElementTree.fromstring(chart)
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert {"Title", "A & B <x>", "C", "0.500", "1.000"} <= set(texts)
    widths = [float(element.attrib["width"]) for element in root.iter(f"{space}rect")][1:]
    assert widths[0] == widths[1] / 2
    assert len(list(root.iter(f"{space}circle"))) == 3


def test_the_paired_test_by_hand() -> None:
    """Differences 1, 2, 3, 4, 5: mean 3, deviation √2.5, t = 3 / √(2.5 / 5) = 4.2426 with 4 degrees of freedom."""
    test = paired_test([1, 2, 3, 4, 5], [0, 0, 0, 0, 0])
    assert (test.difference, test.queries) == (3.0, 5)
    # For 4 degrees: p = 1 - u(6 + 4u² ... )-free closed form: 1 - (x / 2)(3 - x²) with x = t / √(t² + 4).
    x = 3 / math.sqrt(0.5) / math.sqrt(9 / 0.5 + 4)
    assert test.p == pytest.approx(1 - x / 2 * (3 - x * x))
    assert test.p == pytest.approx(0.0132, abs=1e-4)


@settings(deadline=None)  # the first call imports scipy's statistics
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=50))
def test_a_paired_test_has_no_favourite(pairs: list[tuple[float, float]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    test, reverse = paired_test(one, other), paired_test(other, one)
    assert 0 <= test.p <= 1
    assert reverse.p == pytest.approx(test.p)
    assert reverse.difference == pytest.approx(-test.difference)


def test_pairs_that_leave_nothing_to_chance() -> None:
    assert paired_test([0.5, 0.25], [0.5, 0.25]).p == 1.0
    assert paired_test([0.75, 0.5], [0.5, 0.25]).p == 0.0
    for values in ([0.5], [0.5, 0.5, 0.5]):
        with pytest.raises(ValueError, match="two values or more on both sides"):
            paired_test(values, [0.5])
