"""Write the README's tables of results from the files that `lightretriever evaluate` made.

    python scripts/results.py           rewrite the tables between the two markers in README.md
    python scripts/results.py --check   say whether they are up to date, change nothing

Every `docs/results/*.json` is an `evaluation.json`, and becomes one table.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["main", "render", "replaced"]

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- results: written by scripts/results.py -->"
END = "<!-- end of results -->"
SYSTEMS = {
    "bm25": "BM25 on the words",
    "dense": "dense",
    "sparse": "sparse",
    "hybrid": "hybrid, as served",
    "hybrid-paper": "hybrid, the paper's fusion",
}


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
    for system in sorted(report["metrics"], key=list(SYSTEMS).index):
        values = report["metrics"][system]
        lines.append(f"| {SYSTEMS[system]} | {' | '.join(f'{values[measure]:.3f}' for measure in measures)} |")
    return "\n".join([*lines, ""])


def replaced(readme: str, tables: str) -> str:
    """The text of README.md with `tables` between the markers. Raises ValueError when a marker is missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{tables}{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write the tables, or check them; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the README's tables of results.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 when out of date")
    check = parser.parse_args(arguments).check
    files = sorted((ROOT / "docs" / "results").glob("*.json"))
    tables = "\n".join(render(json.loads(file.read_text(encoding="utf-8")), file.name) for file in files)
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = replaced(old, tables)
    if check and new != old:
        print("README.md: the tables differ from docs/results/; run: python scripts/results.py", file=sys.stderr)
        return 1
    if new != old:
        readme.write_text(new, encoding="utf-8")
        print(f"README.md: {len(files)} tables written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
