"""Write what the documentation says of quality, from the result files of `lightretriever evaluate`.

    python -m scripts.results           write the tables of README.md and docs/evaluation.md, the tests and the plot
    python -m scripts.results --check   say whether they are up to date, change nothing

docs/results/quality.json has one row per system and dataset; scripts/result_tables.py says in which table, in which
order and under which label a system stands, and which pairs are tested, which gives significance.json. What speed.json
and reliability.json hold against their goals becomes the tables of docs/speed.md and docs/reliability.md. load.json, of
the load test, stands in README.md, and engines/load.json, of a second one with further engines, in docs/speed.md. Every
other docs/results/*.json is an `evaluation.json`, and becomes a table of its own.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightretriever.artifacts.evaluation.plot import Bar, bar_chart
from lightretriever.artifacts.evaluation.quality import read_queries_file, read_rows
from lightretriever.artifacts.evaluation.tables import (
    Results,
    Table,
    average_sets,
    kept_table,
    paired_tests,
    significance_file,
    significance_table,
)
from lightretriever.loadtest.details import detail_tables, load_table
from lightretriever.loadtest.promises import PROMISES
from lightretriever.loadtest.record import GOALS, Goals, goal_table

from scripts.generated import Part, wants_check, write_or_check
from scripts.result_tables import ABLATIONS, COMPARISONS, DATASETS, KEPT, MAIN, POSTINGS

__all__ = ["main", "outputs", "render"]

ROOT = Path(__file__).resolve().parents[1]
QUALITY = "quality.json"
SIGNIFICANCE = "significance.json"
CHART = "quality.svg"
SPEED = "speed.json"
RELIABILITY = "reliability.json"
LOAD = "load.json"
ENGINES = "engines"
OTHERS = (QUALITY, SIGNIFICANCE, SPEED, RELIABILITY, LOAD, "scaling.json")
PART = Part("<!-- results: written by scripts/results.py -->", "<!-- end of results -->")

MEASURED = {"bm25": "BM25 on the words", "hybrid": "hybrid, as served", "hybrid-paper": "hybrid, the paper's fusion"}


def render(report: Mapping[str, Any], name: str) -> str:
    """One evaluation as a Markdown table; `name` is the file below docs/results/."""
    dataset, bundle, machine = report["dataset"], report["bundle"], report["environment"]["machine"]
    measures = list(next(iter(report["metrics"].values())))
    trained = "trained for retrieval" if bundle["model"]["trained"] else "not trained for retrieval"
    size = f"{dataset['split']}: {dataset['queries']:,} queries, {bundle['documents']:,} documents"
    lines = [
        f"**{dataset['name']}** ({size}), {bundle['model']['name']}, {trained}; "
        f"[docs/results/{name}](docs/results/{name}), {report['environment']['date'][:10]}, {machine['processor']}.",
        "",
        f"| | {' | '.join(measures)} |",
        f"|---|{'---:|' * len(measures)}",
    ]
    for system in sorted(report["metrics"], key=["bm25", "dense", "sparse", "hybrid", "hybrid-paper"].index):
        values = report["metrics"][system]
        label = MEASURED.get(system, system)
        lines.append(f"| {label} | {' | '.join(f'{values[measure]:.3f}' for measure in measures)} |")
    return "\n".join([*lines, ""])


def outputs(root: Path) -> dict[Path, str]:
    """Every file this script writes, and what is to stand in it."""
    folder = root / "docs" / "results"
    rows = {(row["system"], row["dataset"]): row for row in read_rows(folder / QUALITY)}
    names = [*DATASETS, *sorted({dataset for _, dataset in rows} - set(DATASETS))]
    results = Results(rows, read_queries_file(folder / QUALITY), names)
    reports = [file for file in sorted(folder.glob("*.json")) if file.name not in OTHERS]
    singles = [render(json.loads(file.read_text(encoding="utf-8")), file.name) for file in reports]
    tests = {pair: paired_tests(pair, results) for pair in COMPARISONS}
    chart = plot(results)
    image = [f"![Average nDCG@10 of the systems](docs/results/{CHART})\n"] if chart else []
    pages = {
        root / "README.md": [*main_tables(results), *image, *singles, *speed(folder)],
        root / "docs" / "evaluation.md": [*details(results), *significance_table(tests, names)],
        root / "docs" / "speed.md": [
            *measured(folder / SPEED, GOALS),
            *detail_tables(folder / SPEED),
            *engines(folder / ENGINES / LOAD),
        ],
        root / "docs" / "reliability.md": measured(folder / RELIABILITY, PROMISES),
    }
    written = {page: PART.replaced(page.read_text(encoding="utf-8"), "\n".join(parts)) for page, parts in pages.items()}
    if chart:
        written[folder / CHART] = chart
    if any(tests.values()):
        written[folder / SIGNIFICANCE] = significance_file(tests)
    return written


def measured(file: Path, goals: Goals) -> list[str]:
    """A table of what was measured against its goals, with machine and date."""
    table = goal_table(file, goals)
    if not table:
        return ["Nothing is recorded.\n"]
    rows = [row for row in json.loads(file.read_text(encoding="utf-8"))["rows"] if "goal" in row]
    origins = dict.fromkeys(f"{row['machine']}, {row['date'][:10]}, commit {row['commit']}" for row in rows)
    source = f"Measured on {'; '.join(origins)}. [{file.name}](results/{file.name})."
    return ["\n".join([*table, "", source, ""])]


def speed(folder: Path) -> list[str]:
    """README's tables of speed: the goals, and other systems under load."""
    goals, load = goal_table(folder / SPEED, GOALS), load_table(folder / LOAD)
    if not goals:
        return []
    rows = json.loads((folder / SPEED).read_text(encoding="utf-8"))["rows"]
    documents = max(row.get("documents", 0) for row in rows)
    heading = "**Speed**, on synthetic documents that were [drawn after real ones](docs/speed.md#a-corpus-of-any-size)"
    source = (
        "A dash: too few answers for a p99. "
        "All figures, and where the time goes: [speed](docs/speed.md), [load test](docs/results/load.md)."
    )
    blocks = [[f"{heading} ({documents:,} of them):", "", *goals], load, [source]]
    return ["\n".join([*block, ""]) for block in blocks if block]


