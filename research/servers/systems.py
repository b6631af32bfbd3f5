"""The systems that are compared: descriptions, start commands and requirements."""

import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.pipeline.recipe import is_of_sentence_transformers
from lightretriever.loadtest.process import python
from lightretriever.loadtest.program import BUNDLE, MODEL, option

__all__ = ["INPUTS", "OPENSEARCH_HOME", "System", "systems"]

OPENSEARCH_HOME: Final = "OPENSEARCH_HOME"
"""Environment variable that names the folder of an OpenSearch with `bin/cluster`, which starts and stops nodes."""
INPUTS: Final = (
    BUNDLE,
    *MODEL,
    option("--biencoder", None, "a folder of sentence-transformers"),
    option("--biencoder-bundle", None, "the bundle that it read the documents of", type=Path),
    option("--work", Path("runs/loadtest"), "indexes of other systems"),
)
_VECTORS: Final = "the same dense and sparse vectors, queries by our encoder, behind a thin route"
_ENGINES: Final = {
    "bm25": ("BM25 (Lucene)", "BM25 over the words of the same documents, behind a thin route", None),
    "opensearch": (
        "OpenSearch",
        f"one node, its own hybrid search by RRF over {_VECTORS}",
        ("opensearchpy", "cluster"),
    ),
    "seekdb": ("seekdb", f"two searches by it, fused by RRF, over {_VECTORS}", ("pylibseekdb", "loadtest")),
    "milvus": ("Milvus Lite", f"its own hybrid search by RRF over {_VECTORS}", ("milvus_lite", "loadtest")),
    "lancedb": (
        "LanceDB",
        "its own hybrid search by RRF over the same dense vectors, queries by our encoder, and the words",
        ("lancedb", "loadtest"),
    ),
}
"""By name: label, description, and the package needed with the extra that brings it."""


@dataclass(frozen=True)
class System:
    """A system to start. `prepare`: the command that builds its index first. `missing`: why it can't start, if so."""

    name: str
    label: str
    what: str
    command: list[str]
    prepare: list[str] = field(default_factory=list)
    missing: str | None = None


def systems(given: Namespace) -> Iterator[System]:
    """Yield every system that `INPUTS` describe: the service, models in its query path, other engines."""
    bundle, work, server = str(given.bundle), str(given.work), "lightretriever.loadtest.model_server"
    serve = python("lightretriever.service.cli", "serve", bundle, "--workers")
    what = "this service: token table and Faiss, counts of terms and Lucene, fused"
    yield System("lightretriever", "LightRetriever", what, [*serve, "1"])
    yield System("processes", "LightRetriever, two processes", what, [*serve, "2"])
    command = python(server, bundle, "--model", str(given.model), "--device", given.device)
    for name, value in (("--adapter", given.adapter), ("--bos-token", given.bos_token)):
        command += [name, value] if value else []
    what = "the same service and indexes, queries by the whole model, waiting ones batched"
    yield System("llm", "LLM in the query path", what, command, missing=_no_llm(given.model))
    what = "the same service over the encoder's bundle, dense query vectors by that encoder"
    command = python(server, str(given.biencoder_bundle), "--model", str(given.biencoder), "--device", given.device)
    missing = _no_encoder(given)
    yield System("biencoder", "Bi-encoder in the query path", what, command, missing=missing or _absent("torch"))
    model, what = f"{work}/onnx", f"{what} in int8 on one thread of ONNX Runtime, waiting ones batched"
    command = python("research.servers.onnx", str(given.biencoder_bundle), "--model", model)
    prepare = python("research.models.onnx", str(given.biencoder), model)
    missing = missing or _absent("onnxruntime", "loadtest")
    yield System("onnx", "Bi-encoder in the query path, int8", what, command, prepare, missing)
    for name, (label, what, needs) in _ENGINES.items():
        command = python(f"research.servers.{name}", bundle, "--work", work)
        missing = _absent(*needs) if needs else None
        if name == "opensearch" and not os.environ.get(OPENSEARCH_HOME):
            missing = f"{OPENSEARCH_HOME} names no folder with bin/cluster"
        yield System(name, label, what, command, [*command, "--build"], missing)


def _absent(package: str, extra: str = "pipeline") -> str | None:
    found = find_spec(package) is not None
    return None if found else f"the package {package} is not installed (deploy/install/install {extra})"


def _no_llm(model: str | None) -> str | None:
    if model is None:
        return "no --model was given"
    if is_of_sentence_transformers(model):
        return f"{model} is a bi-encoder (give it as --biencoder)"
    return _absent("torch")


def _no_encoder(given: Namespace) -> str | None:
    if given.biencoder is None or given.biencoder_bundle is None:
        return "no --biencoder with its --biencoder-bundle was given"
    ours, theirs = (Bundle.open(path).manifest.documents for path in (given.bundle, given.biencoder_bundle))
    return None if ours == theirs else f"its bundle has {theirs:,} documents, not {ours:,}"
