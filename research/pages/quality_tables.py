"""Tables of recorded results: systems in rows, datasets in columns, an average that is fair, and paired t-tests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import stats

from lightretriever.loadtest.record import machine_name
from lightretriever.loadtest.report import markdown_table
from research.pages.generated import of_file
from research.quality.recorded import MEASURE, PerQuery, Row

__all__ = [
    "PairedTest",
    "Results",
    "Table",
    "Tests",
    "average_sets",
    "demo_table",
    "halves_table",
    "kept_table",
    "matched_table",
    "paired_test",
    "paired_tests",
    "quantisation_table",
    "render",
    "significance_file",
    "significance_table",
    "tables_apart",
]

_ALIKE: Final = 1e-9  # differences this close are one number, rounded differently

MEASURED = {"bm25": "BM25 on the words", "hybrid": "hybrid, as served", "hybrid-paper": "hybrid, the paper's fusion"}


@dataclass(frozen=True)
class PairedTest:
    """The mean difference over `queries` queries, and how likely one as large is (two-sided) if there is none."""

    difference: float
    p: float
    queries: int


def paired_test(one: Sequence[float], other: Sequence[float]) -> PairedTest:
    """Student's t-test of the differences one - other, query by query: t = mean / (deviation / √n), n - 1 degrees.

    Both have one value per query, in the same order. Differences that are all alike leave no chance to estimate: p is
    1 where they are 0, else 0. Raises ValueError for different numbers of queries, or fewer than two.
    """
    if len(one) != len(other) or len(one) < 2:
        raise ValueError(f"a paired test needs two values or more on both sides, found {len(one)} and {len(other)}")
    differences = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    mean = float(differences.mean())
    if np.ptp(differences) < _ALIKE:
        return PairedTest(mean, float(abs(mean) < _ALIKE), len(differences))
    return PairedTest(mean, float(stats.ttest_1samp(differences, 0.0).pvalue), len(differences))


Tests = Mapping[tuple[str, str], Mapping[str, PairedTest]]
"""By pair of systems and dataset."""


@dataclass(frozen=True)
class Results:
    """The rows of a file of results by system and dataset, the values of single queries, and the datasets in order."""

    rows: Mapping[tuple[str, str], Row]
    queries: PerQuery
    datasets: Sequence[str]

    def value(self, system: str, dataset: str, measure: str) -> float | None:
        """A recorded number, None where there is none."""
        row = self.rows.get((system, dataset))
        return None if row is None or row.get(measure) is None else float(row[measure])

    def has(self, system: str) -> bool:
        """Whether anything is recorded of a system."""
        return any((system, dataset) in self.rows for dataset in self.datasets)


@dataclass(frozen=True)
class Table:
    """Systems with their labels, in the order of the rows; `measure` is a key of the recorded rows."""

    systems: Sequence[tuple[str, str]]
    measure: str = MEASURE
    digits: int = 3

    def markdown(self, results: Results) -> list[str]:
        """The lines of the table: systems of which nothing is recorded are left out, the best is bold.

        The average is over the datasets that most rows have, for the rows that have all of these; where they are fewer
        than two, it is left out.
        """
        shown = [(system, label) for system, label in self.systems if results.has(system)]
        datasets = [name for name in results.datasets if any((system, name) in results.rows for system, _ in shown)]
        common = average_sets([system for system, _ in shown], results)
        columns = [[results.value(system, name, self.measure) for system, _ in shown] for name in datasets]
        heads = list(datasets)
        if len(common) > 1:
            heads.append("average" if len(common) == len(datasets) else f"average of {len(common)}")
            columns.append([self._mean(system, common, results) for system, _ in shown])
        cells = [self._cells(column) for column in columns]
        lines = [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
        return lines + [f"| {label} | {' | '.join(c[row] for c in cells)} |" for row, (_, label) in enumerate(shown)]

    def _mean(self, system: str, datasets: Sequence[str], results: Results) -> float | None:
        values = [results.value(system, name, self.measure) for name in datasets]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None

    def _cells(self, column: Sequence[float | None]) -> list[str]:
        """Numbers as text, the best bold: the highest of a measure, no postings are best."""
        texts = ["–" if value is None else f"{value:,.{self.digits}f}" for value in column]
        known = [value for value in column if value is not None]
        if len(known) < 2 or self.digits == 0:
            return texts
        best = f"{max(known):,.{self.digits}f}"
        return [f"**{text}**" if text == best else text for text in texts]


def render(report: Mapping[str, Any], name: str) -> str:
    """One evaluation as a Markdown table; `name` is the file below docs/results/."""
    dataset, bundle, machine = report["dataset"], report["bundle"], report["environment"]["machine"]
    measures = list(next(iter(report["metrics"].values())))
    trained = "trained for retrieval" if bundle["model"]["trained"] else "not trained for retrieval"
    size = f"{dataset['split']}: {dataset['queries']:,} queries, {bundle['documents']:,} documents"
    lines = [
        f"**{dataset['name']}** ({size}), {bundle['model']['name']}, {trained}; "
        f"[{name}](results/{name}), {report['environment']['date'][:10]}, {machine['processor']}.",
        "",
        f"| | {' | '.join(measures)} |",
        f"|---|{'---:|' * len(measures)}",
    ]
    for system in sorted(report["metrics"], key=["bm25", "dense", "sparse", "hybrid", "hybrid-paper"].index):
        values = report["metrics"][system]
        label = MEASURED.get(system, system)
        lines.append(f"| {label} | {' | '.join(f'{values[measure]:.3f}' for measure in measures)} |")
    return "\n".join([*lines, ""])


def average_sets(systems: Sequence[str], results: Results) -> list[str]:
    """The datasets that more than half of `systems` have (of two, both): a system that lacks one has no average."""
    counts = {name: sum((system, name) in results.rows for system in systems) for name in results.datasets}
    return [name for name, count in counts.items() if 2 * count > len(systems)]


def paired_tests(pair: tuple[str, str], results: Results) -> dict[str, PairedTest]:
    """The paired test of two systems on nDCG@10, for every dataset whose single queries are recorded of both."""
    found = {}
    for dataset in results.datasets:
        values = results.queries.get(dataset, {}).get(MEASURE, {})
        if all(system in values for system in pair) and len(values[pair[0]]) > 1:
            found[dataset] = paired_test(values[pair[0]], values[pair[1]])
    return found


def kept_table(pairs: Sequence[tuple[str, str]], results: Results) -> list[str]:
    """How much of the nDCG@10 of another system each keeps, on the average of the datasets that both have."""
    lines = []
    for system, other in pairs:
        datasets = average_sets([system, other], results)
        if datasets:
            ours, theirs = (
                sum(results.value(one, name, MEASURE) or 0.0 for name in datasets) for one in (system, other)
            )
            average, share = ours / len(datasets), f"{ours / theirs:.1%}" if theirs else "–"
            lines.append(f"| {system} | {average:.3f} | {share} | {other} | {len(datasets)} |")
    heads = ["| | nDCG@10, average | share | of | sets |", "|---|---:|---:|---|---:|"]
    return ["\n".join(["### What is kept", "", *heads, *lines, ""])] if lines else []


def significance_table(
    tests: Tests,
    datasets: Sequence[str],
    title: str = "### Differences of nDCG@10, and whether they are more than chance",
) -> list[str]:
    """Differences of nDCG@10 between two systems, with p, as a table."""
    shown = [name for name in datasets if any(name in found for found in tests.values())]
    if not shown:
        return []
    lines = [
        title,
        "",
        f"Two-sided paired t-test over the queries; bold: p < 0.05. There are {sum(map(len, tests.values()))} tests "
        "here, and p is not corrected for that: a single p just below 0.05 means little.",
        "",
        f"| | {' | '.join(shown)} |",
        f"|---|{'---:|' * len(shown)}",
    ]
    lines += [
        f"| {one} − {other} | {' | '.join(_difference(found.get(name)) for name in shown)} |"
        for (one, other), found in tests.items()
        if found
    ]
    return ["\n".join([*lines, ""])]


def tables_apart(
    title: str, systems: Sequence[tuple[str, str]], pairs: Sequence[tuple[str, str]], results: Results
) -> tuple[list[str], Tests]:
    """The tables of datasets that stand apart from the others, and the paired tests on them."""
    tests = {pair: paired_tests(pair, results) for pair in pairs}
    if not any(results.has(system) for system, _ in systems):
        return [], tests
    table = "\n".join([f"### {title}, nDCG@10", "", *Table(systems).markdown(results), ""])
    return [table, *significance_table(tests, results.datasets, f"### Differences on {title}")], tests


def _difference(test: PairedTest | None) -> str:
    """One test as a cell."""
    if test is None:
        return "–"
    text = f"{test.difference:+.3f} ({'p < 0.001' if test.p < 0.001 else f'p {test.p:.3f}'})"
    return f"**{text}**" if test.p < 0.05 else text


def significance_file(tests: Tests) -> str:
    """The same as JSON, one test a line."""
    lines = [
        json.dumps(
            {"system": one, "against": other, "dataset": name, "queries": test.queries}
            | {"ndcg@10_difference": round(test.difference, 5), "p": float(f"{test.p:.4g}")}
        )
        for (one, other), found in tests.items()
        for name, test in found.items()
    ]
    return '{"tests": [\n' + ",\n".join(lines) + "\n]}\n"


@of_file
def matched_table(content: Any, source: str) -> list[str]:
    """How often `matched` was right, as research/quality/matched.py recorded it."""
    kinds = [("own", "strong"), ("removed", "strong"), ("others", "strong"), ("own", "none"), ("others", "none")]
    lines = [
        f"| bundle | thresholds | {' | '.join(f'{queries}: {level}' for queries, level in kinds)} |",
        f"|---|---|{'---:|' * len(kinds)}",
    ]
    for name, found in content["bundles"].items():
        limits = f"{found['thresholds']['weak']:.2f}, {found['thresholds']['strong']:.2f}"
        cells = [
            f"{100 * found[queries]['dense'][level]:.0f} → {100 * found[queries]['hybrid'][level]:.0f} %"
            for queries, level in kinds
        ]
        lines.append(f"| {' | '.join([name, limits, *cells])} |")
    of = content["environment"]
    note = (
        "Before the arrow by the dense score alone, behind it by the query's words as well. The bundles are of "
        "MiniLM's table. *Own* queries are those of the bundle's collection, *removed* the same without their relevant "
        "documents, *others* those of the other collections, at most 200 of each. Measured on "
        f"{of['date'][:10]}, {machine_name(of['machine'])}. {source}, written by "
        "`research.quality.matched`."
    )
    return ["\n".join(["### Shares of `matched`", "", *lines, "", note, ""])]


@of_file
def demo_table(content: Any, source: str) -> list[str]:
    """What the demo finds, as research/quality/demo_queries.py recorded it."""
    heads = ["queries", "", "an expected package among the first five", "`strong` without one"]
    figures = ("queries", "found", "strong without")
    rows = [[group, *(str(content[group][name]) for name in figures)] for group in ("looked at", "kept apart")]
    missed = ", ".join(f"“{answer['query']}”" for answer in content["answers"] if not answer["found"])
    note = f"Without one: {missed}. {source}, written by `research.quality.demo_queries`."
    return ["\n".join(["### The demo's queries", "", *markdown_table(heads, rows), "", note, ""])]


@of_file
def halves_table(content: Any, source: str) -> list[str]:
    """Tabulate halves.json: nDCG@10 of tables fitted to other documents."""
    heads = ["table of", "queries", "the other half", "the searched half", "both", "the encoder", "BM25"]
    rows = []
    for name, found in content.items():
        values = found["ndcg@10"]
        for leg in ("dense", "hybrid"):
            shown = [*(values[f"{who} {leg}"] for who in ("other", "own", "whole", "encoder")), values["bm25"]]
            lost = found[f"other-own {leg}"]
            cells = [f"{value:.3f}" for value in shown]
            cells += [f"{lost['mean']:+.3f} ({lost['low']:+.3f} to {lost['high']:+.3f})"]
            rows.append([f"{name}, {leg}", f"{found['queries']:,}", *cells])
    note = (
        "Hybrid is the dense leg and BM25 on words, which were not expanded: these figures are of an earlier version "
        f"(commit ff0c316). In brackets the 95 % interval. {source}."
    )
    table = markdown_table([*heads, "other − searched"], rows)
    return ["\n".join(["### A table for documents it has not seen, nDCG@10", "", *table, "", note, ""])]


@of_file
def quantisation_table(content: Any, source: str) -> list[str]:
    """Tabulate what research/quality/quantisation.py recorded: BM25 as whole impacts against Lucene's own."""
    collections: Mapping[str, Mapping[str, Any]] = content["collections"]
    sizes = sorted({int(key) for found in collections.values() for key in found if key.isdecimal()})
    heads = ["Lucene's BM25", *(f"{size:,} a unit" for size in sizes), *(f"alike, {size:,}" for size in sizes)]
    rows = []
    for name, found in collections.items():
        parts = [found[str(size)] for size in sizes]
        cells = [f"{value:.4f}" for value in (found["bm25"], *(part["ndcg"] for part in parts))]
        rows.append([name, *cells, *(f"{100 * part['equal']:.0f} %" for part in parts)])
    note = (
        "*Alike* is the share of queries with the same first ten documents in the same order, but for ties. "
        f"{source}, written by `research.quality.quantisation`."
    )
    table = markdown_table(["", *heads], rows)
    return ["\n".join(["### BM25 as whole impacts, nDCG@10", "", *table, "", note, ""])]


