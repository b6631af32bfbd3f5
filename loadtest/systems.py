"""The compared systems: their descriptions, start commands and requirements."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.full import QueryModel
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.process import python

__all__ = [
    "CLUSTER",
    "LLM",
    "NAMES",
    "OPENSEARCH_HOME",
    "OURS",
    "PEERS",
    "PROCESSES",
    "Given",
    "LeftOut",
    "System",
    "systems",
]

OPENSEARCH_HOME: Final = "OPENSEARCH_HOME"
"""Environment variable that names the folder of an OpenSearch with `bin/cluster`, which starts and stops nodes."""
OURS: Final = "lightretriever"
PROCESSES: Final = "processes"
CLUSTER: Final = "cluster"
LLM: Final = "llm"
PEERS: Final = ("bm25", "opensearch", "seekdb", "milvus", "lancedb")
"""Ready-made systems over the same documents."""
NAMES: Final = (OURS, PROCESSES, CLUSTER, LLM, "biencoder", "static", *PEERS)
_PACKAGES: Final = {
    CLUSTER: "opensearchpy",
    LLM: "torch",
    "biencoder": "torch",
    "opensearch": "opensearchpy",
    "seekdb": "pylibseekdb",
    "milvus": "milvus_lite",
    "lancedb": "lancedb",
}
_EXTRAS: Final = {"torch": "pipeline", "opensearchpy": "cluster"}


@dataclass(frozen=True)
class System:
    """A system to start. `prepare`: the command that builds its index first."""

    name: str
    label: str
    what: str
    command: list[str]
    prepare: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LeftOut:
    """A system that is not measured, and the reason."""

    name: str
    label: str
    reason: str


@dataclass(frozen=True)
class Given:
    """Inputs of a comparison: the bundle, a folder for the indexes of other systems, and their requirements."""

    bundle: Path
    work: Path
    model: str | None = None
    adapter: str | None = None
    bos_token: str | None = None
    device: str = "auto"
    biencoder: str | None = None
    biencoder_bundle: Path | None = None
    static_bundle: Path | None = None


def systems(given: Given, only: tuple[str, ...] = NAMES) -> Iterator[System | LeftOut]:
    """Give every system in the order of `NAMES`, ready to start or left out. LoadError for an unknown name."""
    unknown = sorted(set(only) - set(NAMES))
    if unknown:
        raise LoadError(f"{', '.join(unknown)}: no such system.", remedy=f"The systems are {', '.join(NAMES)}.")
    for one in _all(given):
        reason = _missing(one.name, given) if one.name in only else "not asked for (--systems)"
        yield one if reason is None else LeftOut(one.name, one.label, reason)


def _all(given: Given) -> Iterator[System]:
    here, model = given.bundle, "lightretriever.loadtest.model_server"
    what = "this service: token table and Faiss, counts of terms and Lucene, fused"
    yield System(OURS, "LightRetriever", what, _serve(here))
    what = "this service in two processes, which share files and port"
    yield System(PROCESSES, "LightRetriever, two processes", what, [*_serve(here), "--workers", "2"])
    what = "this service over three nodes of OpenSearch on this machine, three shards with a copy each"
    what += "; memory and processor time of the service alone are counted"
    yield _other(CLUSTER, "LightRetriever on OpenSearch", what, given)
    what = "the same service and indexes, queries by the whole model, waiting ones batched"
    command = python(model, str(here), "--model", str(given.model), "--device", given.device)
    for option, value in (("--adapter", given.adapter), ("--bos-token", given.bos_token)):
        command += [option, value] if value else []
    yield System(LLM, "LLM in the query path", what, command)
    encoder = Path(given.biencoder or "")
    what = f"the same service over the bundle of {encoder.name}, dense query vectors by that encoder"
    command = python(model, str(given.biencoder_bundle), "--model", str(encoder), "--device", given.device)
    yield System("biencoder", "Bi-encoder in the query path", what, command)
    what = "this service over a bundle of static embeddings with BM25 impacts: the same code, other numbers"
    yield System("static", "Static embeddings + BM25", what, _serve(given.static_bundle or Path()))
    what = "BM25 over the words of the same documents in Lucene, behind a thin route of the same HTTP server"
    yield _other("bm25", "BM25 (Lucene)", what, given)
    what = "one node over the same dense and sparse vectors, its own hybrid search by RRF, queries by our encoder"
    what += ", behind a thin route, whose memory and processor time alone are counted"
    yield _other("opensearch", "OpenSearch", what, given)
    what = "seekdb over the same dense and sparse vectors, queries by our encoder, behind a thin route"
    yield _other("seekdb", "seekdb", what, given)
    what = "its own hybrid search by RRF over the same dense and sparse vectors, queries by our encoder"
    yield _other("milvus", "Milvus Lite", f"{what}, behind a thin route", given)
    what = "its own hybrid search by RRF over the same dense vectors, queries by our encoder, and over the words"
    yield _other("lancedb", "LanceDB", f"{what}, behind a thin route", given)


def _missing(name: str, given: Given) -> str | None:
    """Give the missing requirement of a system, None if there is none."""
    package = _PACKAGES.get(name)
    if name == LLM and given.model is None:
        return "no --model was given"
    if name == "biencoder" and (given.biencoder is None or given.biencoder_bundle is None):
        return "no --biencoder with its --biencoder-bundle was given"
    bundles = {"biencoder": given.biencoder_bundle, "static": given.static_bundle}
    bundle = bundles.get(name)
    if name in bundles and bundle is None:
        return f"no --{name}-bundle was given"
    if name in ("opensearch", CLUSTER) and not os.environ.get(OPENSEARCH_HOME):
        return f"{OPENSEARCH_HOME} names no folder with bin/cluster"
    if package is not None and find_spec(package) is None:
        return f"the package {package} is not installed (deploy/install/install {_EXTRAS.get(package, 'loadtest')})"
    if name == LLM and given.model is not None and QueryModel(given.model).is_biencoder:
        return f"{given.model} is a bi-encoder (give it as --biencoder)"
    if bundle is None:
        return None
    ours, theirs = (Bundle.open(path).manifest.documents for path in (given.bundle, bundle))
    return None if ours == theirs else f"its bundle has {theirs:,} documents, not {ours:,}"


def _other(name: str, label: str, what: str, given: Given) -> System:
    command = python(f"research.servers.{name}", str(given.bundle), "--work", str(given.work))
    return System(name, label, what, command, [*command, "--build"])


def _serve(bundle: Path) -> list[str]:
    return python("lightretriever.service.cli", "serve", str(bundle), "--workers", "1")
