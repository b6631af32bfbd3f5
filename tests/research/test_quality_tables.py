"""Tables and charts of recorded results."""

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from research.pages.charts import Bar, bar_chart
from research.pages.quality_tables import Results, Table, kept_table, paired_test, paired_tests
from research.pages.speed_tables import speed_table
from research.speed import paper_table, stages
from research.speed.paper_table import encode_light, rows_of
from tests.support.wordings import raises


def results(values: dict[tuple[str, str], float], queries: dict[str, Any] | None = None) -> Results:
    rows = {key: {"system": key[0], "dataset": key[1], "ndcg@10": value} for key, value in values.items()}
    return Results(rows, queries or {}, ["one", "two"])


SYSTEMS = [("a", "System A"), ("b", "System B"), ("none", "never measured")]


@pytest.mark.parametrize(
    ("values", "datasets", "lines"),
    [
        (
            {("a", "one"): 0.5, ("b", "one"): 0.25, ("b", "two"): 0.75},
            ["one", "two"],
            ["| | one | two |", "|---|---:|---:|", "| System A | **0.500** | – |", "| System B | 0.250 | 0.750 |"],
        ),
        (
            {("a", "one"): 0.5, ("b", "one"): 0.25, ("a", "two"): 0.25, ("b", "two"): 0.75},
            ["one", "two"],
            [
                "| | one | two | average |",
                "|---|---:|---:|---:|",
                "| System A | **0.500** | 0.250 | 0.375 |",
                "| System B | 0.250 | **0.750** | **0.500** |",
            ],
        ),
        (
            {("a", "one"): 0.5, ("b", "one"): 0.25, ("a", "two"): 0.25, ("b", "two"): 0.75, ("b", "three"): 1.0},
            ["one", "two", "three"],
            [
                "| | one | two | three | average of 2 |",
                "|---|---:|---:|---:|---:|",
                "| System A | **0.500** | 0.250 | – | 0.375 |",
                "| System B | 0.250 | **0.750** | 1.000 | **0.500** |",
            ],
        ),
    ],
    ids=["a missing cell is a dash", "the average is over all", "the average is over what all have"],
)
def test_the_best_of_each_column_is_bold(
    values: dict[tuple[str, str], float], datasets: list[str], lines: list[str]
) -> None:
    assert Table(SYSTEMS).markdown(Results(results(values).rows, {}, datasets)) == lines


def test_what_is_kept() -> None:
    found = results({("a", "one"): 0.3, ("b", "one"): 0.5, ("a", "two"): 0.6, ("b", "two"): 0.7, ("none", "one"): 0.0})
    (text,) = kept_table([("a", "b"), ("a", "none"), ("a", "elsewhere")], found)
    assert text.splitlines()[4:] == ["| a | 0.450 | 75.0% | b | 2 |", "| a | 0.300 | – | none | 1 |"]
    assert kept_table([("a", "elsewhere")], found) == []


def test_nothing_in_common_gives_no_average_and_equal_values_are_both_best() -> None:
    assert Table(SYSTEMS).markdown(results({("a", "one"): 0.5, ("b", "two"): 0.5}))[0] == "| | one | two |"
    found = Table(SYSTEMS).markdown(results({("a", "one"): 0.5001, ("b", "one"): 0.5002}))
    assert found[2:] == ["| System A | **0.500** |", "| System B | **0.500** |"]


def test_counts_are_whole_and_none_is_bold() -> None:
    found = results({("a", "one"): 0, ("b", "one"): 0})
    found.rows["a", "one"]["postings_per_query"] = 12345.6
    shown = Table(SYSTEMS, "postings_per_query", digits=0).markdown(found)
    assert shown[2:] == ["| System A | 12,346 |", "| System B | – |"]


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


