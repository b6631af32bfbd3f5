"""Write what the documentation says of quality and speed, from the result files in docs/results.

    python -m research.pages.results           write the tables of README and docs/, the tests and the plot
    python -m research.pages.results --check   say whether they are up to date, change nothing

| page | gets | from |
|---|---|---|
| README.md | the short table of quality, the systems under load | quality.json, judged/load.json, speed.json |
| docs/lab/quality.md | tables of quality, the plot, evaluations, tests, and others | quality.json, others |
| docs/speed.md | every ratio with a goal | speed.json |
| docs/lab/measuring.md | all tables of speed | speed, load, users, versions, live, fairness, scaling.json |
| docs/lab/faults.md | what tests/faults measured | reliability.json |
| docs/howto/cluster.md | the service on a cluster and on its own indexes, under load | cluster/load.json |
| docs/lab/scale.md | a shard, a billion documents, what a build takes | scale.json, build.json, build-*.json |

quality.json has one row per system and dataset; result_tables.py says where a system stands, in which order and under
which label, and which pairs are tested, which gives significance.json. A file of docs/results that has no row above is
an `evaluation.json`, and becomes a table of its own.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from research.harness.rows import OBJECTIVES, Goals
from research.pages.charts import Bar, bar_chart
from research.pages.generated import Part, wants_check, write_or_check
from research.pages.growth_tables import build_table, scale_tables, scaling_tables
from research.pages.latency_curves import latency_curves
from research.pages.quality_tables import (
    Results,
    Table,
    average_sets,
    below_table,
    demo_table,
    expansion_size_table,
    expansion_table,
    halves_table,
    kept_table,
    matched_table,
    paired_tests,
    quantisation_table,
    render,
    significance_file,
    significance_table,
    tables_apart,
    tuned_table,
)
from research.pages.result_tables import (
    ABLATIONS,
    CHINESE,
    CHINESE_COMPARISONS,
    CHINESE_DATASETS,
    COMPARISONS,
    DATASETS,
    KEPT,
    MAIN,
    POSTINGS,
    SHORT,
    SHORT_DATASETS,
)
from research.pages.run_tables import fairness_table, live_table, load_table, users_table, versions_tables
from research.pages.speed_tables import goal_table, library_tables, measured_on, speed_table, speed_tables
from research.quality.recorded import MEASURE, read_queries_file, read_rows

__all__ = ["main", "outputs", "render"]

ROOT = Path(__file__).resolve().parents[2]
QUALITY = "quality.json"
SIGNIFICANCE = "significance.json"
CHART = "quality.svg"
SPEED = "speed.json"
VERSIONS = "versions.json"
RELIABILITY = "reliability.json"
LOAD = "load.json"
SCALE = "scale.json"
BUILDS = ("build.json", "build-short.json", "build-large.json")
ENGINES = "engines"
JUDGED = "judged"
CLUSTER = "cluster"
LOADS = {
    ".": "Systems under load",
    ENGINES: "Ready-made engines under load",
    "engines-20k": "All ready-made engines, fewer documents",
    JUDGED: "Ready-made engines with judgments",
}
USERS = "users.json"
LIVE = "live.json"
FAIRNESS = "fairness.json"
CURVES = "users.svg"
SCALING = "scaling.json"
LAB = {
    "tuned.json": tuned_table,
    "expansion.json": expansion_table,
    "expansion-size.json": expansion_size_table,
    "quantisation.json": quantisation_table,
    "halves.json": halves_table,
    "matched.json": matched_table,
    "demo-queries.json": demo_table,
}
"""Files of docs/lab/quality.md, each with a table, in their order."""
OTHERS = {
    QUALITY,
    SIGNIFICANCE,
    SPEED,
    VERSIONS,
    RELIABILITY,
    LOAD,
    SCALE,
    *BUILDS,
    USERS,
    LIVE,
    FAIRNESS,
    SCALING,
    *LAB,
}
"""Files that are no `evaluation.json`."""
PART = Part("<!-- results: written by research/pages/results.py -->", "<!-- end of results -->")
GROWTH = Part("<!-- growth: written by research/pages/results.py -->", "<!-- end of growth -->")


def recorded(folder: Path) -> tuple[Results, Results]:
    """Read quality.json: first with the datasets in the order of the tables, then with the Chinese ones."""
    rows = {(row["system"], row["dataset"]): row for row in read_rows(folder / QUALITY)}
    names = [*DATASETS, *sorted({dataset for _, dataset in rows} - {*DATASETS, *CHINESE_DATASETS})]
    results = Results(rows, read_queries_file(folder / QUALITY), names)
    return results, replace(results, datasets=CHINESE_DATASETS)


def outputs(root: Path) -> dict[Path, str]:
    """Every file this script writes, and what is to stand in it."""
    folder = root / "docs" / "results"
    results, apart = recorded(folder)
    chinese, chinese_tests = tables_apart("Chinese", CHINESE, CHINESE_COMPARISONS, apart)
    reports = [file for file in sorted(folder.glob("*.json")) if file.name not in OTHERS]
    tests = {pair: paired_tests(pair, results) for pair in COMPARISONS}
    chart = plot(results)
    image = [f"![Average nDCG@10 of the systems](results/{CHART})\n"] if chart else []
    pages = {
        root / "README.md": [*short_table(results), *speed_lines(folder)],
        root / "docs" / "lab" / "quality.md": _from_lab(
            *main_tables(results),
            *image,
            *(render(json.loads(file.read_text(encoding="utf-8")), file.name) for file in reports),
            *details(results),
            *below_table(tests, "bm25"),
            *significance_table(tests, results.datasets),
            *chinese,
            *(part for name, table in LAB.items() for part in table(folder / name)),
        ),
        root / "docs" / "speed.md": speed_table(folder / SPEED) or ["Nothing is recorded.\n"],
        root / "docs" / "lab" / "measuring.md": _from_lab(
            *speed_tables(folder / SPEED),
            *library_tables(folder / SPEED),
            *(part for name, title in LOADS.items() for part in under_load(folder, name, title)),
            *users(folder / USERS),
            *versions(folder / VERSIONS),
            *live_table(folder / LIVE),
            *fairness_table(folder / FAIRNESS),
        ),
        root / "docs" / "lab" / "faults.md": _from_lab(*measured(folder / RELIABILITY, OBJECTIVES)),
        root / "docs" / "howto" / "cluster.md": under_load(folder, CLUSTER, "Both engines under load", "../results"),
        root / "docs" / "lab" / "scale.md": _from_lab(
            *scale_tables(folder / SCALE), *(part for name in BUILDS for part in build_table(folder / name))
        ),
    }
    written = {page: PART.replaced(page.read_text(encoding="utf-8"), "\n".join(parts)) for page, parts in pages.items()}
    measuring = root / "docs" / "lab" / "measuring.md"
    written[measuring] = GROWTH.replaced(written[measuring], "".join(scaling_tables(folder / SCALING)))
    if chart:
        written[folder / CHART] = chart
    if (folder / USERS).is_file():
        written[folder / CURVES] = latency_curves(folder / USERS)
    if any(tests.values()):
        written[folder / SIGNIFICANCE] = significance_file({**tests, **chinese_tests})
    return written


def _from_lab(*parts: str) -> list[str]:
    """Parts of a page in docs/lab, whose links to results begin one folder below."""
    return [part.replace("](results/", "](../results/") for part in parts]


def users(file: Path) -> list[str]:
    """The table of locust's users, and the curves below it."""
    table = users_table(file)
    return [*table, f"![Latency over throughput](results/{CURVES})\n"] if table else []


