"""Writing a bundle: what encodes queries, the documents with their impacts and vectors, then the manifest.

The dense leg is laid out and measured by queries: real ones, or made of documents. Unrelated ones, a few words of the
tokenizer's vocabulary drawn at random, set the thresholds of a match, as the scores of their best documents mean
nothing: a document is a weak match from the score that one such query in 20 reaches, a strong one from that of one in
200.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import orjson

from lightretriever.artifacts.bundle.batches import EncodedBatch, check_batch, dense_prefix, keep_top_terms
from lightretriever.artifacts.bundle.manifest import (
    MANIFEST_FILE,
    CorpusInfo,
    DenseInfo,
    FusionInfo,
    HeadInfo,
    LegWeights,
    LiveInfo,
    Manifest,
    MatchThresholds,
    ModelInfo,
    SparseInfo,
    TaskInfo,
    TokenizerInfo,
    check_outside,
    head_files,
    table_file,
)
from lightretriever.artifacts.bundle.reader import Bundle, ids_sha256, list_files
from lightretriever.artifacts.dense.build import build_dense_index, choose_parameters, write_dense_index
from lightretriever.artifacts.dense.index import BACKGROUND_FILE, DenseIndex, background_ordinals
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int32Array
from lightretriever.artifacts.errors import BundleError, CorpusError, RecipeError
from lightretriever.artifacts.files.arrays import write_array
from lightretriever.artifacts.files.atomic import new_folder, writing
from lightretriever.artifacts.reports import generator
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.idf import IDF_FILE, save_idf
from lightretriever.artifacts.tokens.table import HeadQueries, TableDtype, TokenTable, count_each, write_table
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

_TOKENIZER_FILE: Final = "tokenizer.json"
_SPARSE_TOKENIZER_FILE: Final = "sparse_tokenizer.json"
_DENSE_FILE: Final = "dense.faiss"
_VECTORS_FILE: Final = "vectors.partial"
_MAX_QUERIES: Final = 1024


class TableInput(NamedTuple):
    """A token table to be: the task instruction, the rows E[t], shape (V, H), H at least the bundle's D, and the head
    queries that the model read behind the same instruction, if any, with vectors of H values."""

    instruction: str
    rows: FloatArray
    head: HeadQueries | None = None


@dataclass(frozen=True, kw_only=True)
class BundleContent:
    """The content of a bundle to be written.

    `tokenizer_file` makes the tokens of the `tables`, one of each task, whose number type will be `table_dtype`. Table
    rows and document vectors are cut to their first `dimension` values (Matryoshka), and the latter normalised again.
    Without `dense`, the bundle has no vectors and no tables. `queries` are a sample of those that will be asked of the
    default task: a large index is laid out by them, and its search parameters are chosen by them, or by some that the
    documents make where there are none. `documents` is consumed once; `sparse` says what their terms and impacts are,
    and gets its files when they are written: with `idf` (V,) a token of a query weighs count times IDF, and
    `sparse_tokenizer_file` makes the tokens where another model made the impacts than the vectors. Without `weights`,
    those of the service count. The rest is as in `Manifest` and `TokenizerInfo`.
    """

    name: str
    model: ModelInfo
    corpus: CorpusInfo
    tokenizer_file: Path
    lowercase: bool
    tables: Mapping[str, TableInput]
    default_task: str
    documents: Iterable[EncodedBatch]
    dimension: int
    sparse: SparseInfo
    bare: bool = False
    idf: Float32Array | None = None
    sparse_tokenizer_file: Path | None = None
    dense: bool = True
    queries: Sequence[str] = ()
    table_dtype: TableDtype = "float16"
    weights: LegWeights | None = None
    fields: Mapping[str, FieldKind] = field(default_factory=dict)
    examples: Sequence[str] = ()
    live: LiveInfo | None = None


def write_bundle(target: Path, content: BundleContent, *, overwrite: bool = False) -> Bundle:
    """Write a bundle to the folder `target`, which appears whole or not at all, and open it. `overwrite` replaces an
    older one. Raises CorpusError for documents that can't be used, RecipeError for settings that don't fit each other,
    BundleError when `target` is in the way, for a tokenizer that is none, for a table or `idf` of another number of
    token ids, and for values that can't be stored."""
    check_outside(target)
    for task, table_input in content.tables.items():
        if table_input.rows.ndim != 2 or not 1 <= content.dimension <= table_input.rows.shape[1]:
            raise RecipeError(
                f'Dimension {content.dimension} does not fit the table "{task}" of shape {table_input.rows.shape}.',
                remedy="Choose a dimension from 1 to the model's hidden size.",
            )
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        tokenizer = _write_tokenizer(folder / _TOKENIZER_FILE, content.tokenizer_file, lowercase=content.lowercase)
        vocabulary, sparse = _write_terms(folder, content, tokenizer)
        tasks = {task: _write_table(folder, content, task, tokenizer) for task in content.tables}
        ids, names, sample = _write_documents(folder, content, vocabulary)
        dense = None
        if content.dense:
            table = TokenTable.open(folder / table_file(content.default_task))
            sampled = sample.queries(table, tokenizer, vocabulary.spelt)
            dense = _write_dense(folder, content.queries, (len(ids), content.dimension), table, tokenizer, sampled)
            index = DenseIndex.open(folder / dense.file, dense.parameters)
            for task, info in tasks.items():
                match = match_thresholds(index, TokenTable.open(folder / table_file(task)), tokenizer)
                tasks[task] = info.model_copy(update={"match": match})
        manifest = Manifest(
            name=content.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            generator=generator(),
            model=content.model,
            corpus=content.corpus,
            vocab_size=tokenizer.vocab_size,
            dimension=content.dimension,
            documents=len(ids),
            tokenizer=TokenizerInfo(sha256=tokenizer.sha256, lowercase=content.lowercase, bare=content.bare),
            default_task=content.default_task,
            tasks=tasks,
            dense=dense,
            sparse=sparse,
            fusion=None if content.weights is None else FusionInfo(**content.weights.model_dump()),
            fields=dict(content.fields),
            field_names=sorted(names),
            examples=list(content.examples),
            live=content.live,
            ids_sha256=ids_sha256(ids),
            files=list_files(folder),
        )
        with writing(folder / MANIFEST_FILE):
            (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    return Bundle.open(target)


def _write_tokenizer(target: Path, source: Path, *, lowercase: bool) -> TextTokenizer:
    tokenizer = TextTokenizer.from_file(source, lowercase=lowercase)
    with writing(target):
        shutil.copyfile(source, target)
    return tokenizer


def _write_terms(folder: Path, content: BundleContent, tokenizer: TextTokenizer) -> tuple[Vocabulary, SparseInfo]:
    """Write what makes the terms of a query; `tokenizer` is that of the tables."""
    sparse, terms = content.sparse, tokenizer
    if sparse.vocabulary == "words":
        return Vocabulary(None, sparse.language), sparse
    update: dict[str, object] = {"query_weights": "count", "idf": None}
    if (source := content.sparse_tokenizer_file) is not None:
        terms = _write_tokenizer(folder / _SPARSE_TOKENIZER_FILE, source, lowercase=content.lowercase)
        file, size = _SPARSE_TOKENIZER_FILE, terms.vocab_size
        update["tokenizer"] = TokenizerInfo(
            file=file, sha256=terms.sha256, lowercase=content.lowercase, vocab_size=size
        )
    if content.idf is not None:
        if len(content.idf) != terms.vocab_size:
            raise BundleError(
                f"There are {len(content.idf)} IDF weights, but the tokenizer has {terms.vocab_size} token ids.",
                remedy="Count them with this tokenizer.",
            )
        save_idf(folder / IDF_FILE, content.idf)
        update |= {"query_weights": "idf_count", "idf": IDF_FILE}
    return Vocabulary(terms, None), sparse.model_copy(update=update)


def _write_table(folder: Path, content: BundleContent, task: str, tokenizer: TextTokenizer) -> TaskInfo:
    """Write table and head queries of a task; without a dense leg nothing."""
    table, head, file = content.tables[task], None, table_file(task)
    if not content.dense:
        return TaskInfo(instruction=table.instruction)
    if len(table.rows) != tokenizer.vocab_size:
        raise BundleError(
            f'The table "{task}" has {len(table.rows)} rows, but the tokenizer has {tokenizer.vocab_size} token ids.',
            remedy="Make the table with this tokenizer.",
        )
    (folder / "tables").mkdir(exist_ok=True)
    write_table(folder / file, table.rows[:, : content.dimension], content.table_dtype)
    if table.head is not None:
        (folder / "heads").mkdir(exist_ok=True)
        head = HeadInfo(queries=len(table.head))
        table.head.save([folder / name for name in head_files(task)], content.dimension)
    return TaskInfo(file=file, instruction=table.instruction, dtype=content.table_dtype, head=head)


def _write_documents(
    folder: Path, content: BundleContent, vocabulary: Vocabulary
) -> tuple[list[str], set[str], "QuerySample"]:
    """Write the Lucene index, and the raw vectors for `_write_dense`. Return ids, names of all fields, and a sample."""
    tokens = 0 if vocabulary.tokenizer is None else vocabulary.tokenizer.vocab_size
    dimension = content.dimension if content.dense else 0
    ids, names, sample, file = list[str](), set[str](), QuerySample(), folder / _VECTORS_FILE
    lucene, words = folder / content.sparse.directory, content.sparse
    with ImpactIndexWriter(lucene, content.fields, language=words.language, positions=words.positions) as index:
        for batch in content.documents:
            check_batch(batch, tokens)
            if dimension:
                prefix = dense_prefix(batch, dimension, first=len(ids))
                with writing(file), file.open("ab") as vectors:
                    vectors.write(prefix.tobytes())
            records = [orjson.loads(raw) for raw in batch.documents]
            names.update(*records)
            ids += batch.ids
            kept = keep_top_terms(batch, content.sparse.top_k)
            sample.add(kept)
            index.add(kept.ids, kept.documents, kept.indptr, kept.terms, kept.impacts, kept.names, records)
        if not ids:
            raise CorpusError("There are no documents to write.", remedy="Give a corpus with at least one document.")
        try:
            index.close()
        except ValueError as error:
            raise CorpusError(f"{error}.", remedy="Give every document its own id.") from error
    return ids, names, sample


def _write_dense(
    folder: Path,
    queries: Sequence[str],
    shape: tuple[int, int],
    table: TokenTable,
    tokenizer: TextTokenizer,
    sampled: Float32Array,
) -> DenseInfo:
    """Write the Faiss index of raw vectors of this shape. Every other query lays it out, the others choose its
    parameters; where fewer than two are given, those `sampled` (q, D) of documents choose them."""
    queries = queries[:: max(1, -(-len(queries) // _MAX_QUERIES))]  # from all over
    encoded = query_vectors(table, tokenizer.as_queries(queries))
    raw = folder / _VECTORS_FILE
    vectors = np.memmap(raw, dtype=np.float32, mode="r", shape=shape)
    index, factory = build_dense_index(vectors, encoded[::2])
    write_dense_index(index, folder / _DENSE_FILE)
    parameters, recall = choose_parameters(index, vectors, encoded[1::2] if len(encoded) > 1 else sampled)
    write_array(folder / BACKGROUND_FILE, np.array(vectors[background_ordinals(len(vectors))]))
    raw.unlink()
    return DenseInfo(
        file=_DENSE_FILE, factory=factory, parameters=parameters, recall=recall, background=BACKGROUND_FILE
    )


def write_query_bundle(bundle: Bundle, target: Path, *, overwrite: bool = False) -> Bundle:
    """Copy all files but the two indexes into the folder `target`, which appears whole or not at all. The manifest
    stays the same, and so does the version. Raises BundleError when `target` is in the way."""
    check_outside(target)
    part = Bundle(bundle.path, bundle.manifest, indexes=False)
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        for file in [MANIFEST_FILE, *part.files]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / file, folder / file)
    return Bundle.open(target, indexes=False)


_MAX_SAMPLED: Final = 512  # queries
_TERMS: Final = 8  # of a document, for a query


class QuerySample:
    """Queries made of the terms of documents from all over a corpus of unknown length: fewer than 512, every s-th."""

    def __init__(self) -> None:
        self._terms: list[list[str]] = []
        self._stride = 1  # a power of two
        self._count = 0

    def add(self, batch: EncodedBatch) -> None:
        """Add the next documents of the corpus. Of those in the sample, the 8 terms of the largest impact are kept."""
        for row in range(len(batch.ids)):
            self._count += 1
            if (self._count - 1) % self._stride:
                continue
            part = slice(batch.indptr[row], batch.indptr[row + 1])
            best = np.argsort(-batch.impacts[part].astype(np.int64), kind="stable")[:_TERMS]
            terms = batch.terms[part][best].tolist()
            self._terms.append([str(term) if batch.names is None else batch.names[term] for term in terms])
            if len(self._terms) == _MAX_SAMPLED:
                self._terms = self._terms[::2]
                self._stride *= 2

    def queries(self, table: TokenTable, tokenizer: TextTokenizer, spelt: Callable[[str], str]) -> Float32Array:
        """The query vectors, float32 (q, D) of length 1; documents without terms or direction give none. `spelt` gives
        a term as text, of which `tokenizer` makes the table's tokens."""
        return query_vectors(table, tokenizer.as_queries(" ".join(map(spelt, terms)) for terms in self._terms))


def query_vectors(table: TokenTable, queries: Iterable[Int32Array]) -> Float32Array:
    """The vectors of queries, given as token ids (n,), as the service encodes them: float32 (q, D) of length 1. A query
    without tokens, or whose rows add up to zero, gives none."""
    ids = list(queries)
    lengths = np.array([query.size for query in ids], dtype=np.int64)
    bounds, terms, counts = count_each(np.concatenate([np.empty(0, np.int32), *ids]), lengths)
    vectors, norms = table.directions(bounds, terms, counts.astype(np.float32))
    return vectors[norms > 0]


_QUERIES: Final = 1000
_LENGTHS: Final = (2, 4, 6, 8)  # words
_MIN_WORDS: Final = 1000  # a smaller vocabulary was made of the corpus, whose words it would repeat
_QUANTILES: Final = (0.95, 0.995)  # of weak and strong matches
# Whole words of at least three letters. Where a tokenizer has a sign for the space before a word, they begin with it.
_SPACED: Final = re.compile(r"[Ġ▁][^\W\d_]{3,}")
_PLAIN: Final = re.compile(r"[^\W\d_]{3,}")


def match_thresholds(index: DenseIndex, table: TokenTable, tokenizer: TextTokenizer) -> MatchThresholds | None:
    """The thresholds of a task with this table; None if its tokenizer has too few words."""
    vectors = query_vectors(table, unrelated_queries(tokenizer))
    if not len(vectors):
        return None
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        best = np.concatenate(list(threads.map(lambda query: index.search(query, 1)[1], vectors)))  # may find nothing
    if not best.size:
        return None
    weak, strong = np.quantile(best, _QUANTILES).round(4).tolist()
    return MatchThresholds(weak=weak, strong=strong, queries=best.size)


def unrelated_queries(tokenizer: TextTokenizer) -> list[Int32Array]:
    """1,000 queries of 2, 4, 6 and 8 random words, as token ids (n,); none if the tokenizer has fewer than 1,000 words.
    The same tokenizer gives the same queries."""
    spelt = [tokenizer.token(token) for token in range(tokenizer.vocab_size)]
    for pattern in (_SPACED, _PLAIN):
        words = np.array([token for token, text in enumerate(spelt) if pattern.fullmatch(text)], np.int32)
        if len(words) >= _MIN_WORDS:
            random = np.random.default_rng(0)
            return [random.choice(words, _LENGTHS[number % len(_LENGTHS)]) for number in range(_QUERIES)]
    return []
