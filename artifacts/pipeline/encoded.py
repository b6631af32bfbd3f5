"""The encoded corpus as a bundle has it: shards joined with the documents, and with BM25. Needs no torch.

WORK/bm25.json      where impacts have BM25 in them, what was counted for it, for documents that come later
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.corpus.beir import Corpus, Document
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.shards import EncodedShard, ShardStore
from lightretriever.artifacts.files.workdir import read_json, write_atomically
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder, ImpactRow
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


def terms_tokenizer(work: Path) -> Path:
    """The file of the tokenizer whose tokens are the terms of the sparse leg."""
    apart = read_json(work / "backbone.json").get("sparse", {}).get("tokenizer")
    return work / (SPARSE_TOKENIZER if apart else "tokenizer.json")


def encoded_batches(work: Path, corpus: Corpus) -> Iterator[EncodedBatch]:
    """The shards of a work directory joined with the documents' JSON, id by id.

    BM25 over the tokens of the sparse leg is added to their impacts, or stands in their place, as the encoder was told.
    Raises ResumeError for missing shards or another corpus, and CorpusError for one without a token that BM25 counts.
    """
    store = ShardStore(work / "encode")
    bm25 = _bm25(work, store, corpus)
    documents = iter(corpus)
    with ProgressBar("index", total=store.totals().documents, unit="documents") as progress:
        for shard in store:
            found = [next_document(documents, document_id) for document_id in shard.ids]
            progress.advance(len(found))
            raws, dense = [document.raw for document in found], shard.dense.astype(np.float32)
            sparse = (shard.indptr, shard.terms, shard.impacts)
            if bm25 is not None:
                texts = [document.full_text for document in found]
                sparse = csr(bm25.impacts(texts, learned=_learned(shard) if store.plan["impacts"] == "both" else None))
            yield EncodedBatch(shard.ids, raws, dense, *sparse)
    no_document_left(documents)


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


def _learned(shard: EncodedShard) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = [shard.row(number) for number in range(len(shard.ids))]
    return [(row.terms, row.impacts) for row in rows]


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