def versions(file: Path) -> list[str]:
    """The section of docs/lab/measuring.md that compares versions of the service."""
    tables = versions_tables(file) or ["Nothing is recorded.", ""]
    source = f"[{file.name}](results/{file.name}), written by `research.speed.versions`." if file.is_file() else ""
    return ["### The house, before and after\n", *tables, *([source, ""] if source else [])]


def measured(file: Path, goals: Goals) -> list[str]:
    """A table of what was measured against its goals, with machine and date."""
    table = goal_table(file, goals)
    if not table:
        return ["Nothing is recorded.\n"]
    rows = [row for row in json.loads(file.read_text(encoding="utf-8"))["rows"] if "goal" in row]
    return ["\n".join([*table, "", f"{measured_on(rows)} [{file.name}](results/{file.name}).", ""])]


def under_load(folder: Path, name: str, title: str, seen: str = "results") -> list[str]:
    """The table of a load test in `folder / name`, with its size, machine and date. `seen`: `folder`, from its page."""
    file = folder / name / LOAD
    table = load_table(file)
    if not table:
        return []
    load = json.loads(file.read_text(encoding="utf-8"))
    facts = f"{load['bundle']['documents']:,} documents, {load['machine']}, {load['date'][:10]}"
    note, page = "A dash: too few answers for a p99.", (Path(seen) / name / "load.md").as_posix()
    return ["\n".join([f"### {title}", "", f"{facts}; [all figures]({page}). {note}", "", *table, ""])]


