"""Write what the documentation says of quality, from the result files of `lightretriever evaluate`.

    python scripts/results.py           write the tables of README.md and docs/evaluation.md, the tests and the plot
    python scripts/results.py --check   say whether they are up to date, change nothing

docs/results/quality.json has one row per system and dataset. This script decides in which table, in which order and
under which label a system stands (`MAIN`, `ABLATIONS`; one without a place comes last, under its own name), and which
pairs are tested (`COMPARISONS`), which gives significance.json. What speed.json and reliability.json hold against their
goals becomes the tables of docs/speed.md and docs/reliability.md. Every other docs/results/*.json is an
`evaluation.json`, and becomes a table of its own.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.evaluation.plot import Bar, bar_chart
from artifacts.evaluation.quality import read_queries_file, read_rows
from artifacts.evaluation.tables import (
    Results,
    Table,
    average_sets,
    kept_table,
    paired_tests,
    significance_file,
    significance_table,
)
from loadtest.promises import PROMISES
from loadtest.record import GOALS, Goals, goal_table

__all__ = ["main", "outputs", "render", "replaced"]

ROOT = Path(__file__).resolve().parents[1]
QUALITY = "quality.json"
SIGNIFICANCE = "significance.json"
CHART = "quality.svg"
SPEED = "speed.json"
RELIABILITY = "reliability.json"
OTHERS = (QUALITY, SIGNIFICANCE, SPEED, RELIABILITY, "load.json", "scaling.json")
BEGIN = "<!-- results: written by scripts/results.py -->"
END = "<!-- end of results -->"

DATASETS = ("scifact", "vaswani", "cranfield", "cacm", "wikiqa", "trecqa", "race-qa-test")
"""Columns, in order; other datasets that are recorded follow by name."""

Systems = Sequence[tuple[str, str]]


def legs(name: str, label: str, *systems: str) -> list[tuple[str, str]]:
    """Rows for several systems of one recorded name."""
    return [(f"{name} {system}", f"{label}, {system}") for system in systems]


LIGHT = ("dense", "sparse", "hybrid")
MAIN: Systems = [
    ("bm25", "BM25"),
    ("wordllama full-dense", "static embeddings (wordllama, 256)"),
    ("minilm full-dense", "MiniLM-L6, its query encoder"),
    ("minilm full-hybrid", "MiniLM-L6, its query encoder + BM25 impacts"),
    ("mpnet full-dense", "mpnet, its query encoder"),
    ("mpnet full-hybrid", "mpnet, its query encoder + BM25 impacts"),
    ("lightretriever full-dense", "SmolLM2-135M, full query, dense"),
    ("lightretriever full-sparse", "SmolLM2-135M, full query, sparse"),
    ("lightretriever full-hybrid", "SmolLM2-135M, full query, hybrid"),
    *legs("lightretriever", "LightRetriever", *LIGHT),
    *legs("lightretriever-fitted", "LightRetriever, fitted to the corpus", *LIGHT),
    ("mpnet dense", "table distilled from mpnet, dense"),
    ("mpnet hybrid", "table distilled from mpnet + BM25 impacts"),
    ("minilm dense", "table distilled from MiniLM, dense"),
    ("minilm hybrid", "table distilled from MiniLM + BM25 impacts"),
    *legs("lightretriever-all", "LightRetriever, research data too", "full-hybrid", *LIGHT),
]


def training(name: str, base: str) -> Systems:
    """Rows for a trained model and the variants of its training (`scripts/ablations.py`)."""
    variants = {
        "no-kl": "without KL",
        "no-idf": "plain FLOPS, not IDF-aware",
        "no-idf-rows": "table rows not weighted by IDF",
        "no-thresholds": "without term thresholds",
        "no-warmup": "without the query-likelihood warm-up",
        "no-distillation": "without teachers",
        "no-matryoshka": "without Matryoshka",
        "embedding-queries": "query through the embedding layer only (A2)",
    }
    rows = [*legs(name, base, *LIGHT)]
    for variant, label in variants.items():
        rows += legs(f"{name}-{variant}", label, *LIGHT)
    return rows


ABLATIONS: Mapping[str, Systems] = {
    "Training": [*training("lightretriever", "as shipped"), *legs("untrained", "not trained at all", *LIGHT)],
    "Training, short runs": training("short", "all parts"),
    "What is light": [
        ("lightretriever full-dense", "nothing: queries by the whole model, dense"),
        *legs("lightretriever-fitted", "queries, table refined on the corpus", "dense"),
        *legs("lightretriever", "queries, table as the model gives it", "dense"),
        ("light-documents full-dense", "queries and documents, by that table (A1), dense"),
    ],
    "Fitting to the corpus": [
        *legs("lightretriever", "as the training leaves it", *LIGHT),
        *legs("lightretriever-refined", "table refined", "hybrid"),
        *legs("lightretriever-fitted", "table refined, and IDF of the corpus", *LIGHT),
        ("lightretriever full-hybrid", "queries by the whole model, hybrid"),
    ],
    "Dimensions (Matryoshka)": [
        *legs("lightretriever", "all 576", "dense", "hybrid"),
        *(
            row
            for size in (512, 384, 256, 192, 128, 96, 64)
            for row in legs(f"lightretriever-d{size}", str(size), "dense", "hybrid")
        ),
    ],
    "Terms kept per document": [
        *legs("lightretriever", "128, as shipped", "sparse", "hybrid"),
        *(
            row
            for size in (32, 64, 256, 512, "all")
            for row in legs(f"lightretriever-k{size}", str(size), "sparse", "hybrid")
        ),
    ],
    "Fusion": [
        ("lightretriever hybrid", "weights 0.5 / 0.5, as served"),
        ("lightretriever hybrid-paper", "0.7 / 0.3, the paper's normalisation"),
        *((f"lightretriever-w{d / 10} hybrid", f"{d / 10} / {(10 - d) / 10:.1f}") for d in (9, 8, 7, 6, 4, 3, 2, 1)),
        ("lightretriever-rrf hybrid", "reciprocal ranks"),
    ],
}
POSTINGS: Systems = [
    ("lightretriever sparse", "LightRetriever"),
    ("lightretriever-fitted sparse", "IDF of the corpus"),
    ("lightretriever full-sparse", "SmolLM2-135M, full query"),
    ("lightretriever-no-idf sparse", "plain FLOPS, not IDF-aware"),
    ("lightretriever-no-warmup sparse", "without the query-likelihood warm-up"),
    ("short sparse", "LightRetriever, short run"),
    ("short-no-idf sparse", "short run, plain FLOPS"),
    *((f"lightretriever-k{size} sparse", f"{size} terms per document") for size in (32, 64, 256, 512, "all")),
    ("untrained sparse", "not trained at all"),
    ("mpnet sparse", "BM25 impacts on mpnet's tokenizer"),
]
COMPARISONS = [
    ("lightretriever hybrid", "bm25"),
    ("lightretriever hybrid", "lightretriever dense"),
    ("lightretriever hybrid", "lightretriever sparse"),
    ("lightretriever hybrid", "lightretriever full-hybrid"),
    ("lightretriever-fitted hybrid", "bm25"),
    ("lightretriever-fitted hybrid", "lightretriever-fitted dense"),
    ("lightretriever-fitted hybrid", "lightretriever-fitted sparse"),
    ("lightretriever-fitted hybrid", "lightretriever hybrid"),
    ("lightretriever-fitted hybrid", "lightretriever-refined hybrid"),
    ("lightretriever-fitted hybrid", "lightretriever full-hybrid"),
    ("lightretriever-fitted dense", "lightretriever full-dense"),
    ("lightretriever hybrid", "lightretriever hybrid-paper"),
    ("lightretriever hybrid", "lightretriever-no-kl hybrid"),
    ("lightretriever hybrid", "lightretriever-no-warmup hybrid"),
    ("lightretriever hybrid", "lightretriever-no-distillation hybrid"),
    ("lightretriever sparse", "lightretriever-no-idf sparse"),
    ("short sparse", "short-no-idf sparse"),
    ("short hybrid", "short-no-kl hybrid"),
    ("short hybrid", "short-no-warmup hybrid"),
    ("short dense", "short-embedding-queries dense"),
    ("lightretriever hybrid", "mpnet hybrid"),
    ("mpnet dense", "mpnet full-dense"),
    ("mpnet hybrid", "mpnet full-hybrid"),
    ("mpnet hybrid", "bm25"),
    ("minilm dense", "minilm full-dense"),
]
KEPT = [
    *((f"lightretriever {leg}", f"lightretriever full-{leg}") for leg in LIGHT),
    *((f"lightretriever-fitted {leg}", f"lightretriever full-{leg}") for leg in LIGHT),
    *((f"{name} {leg}", f"{name} full-{leg}") for name in ("mpnet", "minilm") for leg in ("dense", "hybrid")),
    ("lightretriever hybrid", "bm25"),
    ("lightretriever-fitted hybrid", "bm25"),
    ("mpnet hybrid", "bm25"),
]
"""Systems, and what they are to come close to, or to beat."""

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


def replaced(page: str, tables: str) -> str:
    """The text of a page with `tables` between the markers. Raises ValueError when a marker is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{tables}{END}{after}"


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
        root / "README.md": [*main_tables(results), *image, *singles],
        root / "docs" / "evaluation.md": [*details(results), *significance_table(tests, names)],
        root / "docs" / "speed.md": measured(folder / SPEED, GOALS),
        root / "docs" / "reliability.md": measured(folder / RELIABILITY, PROMISES),
    }
    written = {page: replaced(page.read_text(encoding="utf-8"), "\n".join(parts)) for page, parts in pages.items()}
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
    content = json.loads(file.read_text(encoding="utf-8"))
    source = f"Measured on {content['machine']}, {content['date'][:10]}; [{file.name}](results/{file.name})."
    return ["\n".join([*table, "", source, ""])]


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
    note = f"Test queries: {sizes}. The average is over the sets that every row of the table has; – is not measured."
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
    shown = [(system, label) for system, label in MAIN if results.has(system)]
    datasets = average_sets([system for system, _ in shown], results)
    if len(shown) < 2 or not datasets:
        return None
    bars = []
    for system, label in shown:
        values = [float(results.rows[system, name]["ndcg@10"]) for name in datasets]
        bars.append(Bar(label, sum(values) / len(values), values, accent=system == "lightretriever-fitted hybrid"))
    return bar_chart(f"nDCG@10: average of {len(datasets)} sets (bars), and each of them (dots)", bars)


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the documentation's tables of results.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 when out of date")
    check = parser.parse_args(arguments).check
    stale = {
        file: text
        for file, text in outputs(ROOT).items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    }
    for file, text in stale.items():
        name = file.relative_to(ROOT)
        if check:
            print(f"{name}: differs from docs/results/; run: python scripts/results.py", file=sys.stderr)
        else:
            file.write_text(text, encoding="utf-8")
            print(f"{name}: written")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
