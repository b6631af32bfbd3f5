"""The summaries of the commands that build a bundle."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from lightretriever.artifacts.bundle.manifest import Manifest, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import Problem
from lightretriever.artifacts.cli.summary import (
    AgreementInfo,
    BundleSummary,
    EncodeSummary,
    ProblemInfo,
    TableInfo,
    TablesSummary,
    VerifySummary,
    folder_size,
)
from lightretriever.artifacts.corpus.beir import Skipped
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.workdir import read_json
from lightretriever.artifacts.pipeline.build import refined_folder, work_head_files
from lightretriever.artifacts.pipeline.encoded import TextStore
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.tokens.tokenizer import document_text

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.encode import Encoding

__all__ = [
    "bundle_summary",
    "encode_summary",
    "kilobytes_listed",
    "next_stage",
    "tables_summary",
    "verify_summary",
]


_SAMPLE: Final = 512


def tables_summary(
    command: Literal["table", "distil-table", "refine"], recipe: Recipe, tables: Mapping[str, Path]
) -> TablesSummary:
    """Of token tables, by task, and of their training where they were trained."""
    made = {task: _table(file) for task, file in tables.items()}
    for task, table in made.items() if recipe.head is not None else ():
        _, vectors = work_head_files(recipe, task, sparse=False)
        if vectors.is_file():
            table.head_queries = len(np.load(vectors, mmap_mode="r"))
    return TablesSummary(command=command, path=str(recipe.work / "tables"), tables=made)


def encode_summary(encoding: "Encoding") -> EncodeSummary:
    """Of an encoded corpus, or of the part of it that was encoded."""
    store = encoding.store
    rows = store.rows(store.find(store.texts[encoding.documents]))
    return EncodeSummary(
        command="encode",
        path=str(store.path),
        documents=len(rows),
        **encoding.counts._asdict(),
        skipped=encoding.skipped.count,
        doubtful=encoding.doubtful,
        cut=int(rows.cut.sum()),
        terms=len(rows.impacts),
        dimension=store.plan["dimension"],
        shards=len(np.unique(encoding.documents // store.plan["shard_size"])),
        bytes=folder_size(store.path)[1],
    )


def bundle_summary(command: Literal["index", "build"], bundle: Bundle, skipped: Skipped) -> BundleSummary:
    """Of a bundle that was written; its manifest is not counted among the files."""
    manifest = bundle.manifest
    terms, added = _terms(bundle)
    return BundleSummary(
        command=command,
        path=str(bundle.path),
        name=manifest.name,
        version=manifest.digest,
        documents=manifest.documents,
        skipped=skipped.count,
        cut=manifest.corpus.cut,
        dimension=None if manifest.dense is None else manifest.dimension,
        vocabulary=manifest.sparse.vocabulary,
        language=manifest.sparse.language,
        terms=terms,
        added=added,
        tokens=manifest.vocab_size,
        tasks=list(manifest.tasks),
        files=len(manifest.files),
        bytes=sum(file.bytes for file in manifest.files.values()),
    )


def _terms(bundle: Bundle) -> tuple[float, float]:
    """Terms a document has on average, and the share of them that is not in its text: of documents from the middle."""
    vocabulary = bundle.vocabulary(bundle.tokenizer())
    with bundle.sparse() as index:
        first = max(0, (index.count - _SAMPLE) // 2)
        ordinals = np.arange(first, min(first + _SAMPLE, index.count))
        indptr, names, terms, _ = index.rows(first, first + ordinals.size)
        documents = map(json.loads, index.documents(ordinals))
        texts = [document_text(one.get("title") or "", one.get("text") or "") for one in documents]
    own = 0
    for (start, end), found in zip(pairwise(indptr.tolist()), vocabulary.terms_of(texts), strict=True):
        own += len(set(found).intersection(names[term] for term in terms[start:end].tolist()))
    return round(terms.size / ordinals.size, 1), round(1 - own / terms.size if terms.size else 0.0, 4)


def verify_summary(bundle: Path, problems: list[Problem]) -> VerifySummary:
    """Of what `verify_bundle` found."""
    manifest = _manifest(bundle)
    return VerifySummary(
        command="verify",
        path=str(bundle),
        sound=not problems,
        problems=[ProblemInfo.model_validate(vars(problem)) for problem in problems],
        documents=None if manifest is None else manifest.documents,
        files=None if manifest is None else len(manifest.files),
        bytes=None if manifest is None else sum(file.bytes for file in manifest.files.values()),
    )


def kilobytes_listed(bundle: Path) -> int:
    """Size of the files that a bundle's manifest lists, each in whole kilobytes; 0 where it can't be read."""
    manifest = _manifest(bundle)
    return 0 if manifest is None else sum(file.bytes // 1000 for file in manifest.files.values())


def next_stage(recipe: Recipe) -> str:
    """The command of the first stage that is not done; `index`, where only the bundle is missing."""
    work = recipe.work
    files = [work / "tables" / task / "table.npy" for task in recipe.tasks]
    if recipe.head is not None:
        files += [work_head_files(recipe, task, sparse=False)[1] for task in recipe.tasks]
    if not all(file.is_file() for file in files):
        return "distil-table" if recipe.biencoder else "table"
    if not (work / "encode" / "corpus.json").is_file():
        return "encode"
    documents = TextStore(work / "encode").documents
    if recipe.refine is None:
        fitted = all(_fitted(work / "tables" / task, documents) for task in recipe.tasks)
        return "index" if fitted else "distil-table"
    return "index" if all(_fitted(refined_folder(recipe, task), documents) for task in recipe.tasks) else "refine"


def _fitted(folder: Path, documents: object) -> bool:
    """Whether a table is there, and was fitted to these documents or to none."""
    return (folder / "table.npy").is_file() and read_json(folder / "plan.json").get("documents", documents) == documents


def _manifest(bundle: Path) -> Manifest | None:
    try:
        return read_manifest(bundle)
    except BundleError:
        return None


def _table(file: Path) -> TableInfo:
    rows, dimension = np.load(file, mmap_mode="r").shape
    training, agreement = file.with_name("training.json"), None
    if training.is_file():
        record = read_json(training)
        first, best = (record["epochs"][epoch] for epoch in (0, record["best_epoch"]))
        agreement = AgreementInfo(
            epoch=record["best_epoch"],
            epochs=len(record["epochs"]) - 1,
            cosine=(first["cosine"], best["cosine"]),
            overlap=(first["overlap"], best["overlap"]),
            general=(general["cosine"], general["overlap"]) if (general := record.get("general")) else None,
        )
    return TableInfo(path=str(file), rows=rows, dimension=dimension, bytes=file.stat().st_size, agreement=agreement)