def short_table(results: Results) -> list[str]:
    """README's table: the average of all datasets, and two of them, of the systems that have all datasets."""
    lines = []
    for system, label, model in SHORT:
        values = [results.value(system, name, MEASURE) for name in DATASETS]
        known = [value for value in values if value is not None]
        if len(known) == len(DATASETS):
            shown = [sum(known) / len(known), *(known[DATASETS.index(name)] for name in SHORT_DATASETS)]
            cells = " | ".join(f"{value:.3f}" for value in shown)
            lines.append(f"| {label} | {'yes' if model else 'no'} | {cells} |")
    if not lines:
        return []
    heads = " | ".join([f"average of {len(DATASETS)} sets", *SHORT_DATASETS])
    return [
        "\n".join(
            [f"| nDCG@10 | model per query | {heads} |", f"|---|---|---:|{'---:|' * len(SHORT_DATASETS)}", *lines, ""]
        )
    ]


def speed_lines(folder: Path) -> list[str]:
    """README's table of speed: every system measured on one judged collection, in one run, and a line of encoding."""
    file = folder / JUDGED / LOAD
    if not file.is_file():
        return []
    load = json.loads(file.read_text(encoding="utf-8"))
    origin = _origin(load["bundle"]["documents"], load)
    facts = f"{load['bundle']['corpus']}, one process each: {origin}. A dash: too few answers for a p99."
    lines = [*load_table(file), "", facts]
    speed = folder / SPEED
    rows = json.loads(speed.read_text(encoding="utf-8"))["rows"] if speed.is_file() else []
    known = {row["key"]: row for row in rows}
    encoding, alone = known.get("encode_65536_s"), known.get("encode_alone_vs_llm")
    if encoding is not None and alone is not None:
        lines += [
            f"Encoding 65,536 queries takes {encoding['value']:.2f} s, {alone['value']:,.0f} times as fast as "
            f"SmolLM2-135M on the same CPU, without tokenising ({_origin(encoding['documents'], encoding)}).",
        ]
    return ["\n".join([*lines, ""])]


def _origin(documents: int, facts: dict[str, Any]) -> str:
    return f"{documents:,} documents, {facts['machine']}, {facts['date'][:10]}, commit {facts['commit']}"


def main_tables(results: Results) -> list[str]:
    """The tables of all systems: nDCG@10 and recall@100."""
    if not any(results.has(system) for system, _ in MAIN):
        return []
    queries = {name: row["queries"] for (_, name), row in results.rows.items()}
    parts = [
        "\n".join([f"### Every system, {title}", "", *Table(MAIN, measure).markdown(results), ""])
        for title, measure in (("nDCG@10", "ndcg@10"), ("Recall@100", "recall@100"))
    ]
    sizes = ", ".join(f"{name} {queries[name]:,}" for name in results.datasets if name in queries)
    note = f"Test queries: {sizes}. The average is over the sets that most rows of the table have; – is not measured."
    return [*parts, f"{note}\n"]


def details(results: Results) -> list[str]:
    """The tables of what is kept, of variants, and of postings."""
    placed = {system for systems in (MAIN, *ABLATIONS.values()) for system, _ in systems}
    known = {system for system, dataset in results.rows if dataset in results.datasets}
    others = [(system, system) for system in sorted(known - placed)]
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
    """The averages of the table of all systems as a chart; None while there is nothing to compare."""
    recorded = [(system, label) for system, label in MAIN if results.has(system)]
    datasets = average_sets([system for system, _ in recorded], results)
    shown = [row for row in recorded if all((row[0], name) in results.rows for name in datasets)]
    if len(shown) < 2 or not datasets:
        return None
    bars = []
    for system, label in shown:
        values = [float(results.rows[system, name]["ndcg@10"]) for name in datasets]
        bars.append(Bar(label, sum(values) / len(values), values, accent=system == "minilm hybrid"))
    return bar_chart(f"nDCG@10: average of {len(datasets)} sets (bars), and each of them (dots)", bars)


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them; returns the exit status."""
    check = wants_check("Write the documentation's tables of results.", arguments)
    return write_or_check(outputs(ROOT), ROOT, "research.pages.results", "docs/results/", check=check)


if __name__ == "__main__":
    sys.exit(main())