def below_table(tests: Tests, baseline: str) -> list[str]:
    """The systems that rank below a baseline beyond chance, with the sets and differences."""
    lines = []
    for (system, other), found in tests.items():
        lost = [
            f"{name} {test.difference:+.3f}" for name, test in found.items() if test.p < 0.05 and test.difference < 0
        ]
        if other == baseline and found:
            lines.append(f"| {system} | {len(found)} | {', '.join(lost) or 'none'} |")
    if not lines:
        return []
    heads = ["| | sets tested | significantly below BM25 |", "|---|---:|---|"]
    return ["\n".join(["### Where a system ranks below BM25", "", *heads, *lines, ""])]


@of_file
def tuned_table(content: Any, source: str) -> list[str]:
    """Tabulate tuned.json, what `lightretriever tune` found."""
    lines = [
        "| | queries | | best weights, dense / sparse | nDCG@10 | at 0.5 / 0.5 | choosing gains | "
        "within chance of the best |",
        "|---|---|---:|---|---:|---:|---:|---|",
    ]
    for run in content["runs"]:
        low, high = run["interval"]
        chance = sorted(one["weights"]["dense"] for one in run["divisions"] if one["by_chance"])
        cells = [
            run["system"],
            f"{run['dataset']}, {run['split']}",
            f"{run['queries']:,}",
            f"{run['weights']['dense']:g} / {run['weights']['sparse']:g}",
            f"{run['ndcg']:.3f}",
            f"{run['own_ndcg']:.3f}",
            f"{run['gain']:+.3f} ({low:+.3f} to {high:+.3f})",
            f"dense {', '.join(f'{weight:g}' for weight in chance)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    note = (
        "*Choosing gains* is the gain over equal weights on queries that took no part in the choice, with its 95 % "
        f"interval. {source}, from `lightretriever tune --json`."
    )
    return ["\n".join(["### Weights by development queries, nDCG@10", "", *lines, "", note, ""])]


