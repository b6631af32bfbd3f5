"""The last stage: token tables, encoded shards and corpus become one bundle. Needs no torch."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from artifacts.bundle import Bundle, EncodedBatch, TableInput, write_bundle
from artifacts.corpus import Corpus, Document, Skipped
from artifacts.errors import ResumeError
from artifacts.manifest import CorpusInfo, ModelInfo
from artifacts.progress import ProgressBar
from artifacts.recipe import Recipe
from artifacts.shards import EncodedShard, ShardStore

__all__ = ["build_bundle"]


def build_bundle(recipe: Recipe, *, overwrite: bool = False) -> tuple[Bundle, Skipped]:
    """Write the recipe's bundle from its work directory. Also returns the corpus lines that were skipped.

    Raises ResumeError when a stage before this one is missing, unfinished, or was run on another corpus.
    """
    work = recipe.work
    facts = json.loads(_stage_file(work / "backbone.json", "table").read_text(encoding="utf-8"))
    tables = {
        task: TableInput(
            instruction, np.load(_stage_file(work / "tables" / task / "table.npy", "table"), mmap_mode="r")
        )
        for task, instruction in recipe.tasks.items()
    }
    plan = json.loads(_stage_file(work / "encode" / "plan.json", "encode").read_text(encoding="utf-8"))
    corpus = Corpus(Path(recipe.corpus.path), skip_bad=recipe.corpus.skip_bad, limit=recipe.corpus.limit)
    store = ShardStore(work / "encode", plan)
    store.count()
    if plan["corpus_sha256"] != corpus.sha256():
        raise ResumeError(
            f"{corpus.path}: the corpus has changed since it was encoded "
            f"(sha256 {plan['corpus_sha256'][:12]}… then, {corpus.sha256()[:12]}… now).",
            remedy="Run `encode` again in another work directory.",
        )
    bundle = write_bundle(
        recipe.output,
        name=recipe.name,
        model=ModelInfo(**facts),
        corpus=CorpusInfo(name=recipe.corpus.name, licence=recipe.corpus.licence, sha256=plan["corpus_sha256"]),
        tokenizer_file=_stage_file(work / "tokenizer" / "tokenizer.json", "table"),
        lowercase=recipe.encode.lowercase,
        tables=tables,
        default_task=recipe.default_task,
        documents=_batches(store, corpus),
        dimension=recipe.index.dimension or int(facts["hidden_size"]),
        table_dtype=recipe.index.table_dtype,
        factory=recipe.index.factory,
        top_k=recipe.encode.top_k,
        quantization=int(plan["quantization"]),
        overwrite=overwrite,
    )
    return bundle, corpus.skipped


def _batches(store: ShardStore, corpus: Corpus) -> Iterator[EncodedBatch]:
    """Shards joined with the documents' JSON, id by id."""
    documents = iter(corpus)
    with ProgressBar("index", total=None, unit="documents") as progress:
        for shard in store:
            raws = [_raw(documents, document_id) for document_id in shard.ids]
            progress.advance(len(raws))
            yield _batch(shard, raws)
    extra = next(documents, None)  # also reads bad lines at the end, so that they are counted
    if extra is not None:
        raise ResumeError(
            f'the corpus has "{extra.id}" after the last document that was encoded.',
            remedy="Use the limit and --skip-bad setting of the `encode` run, or encode again.",
        )


def _raw(documents: Iterator[Document], document_id: str) -> bytes:
    document = next(documents, None)
    if document is None or document.id != document_id:
        found = "its end" if document is None else f'"{document.id}"'
        raise ResumeError(
            f'the encoded shards and the corpus differ: "{document_id}" was encoded, the corpus has {found} there.',
            remedy="Use the limit and --skip-bad setting of the `encode` run, or encode again.",
        )
    return document.raw


def _batch(shard: EncodedShard, raws: list[bytes]) -> EncodedBatch:
    return EncodedBatch(
        ids=shard.ids,
        documents=raws,
        dense=shard.dense.astype(np.float32),
        indptr=shard.indptr,
        terms=shard.terms,
        impacts=shard.impacts,
    )


def _stage_file(path: Path, stage: str) -> Path:
    if not path.is_file():
        raise ResumeError(f"{path}: not there.", remedy=f"Run `lightretriever {stage}` with this recipe first.")
    return path
