"""The systems that the service is compared with: their descriptions, start commands and requirements."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lightretriever.loadtest.process import python
from lightretriever.loadtest.systems import Given, System, not_installed

__all__ = ["OPENSEARCH_HOME", "PEERS", "others"]

OPENSEARCH_HOME: Final = "OPENSEARCH_HOME"
"""Environment variable that names the folder of an OpenSearch with `bin/cluster`, which starts and stops nodes."""
PEERS: Final = ("bm25", "opensearch", "seekdb", "milvus", "lancedb")
"""Ready-made systems over the same documents."""
_PACKAGES: Final = {
    "cluster": ("opensearchpy", "cluster"),
    "opensearch": ("opensearchpy", "cluster"),
    "seekdb": ("pylibseekdb", "loadtest"),
    "milvus": ("milvus_lite", "loadtest"),
    "lancedb": ("lancedb", "loadtest"),
}
_SYSTEMS: Final = {
    "cluster": (
        "LightRetriever on OpenSearch",
        "this service over three nodes of OpenSearch on this machine, three shards with a copy each; memory and "
        "processor time of the service alone are counted",
    ),
    "bm25": (
        "BM25 (Lucene)",
        "BM25 over the words of the same documents in Lucene, behind a thin route of the same HTTP server",
    ),
    "opensearch": (
        "OpenSearch",
        "one node over the same dense and sparse vectors, its own hybrid search by RRF, queries by our encoder, behind "
        "a thin route, whose memory and processor time alone are counted",
    ),
    "seekdb": (
        "seekdb",
        "seekdb over the same dense and sparse vectors, queries by our encoder, behind a thin route",
    ),
    "milvus": (
        "Milvus Lite",
        "its own hybrid search by RRF over the same dense and sparse vectors, queries by our encoder, behind a thin "
        "route",
    ),
    "lancedb": (
        "LanceDB",
        "its own hybrid search by RRF over the same dense vectors, queries by our encoder, and over the words, behind "
        "a thin route",
    ),
}
"""Label and description by name."""


def others(given: Given, work: Path) -> Iterator[System]:
    """Give every system, whose index or model is written below the folder `work`."""
    for name, (label, what) in _SYSTEMS.items():
        command = python(f"research.servers.{name}", str(given.bundle), "--work", str(work))
        prepare, ranks = [*command, "--build"], name in PEERS
        yield System(name, label, what, command, prepare, missing=_missing(name), ranks=ranks)
    encoder, model = Path(given.biencoder or ""), str(work / "onnx")
    what = f"the same service over the bundle of {encoder.name}, dense query vectors by that encoder in int8 on one "
    what += "thread of ONNX Runtime, waiting ones batched"
    command = python("research.servers.onnx", str(given.biencoder_bundle), "--model", model)
    prepare = python("research.models.onnx", str(encoder), model)
    missing = not_installed("onnxruntime", "loadtest")
    if given.biencoder is None or given.biencoder_bundle is None:
        missing = "no --biencoder with its --biencoder-bundle was given"
    yield System("onnx", "Bi-encoder in the query path, int8", what, command, prepare, missing=missing)


def _missing(name: str) -> str | None:
    if name in ("opensearch", "cluster") and not os.environ.get(OPENSEARCH_HOME):
        return f"{OPENSEARCH_HOME} names no folder with bin/cluster"
    return not_installed(*_PACKAGES[name]) if name in _PACKAGES else None
