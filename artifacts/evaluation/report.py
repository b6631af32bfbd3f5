"""The report of an evaluation: as JSON and as a table in the terminal."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.software import generator, package_version
from lightretriever.artifacts.evaluation.runs import MEASURES

_PACKAGES = ("faiss-cpu", "ir-measures", "numpy", "pyserini", "pytrec-eval-terrier", "tokenizers")


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """The facts of a bundle that its results depend on; `digest` stands for every byte of it."""
    manifest = bundle.manifest
    heads = {task: info.head.queries for task, info in manifest.tasks.items() if info.head is not None}
    return {
        "name": manifest.name,
        "digest": manifest.digest,
        "created": manifest.created,
        "model": manifest.model.model_dump(),
        "corpus": manifest.corpus.model_dump(),
        "documents": manifest.documents,
        "dimension": manifest.dimension,
        "vocab_size": manifest.vocab_size,
        "tables": {task: info.dtype for task, info in manifest.tasks.items()},
        "dense": None if manifest.dense is None else manifest.dense.model_dump(),
        "sparse": manifest.sparse.model_dump(),
    } | ({"head_queries": heads} if heads else {})


def environment() -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": generator(),
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in _PACKAGES},
    }


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the warnings, then one line of measures per system."""
    dataset, bundle = report["dataset"], report["bundle"]
    _warn(report, console)
    unjudged = f" ({dataset['queries_without_judgments']:,} unjudged)" if dataset["queries_without_judgments"] else ""
    title = (
        f"{dataset['name']} ({dataset['split']}): {dataset['queries']:,} queries{unjudged}, "
        f"{bundle['documents']:,} documents, task {report['settings']['task']}"
    )
    names = [name for name in MEASURES if all(name in measures for measures in report["metrics"].values())]
    columns = [Column(name, justify="right") for name in names]
    table = Table("system", *columns, title=escape(title))
    for system, measures in report["metrics"].items():
        table.add_row(system, *(f"{measures[name]:.4f}" for name in names))
    console.print(table)


def print_benchmark(report: dict[str, Any], console: Console) -> None:
    """Print nDCG@10 by collection and system, and the mean row."""
    _warn(report, console)
    systems = list(report["mean"])
    table = Table("nDCG@10", *systems)
    rows = [*report["collections"].items(), ("mean", report["mean"])]
    for name, metrics in rows:
        table.add_row(escape(name), *(f"{metrics[system]['nDCG@10']:.4f}" for system in systems))
    console.print(table)


def _warn(report: dict[str, Any], console: Console) -> None:
    for warning in report["warnings"]:
        console.print(f"[bold red]Warning:[/] {escape(warning)}", highlight=False)


def _processor() -> str:
    """The processor's name as Linux knows it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
