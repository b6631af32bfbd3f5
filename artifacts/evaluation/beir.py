"""A benchmark of several test collections, such as BEIR: each evaluated with its own bundle, and the mean over all.

    COLLECTIONS/scifact/            COLLECTIONS/cqadupstack/android/, …/english/, …
    BUNDLES/scifact/                BUNDLES/cqadupstack/android/, …

A folder of collections, as CQADupStack is one of twelve forums, counts as one collection: the mean of its parts.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lightretriever.artifacts.corpus.beir import has_file
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.evaluation.evaluate import REPORT_FILE
from lightretriever.artifacts.files.workdir import write_atomically

__all__ = ["evaluate_all", "is_benchmark"]

Metrics = Mapping[str, Mapping[str, float]]


def is_benchmark(folder: Path) -> bool:
    """True if a folder has no queries itself, but folders below it have."""
    return not has_file(folder, "queries") and next(_collections(folder), None) is not None


def evaluate_all(
    evaluate: Callable[[Path, Path, Path], dict[str, Any]], bundles: Path, collections: Path, output: Path
) -> dict[str, Any]:
    """Evaluate BUNDLES/NAME on COLLECTIONS/NAME to OUTPUT/NAME, for each collection; `evaluate` takes these three.

    Writes and returns the report of OUTPUT/evaluation.json: the measures of each collection by system, and their
    `mean`, over the systems that all of them have. Raises CorpusError where a bundle is missing, before any search.
    """
    names = [path.relative_to(collections) for path in _collections(collections)]
    if missing := [name for name in names if not (bundles / name).is_dir()]:
        raise CorpusError(
            f"{bundles}: no bundle for {', '.join(map(str, missing))}.",
            remedy="Build one of each collection, in a folder of its name, or leave the collection out.",
        )
    reports = {str(name): evaluate(bundles / name, collections / name, output / name) for name in names}
    groups: dict[str, list[Metrics]] = {}
    for name in names:
        groups.setdefault(name.parts[0], []).append(reports[str(name)]["metrics"])
    rows = {name: _mean(parts) for name, parts in groups.items()}
    report: dict[str, Any] = {"collections": rows, "parts": {name: one["metrics"] for name, one in reports.items()}}
    report |= {"mean": _mean(list(rows.values())), "warnings": [w for one in reports.values() for w in one["warnings"]]}
    report |= {name: sum(one[part][name] for one in reports.values()) for part, name in _SUMS}
    write_atomically(output / REPORT_FILE, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())
    return report


_SUMS = (("dataset", "queries"), ("bundle", "documents"))


def _collections(folder: Path) -> Iterator[Path]:
    """The folders below, at most two levels down, that have queries, by name."""
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if has_file(path, "queries"):
            yield path
        else:
            yield from sorted(part for part in path.iterdir() if part.is_dir() and has_file(part, "queries"))


def _mean(several: list[Metrics]) -> dict[str, dict[str, float]]:
    """The mean of each measure, of the systems that are in all."""
    systems = [name for name in several[0] if all(name in one for one in several)]
    return {
        system: {name: float(np.mean([one[system][name] for one in several])) for name in several[0][system]}
        for system in systems
    }
