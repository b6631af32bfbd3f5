"""The report of an evaluation: as JSON and as lines for people."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.software import generator, package_version
from lightretriever.artifacts.evaluation.runs import MEASURES
from lightretriever.artifacts.summary import aligned

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


def report_lines(report: dict[str, Any]) -> list[str]:
    """The warnings, then one line of measures per system."""
    dataset, bundle = report["dataset"], report["bundle"]
    unjudged = f" ({dataset['queries_without_judgments']:,} unjudged)" if dataset["queries_without_judgments"] else ""
    title = (
        f"{dataset['name']} ({dataset['split']}): {dataset['queries']:,} queries{unjudged}, "
        f"{bundle['documents']:,} documents, task {report['settings']['task']}"
    )
    names = [name for name in MEASURES if all(name in measures for measures in report["metrics"].values())]
    rows = [[system, *(f"{measures[name]:.4f}" for name in names)] for system, measures in report["metrics"].items()]
    return [*_warnings(report), title, *aligned([["system", *names], *rows])]


def benchmark_lines(report: dict[str, Any]) -> list[str]:
    """The warnings, then nDCG@10 by collection and system, and the mean row."""
    systems = list(report["mean"])
    rows = [
        [name, *(f"{metrics[system]['nDCG@10']:.4f}" for system in systems)]
        for name, metrics in [*report["collections"].items(), ("mean", report["mean"])]
    ]
    return [*_warnings(report), *aligned([["nDCG@10", *systems], *rows])]


def _warnings(report: dict[str, Any]) -> list[str]:
    return [f"warning: {warning}" for warning in report["warnings"]]


def _processor() -> str:
    """The processor's name as Linux knows it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
