"""Write what the documentation says of quality, load and faults, from the result files in docs/results.

    python -m research.pages.results

| page | gets | from |
|---|---|---|
| README.md | short table of fusions, the systems under load | fusion, quality, judged/load |
| docs/speed.md | a search against its floor | floor |
| docs/lab/results.md | every fusion, every system on every set, tests against BM25, objectives | these, reliability |
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import stats

from research.floor.__main__ import alone_table, floor_table
from research.floor.bundles import bundles_table
from research.pages.generated import Part, write
from research.pages.objectives import objectives_table
from research.quality.recorded import MEASURE, PerQuery, Row, read_queries_file, read_rows
from research.record import ROOT
from research.servers.__main__ import load_table

PART: Final = Part("<!-- results: written by research/pages/results.py -->", "<!-- end of results -->")
DATASETS: Final = ("scifact", "vaswani", "cranfield", "cacm", "wikiqa", "trecqa", "race-qa-test")
BASELINE: Final = "bm25"
_ALIKE: Final = 1e-9  # differences this close are one number, rounded differently
_LEVEL: Final = 0.05


def legs(name: str, label: str) -> dict[str, str]:
    """Return the labels of the legs of one bundle, and of both together."""
    return {f"{name} {leg}": f"{label}, {leg}" for leg in ("dense", "sparse", "hybrid")}


SYSTEMS: Final[Mapping[str, str]] = {
    BASELINE: "BM25",
    "wordllama full-dense": "static embeddings (wordllama, 256), dense",
    "wordllama full-hybrid": "static embeddings (wordllama, 256), hybrid",
    "minilm full-dense": "MiniLM-L6 reads each query, dense",
    "minilm full-hybrid": "MiniLM-L6 reads each query, hybrid",
    "mpnet-granite full-dense": "mpnet and granite-30m read each query, dense",
    "mpnet-granite full-hybrid": "mpnet and granite-30m read each query, hybrid",
    "smollm2 full-dense": "SmolLM2-135M reads each query, dense",
    **legs("minilm-general", "MiniLM's general table"),
    "minilm-default hybrid": "the same, by evidence, with feedback (the default)",
    **legs("minilm", "MiniLM's table fitted to the corpus"),
    "minilm-tuned hybrid": "the same, weights by development queries",
    **legs("mpnet-granite-general", "general table of mpnet and granite-30m"),
    "mpnet-granite-general hybrid": "the same, by evidence, with feedback (the default)",
    **legs("mpnet-granite", "fitted table of mpnet and granite-30m"),
    "mpnet-granite-tuned hybrid": "the same, weights by development queries",
    **legs("smollm2-given", "SmolLM2-135M's own table"),
    **legs("smollm2", "SmolLM2-135M's fitted table"),
    "e5-general hybrid": "multilingual-e5-small's general table, hybrid",
}
"""Labels by recorded name, in the table's order. Other recorded systems follow under their own names."""

DEFAULT: Final = "evidence, feedback (default)"
READ: Final = f"the encoder reads each query: {DEFAULT}"

FUSIONS: Final[Mapping[str, str]] = {
    "sparse leg": "the sparse leg alone",
    "range": "both legs, fused by range (the default before)",
    "range, feedback": "by range, with feedback of the first document",
    "evidence": "by evidence",
    DEFAULT: "**by evidence, with feedback (the default)**",
    "the encoder reads each query: range": "the encoder reads each query, by range",
    READ: "the encoder reads each query, by evidence, with feedback",
}
"""Rows of the table of fusions."""

BUNDLES: Final = {"light": "fusion.json", "best": "fusion-best.json"}
"""The two recommended bundles, and the files of their fusions."""

FRONT: Final = {
    ("light", "sparse leg"): "the sparse leg of light alone",
    ("light", DEFAULT): "**light**: MiniLM reads the documents",
    ("best", DEFAULT): "**best**: mpnet and granite-30m read the documents",
    ("light", READ): "MiniLM reads each query too",
    ("best", READ): "mpnet and granite-30m read each query too",
}
"""README's rows: bundle and fusion."""

AVERAGES: Final = {
    "lightretriever": DEFAULT,
    "biencoder": READ,
}
"""The fusions that systems under load have."""


@dataclass(frozen=True)
class Results:
    """The recorded rows by system and dataset, and the nDCG@10 of single queries."""

    rows: Mapping[tuple[str, str], Row]
    queries: PerQuery

    @classmethod
    def read(cls, file: Path) -> "Results":
        """Read a file of results. Raise RecipeError."""
        return cls({(row["system"], row["dataset"]): row for row in read_rows(file)}, read_queries_file(file))

    def values(self, system: str) -> list[float | None]:
        """Return the nDCG@10 on every set of `DATASETS`, None where it is not recorded."""
        rows = [self.rows.get((system, name)) for name in DATASETS]
        return [None if row is None else float(row[MEASURE]) for row in rows]

    def against(self, system: str, baseline: str = BASELINE) -> list[tuple[str, float]]:
        """Return the sets on which a system differs from the baseline beyond chance, with the differences."""
        found = []
        for dataset in DATASETS:
            values = self.queries.get(dataset, {}).get(MEASURE, {})
            if system in values and baseline in values:
                difference, p = paired_test(values[system], values[baseline])
                found += [(dataset, difference)] if p < _LEVEL else []
        return found


