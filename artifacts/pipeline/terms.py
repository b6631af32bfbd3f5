"""Documents as a bundle has them: what the model made of them, joined with the encoded corpus and its terms.

WORK/bm25.json, WORK/word_rows.npy   what was counted for BM25, and measured and made for the expansion, for documents
                                     that come later
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from lightretriever.artifacts.bundle.batches import EncodedBatch, dense_prefix
from lightretriever.artifacts.bundle.manifest import SparseInfo
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.files.arrays import read_array, write_array
from lightretriever.artifacts.files.workdir import check_same, read_json, write_atomically
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.impacts import Bm25Encoder, Expansion, word_rows
from lightretriever.artifacts.pipeline.rows import ImpactRow, ImpactRows, ModelRows, Rows, TermCounts
from lightretriever.artifacts.pipeline.store import TextStore
from lightretriever.artifacts.reports import ProgressBar
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

SPARSE_TOKENIZER = "sparse_tokenizer.json"
"""In the work directory, the tokenizer of the sparse side where that has another one than the dense side."""

_BM25: Final = "bm25.json"
_WORD_ROWS: Final = "word_rows.npy"
_SAMPLE: Final = 1000


@dataclass(frozen=True)
class SparseLeg:
    """How the terms and impacts of documents are made: as the `info` of a manifest says, with terms of `vocabulary`;
    where words are expanded, by the `table` (V, D) of the tokens of `tokenizer`."""

    info: SparseInfo
    vocabulary: Vocabulary
    tokenizer: TextTokenizer
    table: Float32Array | None = None


@dataclass(frozen=True)
class TermImpacts:
    """Makes the terms and impacts of documents, as the index of a corpus has them: BM25, and the expansion of words."""

    bm25: Bm25Encoder
    expansion: Expansion | None

    @classmethod
    def of(cls, leg: SparseLeg, work: Path, store: TextStore, corpus: EncodedCorpus, counts: TermCounts) -> Self:
        """Those of a corpus whose terms were counted; kept below `work`. The expansion is measured by the mean of all
        vectors, and on about a thousand documents from all over. Raises CorpusError for a corpus without a term."""
        info, expansion = leg.info, None
        bm25 = Bm25Encoder.of(
            counts, leg.vocabulary, quantization=info.quantization, k1=info.k1 or 0.0, b=info.b or 0.0
        )
        kept: dict[str, Any] = {"by": _counted_by(leg, corpus.corpus_sha256, len(corpus)), "counted": bm25.counted()}
        if leg.table is not None and info.expansion is not None:
            rows = word_rows(corpus.texts(), bm25, leg.tokenizer, leg.table)
            step, mean = -(-len(corpus) // _SAMPLE), np.zeros(rows.shape[1])
            vectors, impacts = list[Float32Array](), list[ImpactRow]()
            for first, batch in _batches(store, corpus, "expand"):
                dense = dense_prefix(batch, len(mean), first=first)
                mean += dense.sum(axis=0, dtype=np.float64) / len(corpus)
                sampled = range(-first % step, len(dense), step)
                vectors.append(dense[sampled.start :: step].copy())  # a view would keep the batch
                impacts += [bm25.rows(counts, first + row, first + row + 1)[0] for row in sampled]
            sample = np.concatenate(vectors), ImpactRows.of(impacts)
            expansion = Expansion.of(info.expansion, rows, bm25, mean.astype(np.float32), *sample)
            kept["expansion"] = {"unit": expansion.unit, "mean": expansion.mean.tolist()}
            write_array(work / _WORD_ROWS, expansion.rows)
        write_atomically(work / _BM25, json.dumps(kept).encode())
        return cls(bm25, expansion)

    @classmethod
    def again(cls, leg: SparseLeg, work: Path, corpus_sha256: str | None, documents: int | None) -> Self:
        """The term impacts of a corpus' bundle, for documents that come after it. `documents` is the number of the
        corpus' documents, None where it is not known. Raises ResumeError where the work directory was used for another
        corpus, table or sparse leg since."""
        kept = read_json(work / _BM25)
        before = kept.get("by", {})  # earlier versions did not say
        now = _counted_by(leg, corpus_sha256, before.get("documents") if documents is None else documents)
        check_same(work / _BM25, before, now, "index")
        bm25 = Bm25Encoder.again(kept["counted"], leg.vocabulary)
        if leg.info.expansion is None:
            return cls(bm25, None)
        mean = np.array(kept["expansion"]["mean"], np.float32)
        rows, unit = read_array(work / _WORD_ROWS), kept["expansion"]["unit"]
        return cls(bm25, Expansion(leg.info.expansion, rows, bm25.frequencies, mean, unit))

    def joined(self, batch: EncodedBatch, rows: ImpactRows, names: Sequence[str], *, first: int) -> EncodedBatch:
        """A batch with the terms and impacts of its documents, the `first` one on of all, of which `bm25` found these
        `rows` of the terms `names`."""
        tokens = self.bm25.vocabulary.kind == "tokens"
        if tokens:  # token ids, ascending, in place of numbers
            ids = np.array([int(names[number]) for number in rows.terms.values.tolist()], np.int32)
            order = np.lexsort((ids, np.repeat(np.arange(len(rows)), np.diff(rows.terms.at))))
            rows = ImpactRows(Rows(rows.terms.at, ids[order]), rows.impacts[order])
        elif self.expansion is not None:
            rows = self.expansion.impacts(dense_prefix(batch, self.expansion.rows.shape[1], first=first), rows)
        terms = rows.terms
        return replace(
            batch, indptr=terms.at, terms=terms.values, impacts=rows.impacts, names=None if tokens else names
        )


def terms_tokenizer(work: Path) -> Path:
    """The file of the tokenizer whose tokens are the terms of the sparse leg."""
    apart = read_json(work / "backbone.json").get("sparse", {}).get("tokenizer")
    return work / (SPARSE_TOKENIZER if apart else "tokenizer.json")


def encoded_batch(documents: Sequence[Document], rows: ModelRows) -> EncodedBatch:
    """Documents, with what the models made of them."""
    ids, raws = [document.id for document in documents], [document.raw for document in documents]
    terms = rows.sparse.terms
    return EncodedBatch(ids, raws, rows.dense.astype(np.float32), terms.at, terms.values, rows.sparse.impacts)


def encoded_batches(work: Path, corpus: EncodedCorpus, leg: SparseLeg) -> Iterator[EncodedBatch]:
    """Return the documents in batches: ids, JSON, vectors, and impacts by term.

    Raises ResumeError where documents are not encoded, and CorpusError for one without a term that BM25 counts.
    """
    store = TextStore(work / "encode")
    counts = corpus.terms(leg.vocabulary) if leg.info.impacts == "bm25" else None
    terms = None if counts is None else TermImpacts.of(leg, work, store, corpus, counts)
    for first, batch in _batches(store, corpus, "index"):
        if terms is None or counts is None:
            yield batch
        else:
            rows = terms.bm25.rows(counts, first, first + len(batch.ids))
            yield terms.joined(batch, rows, counts.names, first=first)


def _counted_by(leg: SparseLeg, corpus_sha256: str | None, documents: int | None) -> dict[str, Any]:
    """Everything that decides what is counted for BM25, and measured for the expansion."""
    settings = {name: getattr(leg.info, name) for name in ("vocabulary", "language", "quantization", "k1", "b")}
    table = None if leg.table is None else sha256(leg.table.tobytes()).hexdigest()
    return {"corpus_sha256": corpus_sha256, "documents": documents, "table_sha256": table, **settings}


def _batches(store: TextStore, corpus: EncodedCorpus, label: str) -> Iterator[tuple[int, EncodedBatch]]:
    """The place of each batch's first document, and the batch, with a progress bar."""
    with ProgressBar(label, total=len(corpus), unit="documents") as progress:
        for first in range(0, len(corpus), size := store.plan["shard_size"]):
            rows = store.rows(corpus.digests[first : first + size])
            progress.advance(len(rows))
            yield first, encoded_batch(corpus.documents(first, first + len(rows)), rows)