def test_pairs_that_leave_nothing_to_chance() -> None:
    assert paired_test([0.5, 0.25], [0.5, 0.25]).p == 1.0
    assert paired_test([0.75, 0.5], [0.5, 0.25]).p == 0.0
    for values in ([0.5], [0.5, 0.5, 0.5]):
        with raises(ValueError):
            paired_test(values, [0.5])


def test_a_figure_of_a_busy_machine_says_so(tmp_path: Path) -> None:
    origin = {"machine": "m", "date": "2026-11-27T10:00:00+00:00", "commit": "c"}
    rows = [
        {"key": "switches", "value": 9.0, "goal": "≤ 12", "load_average": [7.25, 5.0, 5.0], **origin},
        {"key": "half_load", "value": 2.5, "goal": "≤ 3", "load_average": [0.1, 0.2, 0.3], **origin},
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"rows": rows}))
    (table,) = speed_table(tmp_path / "speed.json")
    assert "| context switches a request, one process, 8 connections; the machine's load before: 7.2 | 9 |" in table
    assert "| p99 ÷ p50 at half of the saturated requests/s | 2.5 |" in table


def test_two_processes_share_the_queries(tiny_bundle: Bundle) -> None:
    times = encode_light(tiny_bundle.path, ["music player", "terminal", "a text"] * 30, 2)
    assert min(times.values()) > 0
    assert times["both_s"] >= (times["tokenize_s"] + times["encode_s"]) / 2 * 0.5


@pytest.mark.slow
def test_one_command_fills_the_table(
    real_bundle: tuple[Path, Path], queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "speed.json"
    command = [str(real_bundle[0]), "--queries", str(queries), "--count", "48", "--results", str(file)]
    command += ["--model", str(real_bundle[1]), "--device", "cpu", "--llm-queries", "12"]
    assert paper_table.main(command) == 0
    rows = {(row["key"], row.get("setting")): row for row in json.loads(file.read_text())["rows"]}
    light = rows["paper_table", "without the LLM, 40 documents"]
    model = rows["paper_table", "with the LLM, 40 documents"]
    assert (light["queries"], light["different_queries"], light["processes"]) == (48, 4, 2)
    assert light["value"] == pytest.approx(light["both_s"] + light["search_s"], rel=1e-2)
    assert light["qps"] == pytest.approx(48 / light["value"], rel=1e-2)
    assert model["scaled_from"] == 12
    assert model["model"] == "model"
    ratio = rows["encode_vs_llm", None]
    assert ratio["value"] == pytest.approx(model["both_s"] / light["both_s"], rel=1e-2)
    assert ratio["qps_ratio"] == pytest.approx(model["value"] / light["value"], rel=1e-2)
    assert ("encode_65536_s", None) not in rows  # of 48 queries it would be another number
    assert "with the LLM" in capsys.readouterr().out


def test_goals_are_for_all_queries_on_a_cpu() -> None:
    facts = {"documents": 5, "device": "cuda", "processes": 2}
    light = {"tokenize_s": 0.2, "encode_s": 0.1, "both_s": 0.2, "search_s": 5.0}
    model = {"both_s": 100.0, "tokenize_s": 10.0, "search_s": 5.0, "measured": 65_536.0}
    rows = rows_of(light, model, 65_536, facts)
    assert [(row["key"], row.get("setting"), row["value"]) for row in rows] == [
        ("paper_table", "without the LLM, 5 documents", 5.2),
        ("encode_65536_s", None, 0.2),
        ("paper_table", "with the LLM, 5 documents", 105.0),
        ("encode_vs_llm", "the LLM on cuda", 500.0),
        ("encode_alone_vs_llm", "the LLM on cuda", 1800.0),
    ]
    assert "scaled_from" not in rows[2]


@pytest.mark.parametrize("program", [paper_table, stages])
def test_a_bundle_that_is_not_there_is_named(queries: Path, capsys: pytest.CaptureFixture[str], program: Any) -> None:
    assert program.main([str(queries / "none"), "--queries", str(queries)]) == 2
    assert "none" in capsys.readouterr().err
