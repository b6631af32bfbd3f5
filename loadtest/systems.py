"""The systems of a benchmark: the service, and models in its query path."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.pipeline.recipe import is_of_sentence_transformers
from lightretriever.loadtest.process import python

__all__ = ["LLM", "NAMES", "OURS", "PROCESSES", "Given", "System", "not_installed", "systems"]

OURS: Final = "lightretriever"
PROCESSES: Final = "processes"
LLM: Final = "llm"
NAMES: Final = (OURS, PROCESSES, LLM, "biencoder", "static")


@dataclass(frozen=True)
class System:
    """A system to start. `prepare`: the command that builds its index first. `missing`: what it lacks, if it can't
    start. `ranks`: it fuses reciprocal ranks, not scores as the service does by default."""

    name: str
    label: str
    what: str
    command: list[str]
    prepare: list[str] = field(default_factory=list)
    missing: str | None = None
    ranks: bool = False


@dataclass(frozen=True)
class Given:
    """Inputs of a benchmark: the bundle, and what systems with a model need."""

    bundle: Path
    model: str | None = None
    adapter: str | None = None
    bos_token: str | None = None
    device: str = "auto"
    biencoder: str | None = None
    biencoder_bundle: Path | None = None
    static_bundle: Path | None = None


def systems(given: Given) -> Iterator[System]:
    """Give every system in the order of `NAMES`."""
    here, server = given.bundle, "lightretriever.loadtest.model_server"
    what = "this service: token table and Faiss, counts of terms and Lucene, fused"
    yield System(OURS, "LightRetriever", what, _serve(here))
    what = "this service in two processes, which share files and port"
    yield System(PROCESSES, "LightRetriever, two processes", what, [*_serve(here), "--workers", "2"])
    what = "the same service and indexes, queries by the whole model, waiting ones batched"
    command = python(server, str(here), "--model", str(given.model), "--device", given.device)
    for option, value in (("--adapter", given.adapter), ("--bos-token", given.bos_token)):
        command += [option, value] if value else []
    yield System(LLM, "LLM in the query path", what, command, missing=_no_llm(given))
    encoder = Path(given.biencoder or "")
    what = f"the same service over the bundle of {encoder.name}, dense query vectors by that encoder"
    command = python(server, str(given.biencoder_bundle), "--model", str(encoder), "--device", given.device)
    missing: str | None = "no --biencoder with its --biencoder-bundle was given"
    if given.biencoder is not None and given.biencoder_bundle is not None:
        missing = not_installed("torch", "pipeline") or _other_corpus(here, given.biencoder_bundle)
    yield System("biencoder", "Bi-encoder in the query path", what, command, missing=missing)
    what = "this service over a bundle of static embeddings with BM25 impacts: the same code, other numbers"
    missing = "no --static-bundle was given"
    if given.static_bundle is not None:
        missing = _other_corpus(here, given.static_bundle)
    yield System("static", "Static embeddings + BM25", what, _serve(given.static_bundle or Path()), missing=missing)


def not_installed(package: str, extra: str) -> str | None:
    """Say that a package is not installed, and how to install it; None if it is."""
    found = find_spec(package) is not None
    return None if found else f"the package {package} is not installed (deploy/install/install {extra})"


def _no_llm(given: Given) -> str | None:
    if given.model is None:
        return "no --model was given"
    if is_of_sentence_transformers(given.model):
        return f"{given.model} is a bi-encoder (give it as --biencoder)"
    return not_installed("torch", "pipeline")


def _other_corpus(bundle: Path, other: Path) -> str | None:
    ours, theirs = (Bundle.open(path).manifest.documents for path in (bundle, other))
    return None if ours == theirs else f"its bundle has {theirs:,} documents, not {ours:,}"


def _serve(bundle: Path) -> list[str]:
    return python("lightretriever.service.cli", "serve", str(bundle), "--workers", "1")