def engines(file: Path) -> list[str]:
    """The table of docs/speed.md of engines that hold too few documents to stand in README's."""
    table = load_table(file)
    if not table:
        return []
    load = json.loads(file.read_text(encoding="utf-8"))
    facts = f"{load['bundle']['documents']:,} documents, {load['machine']}, {load['date'][:10]}"
    heading = f"Ready-made engines under load ({facts}; [all figures](results/{ENGINES}/load.md)):"
    return ["\n".join([heading, "", *table, ""])]


def main_tables(results: Results) -> list[str]:
    """README's tables."""
    if not any(results.has(system) for system, _ in MAIN):
        return []
    queries = {name: row["queries"] for (_, name), row in results.rows.items()}
    parts = [
        "\n".join([f"**{title}**", "", *Table(MAIN, measure).markdown(results), ""])
        for title, measure in (("nDCG@10", "ndcg@10"), ("Recall@100", "recall@100"))
    ]
    sizes = ", ".join(f"{name} {queries[name]:,}" for name in results.datasets if name in queries)
    note = f"Test queries: {sizes}. The average is over the sets that most rows of the table have; – is not measured."
    return [*parts, f"{note}\n"]


def details(results: Results) -> list[str]:
    """The tables of docs/evaluation.md."""
    placed = {system for systems in (MAIN, *ABLATIONS.values()) for system, _ in systems}
    others = [(system, system) for system in sorted({system for system, _ in results.rows} - placed)]
    parts = kept_table(KEPT, results)
    parts += [
        "\n".join([f"### {title}, nDCG@10", "", *Table(systems).markdown(results), ""])
        for title, systems in ABLATIONS.items()
        if sum(results.has(system) for system, _ in systems) > 1
    ]
    if others:
        parts.append("\n".join(["### Every other recorded system, nDCG@10", "", *Table(others).markdown(results), ""]))
    if any(results.has(system) for system, _ in POSTINGS):
        table = Table(POSTINGS, "postings_per_query", digits=0).markdown(results)
        parts.append("\n".join(["### Postings scored per query", "", *table, ""]))
    return parts


def plot(results: Results) -> str | None:
    """The averages of README's table as a chart; None while there is nothing to compare."""
    recorded = [(system, label) for system, label in MAIN if results.has(system)]
    datasets = average_sets([system for system, _ in recorded], results)
    shown = [row for row in recorded if all((row[0], name) in results.rows for name in datasets)]
    if len(shown) < 2 or not datasets:
        return None
    bars = []
    for system, label in shown:
        values = [float(results.rows[system, name]["ndcg@10"]) for name in datasets]
        bars.append(Bar(label, sum(values) / len(values), values, accent=system == "lightretriever-fitted hybrid"))
    return bar_chart(f"nDCG@10: average of {len(datasets)} sets (bars), and each of them (dots)", bars)


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them; returns the exit status."""
    check = wants_check("Write the documentation's tables of results.", arguments)
    return write_or_check(outputs(ROOT), ROOT, "scripts.results", "docs/results/", check=check)


if __name__ == "__main__":
    sys.exit(main())