@of_file
def expansion_table(content: Any, source: str) -> list[str]:
    """Tabulate what research/quality/expansion.py recorded."""
    parts = ["### Expansion by development queries, nDCG@10", ""]
    for system, found in content["systems"].items():
        sets = list(found["queries"])
        heads = [*(f"{name}, sparse / both" for name in sets), "average, sparse / both"]
        heads += ["sparse − default", "both − default"]
        rows = []
        for row in found["rows"]:
            cells = [f"{row['sparse'][name]:.3f} / {row['hybrid'][name]:.3f}" for name in [*sets, "average"]]
            cells += [_interval(row[f"{leg}_difference"]) for leg in ("sparse", "hybrid")]
            name = row["setting"] + ", the default" * (row["setting"] == found["default"])
            rows.append([name, *cells])
        parts += markdown_table([system, *heads], rows)
        sizes = ", ".join(f"{name} {count:,}" for name, count in found["queries"].items())
        parts += ["", f"Queries: {sizes}.", ""]
    note = (
        "*Both* is the hybrid search at equal weights. In brackets the 95 % interval of the difference of the average; "
        f"bold: it leaves out 0. {source}, written by `research.quality.expansion`."
    )
    return ["\n".join([*parts, note, ""])]


def _interval(values: Sequence[float]) -> str:
    mean, low, high = values
    if low == high == 0:
        return "0"
    text = f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"
    return f"**{text}**" if low > 0 or high < 0 else text


@of_file
def expansion_size_table(content: Any, source: str) -> list[str]:
    """Tabulate what research/quality/expansion_size.py recorded."""
    rows = [
        [row["name"], f"{row['terms']:g}", *(f"{row[name] / 1e6:.2f}" for name in ("sparse_bytes", "bytes"))]
        + [f"{row[name]:g}" for name in ("seconds", "cpu_s")]
        for row in content["rows"]
    ]
    heads = ["", "terms a document", "sparse index MB", "bundle MB", "`index` s", "processor s"]
    lines = ["### What expansion takes", "", *markdown_table(heads, rows)]
    expanded, plain = content["rows"]
    growth = expanded["sparse_bytes"] / plain["sparse_bytes"] - 1
    turns = f"median of {content['turns']} turns; {content['machine']}, {content['date'][:10]}"
    lines += [
        "",
        f"{expanded['documents']:,} documents. Expansion makes the sparse index {growth:.0%} larger. Times: {turns}.",
    ]
    return ["\n".join([*lines, f"{source}, written by `research.quality.expansion_size`.", ""])]
