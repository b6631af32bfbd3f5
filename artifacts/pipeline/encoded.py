"""The encoded corpus as a bundle has it: shards joined with the documents, and with their terms. Needs no torch.

WORK/bm25.json        what was counted for BM25, for documents that come later
WORK/expansion.json, WORK/word_rows.npy   where a token table expands documents, what was measured and made for it
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.batches import EncodedBatch, dense_prefix
from lightretriever.artifacts.bundle.parts import ExpansionInfo
from lightretriever.artifacts.corpus.beir import Corpus, Document
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.shards import ShardStore
from lightretriever.artifacts.files.workdir import read_json, write_atomically
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder, ImpactRow, strongest
from lightretriever.artifacts.pipeline.expansion import Expansion, word_rows
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = [
    "SPARSE_TOKENIZER",
    "SparseLeg",
    "TermImpacts",
    "csr",
    "encoded_batches",
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


@dataclass(frozen=True)
class SparseLeg:
    """How the terms and impacts of documents are made: their `vocabulary`; whether the impacts of tokens are
    `learned`, else BM25 as those of words, with `quantization` impacts per unit, `k1` and `b`; what those of tokens
    are multiplied by beside words; and how words are expanded, by a table whose tokens are those of `tokenizer`."""

    vocabulary: Vocabulary
    learned: bool
    quantization: int
    k1: float
    b: float
    token_factor: float
    tokenizer: TextTokenizer
    expand: Expand | None

    def bm25_of(self, corpus: Iterable[str], vocabulary: Vocabulary) -> Bm25Encoder:
        """Count a corpus."""
        return Bm25Encoder.of(corpus, vocabulary, quantization=self.quantization, k1=self.k1, b=self.b)


@dataclass(frozen=True)
class TermImpacts:
    """Makes the terms and impacts of documents, as the index of a corpus has them. `words` and `tokens` are their
    BM25, None where the vocabulary lacks them or has learned impacts."""

    leg: SparseLeg
    words: Bm25Encoder | None
    tokens: Bm25Encoder | None
    expansion: Expansion | None

    @classmethod
    def of(cls, leg: SparseLeg, work: Path, store: ShardStore, corpus: Corpus) -> Self:
        """Count the corpus, and keep the counts below `work`. Raises CorpusError for one without a term."""
        words, tokens = _apart(leg.vocabulary)
        made = {
            "words": None if words is None else leg.bm25_of(_texts(corpus), words),
            "tokens": None if tokens is None or leg.learned else leg.bm25_of(_texts(corpus), tokens),
        }
        digest = store.documents["corpus_sha256"]
        counted = {name: bm25 and bm25.counted() for name, bm25 in made.items()}
        write_atomically(work / _BM25, json.dumps({"corpus_sha256": digest, **counted}).encode())
        expansion = None
        if made["words"] is not None and leg.expand is not None:
            expansion = _measure(leg, leg.expand, store, corpus, made["words"])
            expansion.save(work, digest, leg.expand[1])
        return cls(leg, expansion=expansion, **made)

    @classmethod
    def again(cls, leg: SparseLeg, work: Path, corpus_sha256: str | None) -> Self:
        """Those of the bundle of a corpus, for documents that come after it. Raises ResumeError where the work
        directory was used for another corpus or table since."""
        counted = read_json(work / _BM25)
        if counted["corpus_sha256"] != corpus_sha256:
            raise ResumeError(
                f"{work / _BM25}: was counted in another corpus than that of the bundle.",
                remedy="Run `lightretriever index` with this recipe again, and push the bundle.",
            )
        vocabularies = dict(zip(("words", "tokens"), _apart(leg.vocabulary), strict=True))
        made = {
            name: Bm25Encoder.again(counted[name], vocabulary)
            if vocabulary is not None and counted[name] is not None
            else None
            for name, vocabulary in vocabularies.items()
        }
        expansion = None
        if made["words"] is not None and leg.expand is not None:
            expansion = Expansion.read(*leg.expand, made["words"], work, corpus_sha256)
        return cls(leg, expansion=expansion, **made)

    @property
    def names(self) -> Sequence[str] | None:
        """The terms by number, growing; None where a number is a token id."""
        return None if self.words is None else self.words.numbers.names

    def rows(
        self, texts: Sequence[str], dense: npt.NDArray[np.float32], learned: Sequence[ImpactRow]
    ) -> list[ImpactRow]:
        """Terms and impacts of documents with these texts, vectors (n, D) of length 1, and what the model learned."""
        tokens = self._tokens(texts, learned)
        if self.words is None:
            return tokens
        rows = self.words.impacts(texts)
        if self.expansion is not None:
            rows = self.expansion.impacts(dense[:, : self.expansion.dimension], rows)
        if self.leg.vocabulary.kind == "words":
            return rows
        return [self._joined(*pair) for pair in zip(rows, tokens, strict=True)]

    def _tokens(self, texts: Sequence[str], learned: Sequence[ImpactRow]) -> list[ImpactRow]:
        """The impacts of token ids, ascending."""
        if self.tokens is None:
            return list(learned)
        found = []
        for terms, impacts in self.tokens.impacts(texts):
            ids = np.array([int(self.tokens.numbers.names[term]) for term in terms.tolist()], np.int32)
            order = np.argsort(ids)
            found.append((ids[order], impacts[order]))
        return found

    def _joined(self, words: ImpactRow, tokens: ImpactRow) -> ImpactRow:
        """A row of both vocabularies, by the numbers of the words."""
        if self.words is None:
            return tokens
        ids = self.words.numbers.of(map(self.leg.vocabulary.of_token, tokens[0].tolist()))
        terms = np.concatenate([words[0], ids])
        impacts = np.concatenate([words[1], np.maximum(np.round(tokens[1] * self.leg.token_factor), 1)])
        order = np.argsort(terms, kind="stable")
        return strongest(terms[order], impacts[order])


def terms_tokenizer(work: Path) -> Path:
    """The file of the tokenizer whose tokens are the terms of the sparse leg."""
    apart = read_json(work / "backbone.json").get("sparse", {}).get("tokenizer")
    return work / (SPARSE_TOKENIZER if apart else "tokenizer.json")


def encoded_batches(work: Path, corpus: Corpus, leg: SparseLeg) -> Iterator[EncodedBatch]:
    """The shards of a work directory joined with the documents' JSON, id by id, and with their terms.

    Raises ResumeError for missing shards or another corpus, and CorpusError for one without a term that BM25 counts.
    """
    store = ShardStore(work / "encode")
    terms = None
    if not (leg.learned and leg.vocabulary.kind == "tokens"):
        terms = TermImpacts.of(leg, work, store, corpus)
    for batch, texts in _joined(store, corpus, "index"):
        if terms is None:
            yield batch
            continue
        dense = np.asarray(batch.dense, np.float32)
        if terms.expansion is not None:
            dense = dense_prefix(batch, terms.expansion.dimension, first=0)
        rows = terms.rows(texts, dense, _rows(batch))
        yield EncodedBatch(batch.ids, batch.documents, batch.dense, *csr(rows), names=terms.names)


def _apart(vocabulary: Vocabulary) -> tuple[Vocabulary | None, Vocabulary | None]:
    """The words and the tokens of a vocabulary, each with its own terms."""
    words = None if vocabulary.language is None else Vocabulary(None, vocabulary.language)
    return words, None if vocabulary.tokenizer is None else Vocabulary(vocabulary.tokenizer, None)


def _texts(corpus: Corpus) -> Iterator[str]:
    return (document.full_text for document in corpus)


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


def _measure(leg: SparseLeg, expand: Expand, store: ShardStore, corpus: Corpus, bm25: Bm25Encoder) -> Expansion:
    """Measure what an expansion needs: the rows of words, the mean of all vectors, and both parts of the impacts on
    about a thousand documents from all over."""
    settings, table = expand
    rows = word_rows(_texts(corpus), bm25, leg.tokenizer, table)
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
    return Expansion.of(settings, rows, bm25, mean.astype(np.float32), np.array(vectors), bm25.impacts(texts))


def csr(rows: Sequence[ImpactRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the terms and impacts of n documents as `indptr` (n+1,), `terms` (nnz,) and `impacts` (nnz,)."""
    terms, impacts = zip(*rows, strict=True)
    return np.cumsum([0, *map(len, terms)]), np.concatenate(terms), np.concatenate(impacts)


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
