"""The encoded corpus as a bundle has it: shards joined with the documents, and with BM25. Needs no torch.

WORK/bm25.json        where impacts have BM25 in them, what was counted for it, for documents that come later
WORK/expansion.json   where a token table expands them, what was measured for it
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.batches import EncodedBatch, dense_prefix
from lightretriever.artifacts.bundle.parts import ExpansionInfo
from lightretriever.artifacts.corpus.beir import Corpus, Document
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.shards import ShardStore
from lightretriever.artifacts.files.workdir import read_json, write_atomically
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder, ImpactRow
from lightretriever.artifacts.pipeline.expansion import Expansion
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.idf import TokenStatistics
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = [
    "SPARSE_TOKENIZER",
    "csr",
    "encoded_batches",
    "later_bm25",
    "next_document",
    "no_document_left",
    "terms_tokenizer",
]

SPARSE_TOKENIZER = "sparse_tokenizer.json"
"""In the work directory, the tokenizer of the sparse side where that has another one than the dense side."""

_BM25: Final = "bm25.json"
_SAMPLE: Final = 1000

Expand: TypeAlias = tuple[ExpansionInfo, npt.NDArray[np.float32]]
"""How to expand documents, and by which token table (V, D)."""


def terms_tokenizer(work: Path) -> Path:
    """The file of the tokenizer whose tokens are the terms of the sparse leg."""
    apart = read_json(work / "backbone.json").get("sparse", {}).get("tokenizer")
    return work / (SPARSE_TOKENIZER if apart else "tokenizer.json")


def encoded_batches(work: Path, corpus: Corpus, expand: Expand | None = None) -> Iterator[EncodedBatch]:
    """The shards of a work directory joined with the documents' JSON, id by id.

    BM25 over the tokens of the sparse leg is added to their impacts, or stands in their place, as the encoder was told.
    With `expand`, a token table expands documents with BM25 impacts.
    Raises ResumeError for missing shards or another corpus, and CorpusError for one without a token that BM25 counts.
    """
    store = ShardStore(work / "encode")
    bm25 = _bm25(work, store, corpus)
    expansion = None if expand is None or bm25 is None else _measure(expand, work, store, corpus, bm25)
    for batch, texts in _joined(store, corpus, "index"):
        if bm25 is None:
            yield batch
            continue
        rows = bm25.impacts(texts, learned=_rows(batch) if store.plan["impacts"] == "both" else None)
        if expansion is not None:
            rows = expansion.impacts(dense_prefix(batch, expansion.dimension, first=0), rows)
        yield EncodedBatch(batch.ids, batch.documents, batch.dense, *csr(rows))


def _joined(store: ShardStore, corpus: Corpus, label: str) -> Iterator[tuple[EncodedBatch, list[str]]]:
    """The shards with the documents' JSON, and their texts."""
    documents = iter(corpus)
    with ProgressBar(label, total=store.totals().documents, unit="documents") as progress:
        for shard in store:
            found = [next_document(documents, document_id) for document_id in shard.ids]
            progress.advance(len(found))
            raws, dense = [document.raw for document in found], shard.dense.astype(np.float32)
            batch = EncodedBatch(shard.ids, raws, dense, shard.indptr, shard.terms, shard.impacts)
            yield batch, [document.full_text for document in found]
    no_document_left(documents)


def _measure(expand: Expand, work: Path, store: ShardStore, corpus: Corpus, bm25: Bm25Encoder) -> Expansion:
    """Measure what an expansion needs: the mean of all vectors, and both parts of the impacts on about a thousand
    documents from all over."""
    settings, table = expand
    total, size = store.totals().documents, table.shape[1]
    step, first, mean = -(-total // _SAMPLE), 0, np.zeros(size)
    vectors, texts = list[np.ndarray](), list[str]()
    for batch, found in _joined(store, corpus, "expand"):
        dense = dense_prefix(batch, size, first=first)
        mean += dense.sum(axis=0, dtype=np.float64) / total
        chosen = slice(-first % step, None, step)
        vectors += list(dense[chosen])
        texts += found[chosen]
        first += len(found)
    expansion = Expansion.of(settings, table, mean.astype(np.float32), np.array(vectors), bm25.impacts(texts))
    expansion.save(work, store.documents["corpus_sha256"])
    return expansion


def csr(rows: Sequence[ImpactRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the terms and impacts of n documents as `indptr` (n+1,), `terms` (nnz,) and `impacts` (nnz,)."""
    terms, impacts = zip(*rows, strict=True)
    return np.cumsum([0, *map(len, terms)]), np.concatenate(terms), np.concatenate(impacts)


def later_bm25(work: Path, corpus_sha256: str | None) -> Bm25Encoder | None:
    """BM25 for documents that come after the bundle of a corpus, by what was counted in that; None where impacts have
    no BM25 in them. Raises ResumeError where the work directory was used for another corpus since."""
    plan = ShardStore(work / "encode").plan
    if plan["impacts"] == "learned":
        return None
    counted = read_json(work / _BM25)
    if counted["corpus_sha256"] != corpus_sha256:
        raise ResumeError(
            f"{work / _BM25}: was counted in another corpus than that of the bundle.",
            remedy="Run `lightretriever index` with this recipe again, and push the bundle.",
        )
    frequencies = np.array(counted["frequencies"], np.int64)
    statistics = TokenStatistics(counted["documents"], counted["mean_length"], frequencies)
    return Bm25Encoder(_tokenizer(work), statistics, plan["quantization"], plan["top_k"], plan["bm25_factor"])


def _bm25(work: Path, store: ShardStore, corpus: Corpus) -> Bm25Encoder | None:
    plan = store.plan
    if plan["impacts"] == "learned":
        return None
    texts = (document.full_text for document in corpus)
    bm25 = Bm25Encoder.of(texts, _tokenizer(work), plan["quantization"], plan["top_k"], plan["bm25_factor"])
    counted = {**vars(bm25.statistics), "frequencies": bm25.statistics.frequencies.tolist()}
    counted["corpus_sha256"] = store.documents["corpus_sha256"]
    write_atomically(work / _BM25, json.dumps(counted).encode())
    return bm25


def _tokenizer(work: Path) -> TextTokenizer:
    lowercase = read_json(work / "backbone.json")["lowercase"]
    return TextTokenizer.from_file(terms_tokenizer(work), lowercase=lowercase)


def _rows(batch: EncodedBatch) -> list[ImpactRow]:
    terms, impacts = batch.terms.astype(np.int32, copy=False), batch.impacts.astype(np.uint16, copy=False)
    return [(terms[start:end], impacts[start:end]) for start, end in pairwise(batch.indptr)]


def next_document(documents: Iterator[Document], document_id: str) -> Document:
    """The next document of a corpus, which has the id that the shards have there. Raises ResumeError."""
    document = next(documents, None)
    if document is None or document.id != document_id:
        raise _differ(f'"{document_id}"', "its end" if document is None else f'"{document.id}"')
    return document


def no_document_left(documents: Iterator[Document]) -> None:
    """Read a corpus to its end, bad lines too, so that they are counted. Raises ResumeError for a further document."""
    extra = next(documents, None)
    if extra is not None:
        raise _differ("its end", f'"{extra.id}"')


def _differ(encoded: str, found: str) -> ResumeError:
    return ResumeError(
        f"The encoded shards and the corpus differ: the shards have {encoded} where the corpus has {found}.",
        remedy="Use the --limit and --skip-bad of the `encode` run, or encode again.",
    )
