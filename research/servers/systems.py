"""The systems that are compared: descriptions, start commands and requirements."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lightretriever.loadtest.process import python
from lightretriever.loadtest.program import BUNDLE, MODEL, option

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
    "bm25": ("BM25 (Lucene)", "BM25 over the words of the same documents, behind a thin route"),
    "opensearch": ("OpenSearch", f"one node, its own hybrid search by RRF over {_VECTORS}"),
    "milvus": ("Milvus Lite", f"its own hybrid search by RRF over {_VECTORS}"),
    "lancedb": (
        "LanceDB",
        "its own hybrid search by RRF over the same dense vectors, queries by our encoder, and the words",
    ),
}
"""By name: label and description."""


@dataclass(frozen=True)
class System:
    """A system to start. `prepare`: the command that builds its index first. `missing`: the input that wasn't given."""

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
    yield System("llm", "LLM in the query path", what, command, missing=None if given.model else "no --model was given")
    what = "the same service over the encoder's bundle, dense query vectors by that encoder"
    command = python(server, str(given.biencoder_bundle), "--model", str(given.biencoder), "--device", given.device)
    known = given.biencoder is not None and given.biencoder_bundle is not None
    missing = None if known else "no --biencoder with its --biencoder-bundle was given"
    yield System("biencoder", "Bi-encoder in the query path", what, command, missing=missing)
    model, what = f"{work}/onnx", f"{what} in int8 on one thread of ONNX Runtime, waiting ones batched"
    command = python("research.servers.onnx", str(given.biencoder_bundle), "--model", model)
    prepare = python("research.models.onnx", str(given.biencoder), model)
    yield System("onnx", "Bi-encoder in the query path, int8", what, command, prepare, missing)
    for name, (label, what) in _ENGINES.items():
        command = python(f"research.servers.{name}", bundle, "--work", work)
        yield System(name, label, what, command, [*command, "--build"])
