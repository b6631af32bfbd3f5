"""The systems that are compared: what each is, the one command that starts it, and what it needs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.full import QueryModel
from lightretriever.loadtest.process import python
from lightretriever.loadtest.servers.documents import folder_of
from lightretriever.loadtest.wire import Form, LoadError, anserini_form, search_form

__all__ = ["LLM", "NAMES", "OURS", "PROCESSES", "Given", "LeftOut", "System", "systems"]

OURS: Final = "lightretriever"
PROCESSES: Final = "processes"
LLM: Final = "llm"
NAMES: Final = (OURS, PROCESSES, LLM, "biencoder", "bm25", "anserini", "static", "milvus", "seekdb")
_NEEDS_PIPELINE: Final = "model software is not installed (scripts/install pipeline)"


@dataclass(frozen=True)
class System:
    """A system to start. `prepare`: the command that makes its index first. `posts`: it takes `POST /search`, as
    locust's users send it."""

    name: str
    label: str
    what: str
    command: list[str]
    prepare: list[str] = field(default_factory=list)
    form: Form = search_form
    posts: bool = True


@dataclass(frozen=True)
class LeftOut:
    """A system that is not measured, and why."""

    name: str
    label: str
    reason: str


@dataclass(frozen=True)
class Given:
    """What a comparison is given: the bundle, a folder for the indexes of others, and what some systems need."""

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
    """Every system in the order of `NAMES`, ready to start or left out. LoadError for a name that is none."""
    unknown = sorted(set(only) - set(NAMES))
    if unknown:
        raise LoadError(f"{', '.join(unknown)}: no such system.", remedy=f"The systems are {', '.join(NAMES)}.")
    makers = (_ours, _processes, _language_model, _biencoder, _bm25, _anserini, _static, _milvus, _seekdb)
    for made in (maker(given) for maker in makers):
        yield made if made.name in only else LeftOut(made.name, made.label, "not asked for (--systems)")


def _ours(given: Given) -> System | LeftOut:
    what = "this service: token table and Faiss, token counts and Lucene, fused"
    return System(OURS, "LightRetriever", what, _serve(given.bundle))


def _processes(given: Given) -> System | LeftOut:
    what = "this service in two processes, which share files and port"
    return System(PROCESSES, "LightRetriever, two processes", what, [*_serve(given.bundle), "--workers", "2"])


def _language_model(given: Given) -> System | LeftOut:
    label = "LLM in the query path"
    if given.model is None:
        return LeftOut(LLM, label, "no --model was given")
    if find_spec("torch") is None:
        return LeftOut(LLM, label, _NEEDS_PIPELINE)
    if QueryModel(given.model).is_biencoder:
        return LeftOut(LLM, label, f"{given.model} is a bi-encoder (give it as --biencoder)")
    command = python(
        "lightretriever.loadtest.servers.model", str(given.bundle), "--model", given.model, "--device", given.device
    )
    for option, value in (("--adapter", given.adapter), ("--bos-token", given.bos_token)):
        command += [option, value] if value else []
    what = "the same service and indexes, both query vectors by the whole model, waiting queries batched"
    return System(LLM, label, what, command)


def _biencoder(given: Given) -> System | LeftOut:
    name, label = "biencoder", "Bi-encoder in the query path"
    if given.biencoder is None or given.biencoder_bundle is None:
        return LeftOut(name, label, "no --biencoder with its --biencoder-bundle was given")
    if find_spec("torch") is None:
        return LeftOut(name, label, _NEEDS_PIPELINE)
    if other := _other_documents(given, given.biencoder_bundle):
        return LeftOut(name, label, other)
    command = python("lightretriever.loadtest.servers.model", str(given.biencoder_bundle), "--model", given.biencoder)
    what = f"the same service over the bundle of {Path(given.biencoder).name}, dense query vectors by that encoder"
    return System(name, label, what, [*command, "--device", given.device])


def _bm25(given: Given) -> System | LeftOut:
    what = "BM25 over the words of the same documents in Lucene, behind a thin route of the same HTTP server"
    command = _other("bm25", given)
    return System("bm25", "BM25 (Lucene)", what, command, [*command, "--build"])


def _anserini(given: Given) -> System | LeftOut:
    what = "Anserini's own REST server over the same index as BM25; answers without documents"
    index = folder_of(given.work, Bundle.open(given.bundle), "words").absolute()
    return System(
        "anserini",
        "BM25 (Anserini REST)",
        what,
        _other("anserini", given),
        [*_other("bm25", given), "--build"],
        form=anserini_form(str(index)),
        posts=False,
    )


def _static(given: Given) -> System | LeftOut:
    name, label = "static", "Static embeddings + BM25"
    if given.static_bundle is None:
        return LeftOut(name, label, "no --static-bundle was given")
    if other := _other_documents(given, given.static_bundle):
        return LeftOut(name, label, other)
    what = "this service over a bundle of static embeddings with BM25 impacts: the same code, other numbers"
    return System(name, label, what, _serve(given.static_bundle))


def _milvus(given: Given) -> System | LeftOut:
    return _engine("milvus", "Milvus Lite", "milvus_lite", given)


def _seekdb(given: Given) -> System | LeftOut:
    return _engine("seekdb", "seekdb", "pylibseekdb", given)


def _engine(name: str, label: str, package: str, given: Given) -> System | LeftOut:
    if find_spec(package) is None:
        return LeftOut(name, label, f"the package {package} is not installed (scripts/install loadtest)")
    what = f"{label} over the same dense and sparse vectors, queries by our encoder, behind a thin route"
    command = _other(name, given)
    return System(name, label, what, command, [*command, "--build"])


def _other_documents(given: Given, bundle: Path) -> str | None:
    """Why a bundle can't be compared with the one that is given: it has not as many documents."""
    ours, theirs = (Bundle.open(path).manifest.documents for path in (given.bundle, bundle))
    return None if ours == theirs else f"its bundle has {theirs:,} documents, not {ours:,}"


def _other(module: str, given: Given) -> list[str]:
    return python(f"lightretriever.loadtest.servers.{module}", str(given.bundle), "--work", str(given.work))


def _serve(bundle: Path) -> list[str]:
    return python("lightretriever.service.cli", "serve", str(bundle))