def paired_test(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the mean difference ours - theirs, query by query, and p of Student's two-sided paired t-test. Differences
    that are all alike leave no chance to estimate: p is 1 where they are 0, else 0. Raise ValueError for different
    numbers of queries, or fewer than two."""
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(f"a paired test needs two values or more on both sides, found {len(ours)} and {len(theirs)}")
    differences = np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)
    mean = float(differences.mean())
    if np.ptp(differences) < _ALIKE:
        return mean, float(abs(mean) < _ALIKE)
    return mean, float(stats.ttest_1samp(differences, 0.0).pvalue)


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _cells(values: Sequence[float | None]) -> str:
    return " | ".join("–" if value is None else f"{value:.3f}" for value in values)


def fusion_table(fusions: Mapping[str, Any], rows: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the table of some ways to fuse the legs, by bundle and way, each with its label."""
    first = fusions[next(iter(rows))[0]]
    names = [*first["nDCG@10"][DEFAULT]]
    lines = [f"| nDCG@10 | average | {' | '.join(names)} |", f"|---|{'---:|' * (1 + len(names))}"]
    for (bundle, way), label in rows.items():
        row, average = fusions[bundle]["nDCG@10"][way], fusions[bundle]["average"][way]
        lines.append(f"| {label} | {_cells([average, *(row[name] for name in names)])} |")
    origin = first["origin"]
    return [
        *lines,
        "",
        f"Test queries, weights .5 and .5; {origin['machine']}, {origin['date'][:10]}, commit {origin['commit']}.",
    ]


def _all(bundle: str) -> dict[tuple[str, str], str]:
    return {(bundle, way): label for way, label in FUSIONS.items()}


def main_table(results: Results) -> list[str]:
    """Return the table of all systems, with the sets on which each differs from BM25 beyond chance."""
    others = {system for system, dataset in results.rows if dataset in DATASETS} - SYSTEMS.keys()
    lines = [f"| nDCG@10 | {' | '.join(DATASETS)} | average | above BM25 | below BM25 |"]
    lines += [f"|---|{'---:|' * (len(DATASETS) + 2)}---|"]
    for system in [*SYSTEMS, *sorted(others)]:
        values, tests = results.values(system), results.against(system)
        if any(value is not None for value in values):
            below = ", ".join(name for name, difference in tests if difference < 0)
            above = sum(difference > 0 for _, difference in tests)
            cells = _cells([*values, _average(values)])
            lines.append(f"| {SYSTEMS.get(system, system)} | {cells} | {above} | {below or 'none'} |")
    sizes = {dataset: row["queries"] for (_, dataset), row in results.rows.items()}
    counts = ", ".join(f"{name} {sizes[name]:,}" for name in DATASETS if name in sizes)
    return [*lines, "", f"Test queries: {counts}. *Above* and *below*: sets with p < .05, two-sided paired t-test."]


def outputs(root: Path) -> dict[Path, str]:
    """Return every file that this program writes, with its text."""
    folder = root / "docs" / "results"
    results = Results.read(folder / "quality.json")
    load = json.loads((folder / "judged" / "load.json").read_text(encoding="utf-8"))
    objectives = json.loads((folder / "reliability.json").read_text(encoding="utf-8"))
    fusions = {name: json.loads((folder / file).read_text(encoding="utf-8")) for name, file in BUNDLES.items()}
    averages = {system: fusions["light"]["average"][way] for system, way in AVERAGES.items()}
    averages[BASELINE] = _average(results.values(BASELINE))
    pages = {
        root / "README.md": [
            *(*fusion_table(fusions, FRONT), ""),
            *(*load_table(load, averages), "", _measured_on(load)),
        ],
        root / "docs" / "lab" / "results.md": [
            *("## Fusion", "", "The light bundle:", "", *fusion_table(fusions, _all("light")), ""),
            *("The best bundle:", "", *fusion_table(fusions, _all("best")), ""),
            *("## Ranking", "", "Fused by range without feedback, but for the default.", "", *main_table(results), ""),
            *("## Under load", "", "[The front page](../../README.md#results) has the table.", ""),
            *("## Faults", "", *objectives_table(objectives)),
        ],
    }
    floors = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("floor*.json")]
    floors.sort(key=lambda floor: floor["bundle"]["documents"])
    if floors:
        tables = ([*floor_table(floor), "", _floor_measured_on(floor), ""] for floor in floors)
        pages[root / "docs" / "speed.md"] = [line for table in tables for line in table]
        bundles = json.loads((folder / "bundles.json").read_text(encoding="utf-8"))
        pages[root / "docs" / "speed.md"] += [
            *alone_table(floors),
            "",
            *bundles_table(bundles),
            "",
            _floor_measured_on(bundles),
        ]
    texts = {page: "\n".join([*lines, ""]) for page, lines in pages.items()}
    return {page: PART.replaced(page, text) for page, text in texts.items()}


def _floor_measured_on(floor: Mapping[str, Any]) -> str:
    plan, bundle = floor["plan"], floor["bundle"]
    turns = len(next(iter(floor["turns"].values())))
    return (
        f"{bundle['corpus']}, {bundle['documents']:,} documents; medians of {turns} turns of {plan['seconds']:g} s, "
        f"{plan['connections']} connections; {floor['machine']}, {floor['date'][:10]}, commit {floor['commit']}."
    )


def _measured_on(load: Mapping[str, Any]) -> str:
    bundle = load["bundle"]
    return (
        f"{bundle['corpus']}, {bundle['documents']:,} documents, one process each; {load['machine']}, "
        f"{load['date'][:10]}, commit {load['commit']}. A dash: fewer than 100 answers."
    )


if __name__ == "__main__":
    write(outputs(ROOT))
