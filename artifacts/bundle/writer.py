"""Writing a bundle: what encodes queries, the documents with their impacts and vectors, then the manifest."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import orjson

from lightretriever.artifacts.bundle.batches import EncodedBatch, check_batch, dense_prefix, keep_top_terms
from lightretriever.artifacts.bundle.checks import ids_sha256, list_files
from lightretriever.artifacts.bundle.manifest import (
    MANIFEST_FILE,
    CorpusInfo,
    DenseInfo,
    FusionInfo,
    HeadInfo,
    LegWeights,
    LiveInfo,
    Manifest,
    ModelInfo,
    SparseInfo,
    TaskInfo,
    TokenizerInfo,
    check_outside,
    head_files,
    table_file,
)
from lightretriever.artifacts.bundle.query_sample import QuerySample, match_thresholds, query_vectors
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.software import generator
from lightretriever.artifacts.dense.build import (
    build_dense_index,
    check_factory,
    choose_parameters,
    factory_for,
    write_dense_index,
)
from lightretriever.artifacts.dense.index import BACKGROUND_FILE, DenseIndex, background_ordinals
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.dtypes import Float32Array, FloatArray
from lightretriever.artifacts.errors import BundleError, CorpusError, RecipeError
from lightretriever.artifacts.files.arrays import write_array
from lightretriever.artifacts.files.atomic import new_folder
from lightretriever.artifacts.files.atomic import writing
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.head_queries import HeadQueries
from lightretriever.artifacts.tokens.idf import IDF_FILE, save_idf
from lightretriever.artifacts.tokens.table import TableDtype, TokenTable, write_table
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


class DenseSettings(NamedTuple):
    """The dense leg of a bundle to be: the Faiss `factory` string (None: by size), and `queries`, a sample of those
    that will be asked of the default task. A large index is laid out by them, and its search parameters are chosen by
    them, or by some that the documents make where there are none."""

    factory: str | None = None
    queries: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class BundleContent:
    """The content of a bundle to be written.

    `tokenizer_file` makes the tokens of the `tables`, one of each task, whose number type will be `table_dtype`.
    `dimension` is D: table rows and document vectors are cut to their first D values (Matryoshka), and the latter
    normalised again. Without `dense`, the bundle has no vectors and no tables, and searches its sparse leg alone.
    `documents` is consumed once, batch by batch; `sparse` says what their terms and impacts are, and gets its files
    when they are written: with `idf` (V,) a token of a query weighs count times IDF, and `sparse_tokenizer_file` makes
    the tokens where another model made the impacts than the vectors. `weights` of dense and sparse are for requests
    that name none (None: the service's). `fields` are those to filter and count by. `examples` are queries to try,
    which the search page offers. `bare` is that of `TokenizerInfo`. `live` says which changes of a journal
    are among the documents.
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
    dense: DenseSettings | None = field(default_factory=DenseSettings)
    table_dtype: TableDtype = "float16"
    weights: LegWeights | None = None
    fields: Mapping[str, FieldKind] = field(default_factory=dict)
    examples: Sequence[str] = ()
    live: LiveInfo | None = None


def write_bundle(target: Path, content: BundleContent, *, overwrite: bool = False) -> Bundle:
    """Write a bundle to the folder `target`, which appears whole or not at all, and open it.

    With `overwrite`, an older bundle is replaced, and stays in place until the new one is complete. Raises CorpusError
    for documents that can't be used, RecipeError for settings that don't fit each other, BundleError when `target` is
    in the way, for a tokenizer that is none, for a table or `idf` of another number of token ids, and for values that
    can't be stored.
    """
    check_outside(target)
    for task, table_input in content.tables.items():
        if table_input.rows.ndim != 2 or not 1 <= content.dimension <= table_input.rows.shape[1]:
            raise RecipeError(
                f'Dimension {content.dimension} does not fit the table "{task}" of shape {table_input.rows.shape}.',
                remedy="Choose a dimension from 1 to the model's hidden size.",
            )
    if content.dense is not None and content.dense.factory is not None:
        check_factory(content.dense.factory, content.dimension)
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        tokenizer = _write_tokenizer(folder / _TOKENIZER_FILE, content.tokenizer_file, lowercase=content.lowercase)
        vocabulary, sparse = _write_terms(folder, content, tokenizer)
        tasks = {task: _write_table(folder, content, task, tokenizer) for task in content.tables}
        ids, names, sample = _write_documents(folder, content, vocabulary)
        dense = None
        if content.dense is not None:
            table = TokenTable.open(folder / table_file(content.default_task))
            sampled = sample.queries(table, tokenizer, vocabulary.spelt)
            dense = _write_dense(folder, content.dense, (len(ids), content.dimension), table, tokenizer, sampled)
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
    if content.dense is None:
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
) -> tuple[list[str], set[str], QuerySample]:
    """Write the Lucene index, and the raw vectors for `_write_dense`. Return ids, names of all fields, and a sample."""
    tokens = 0 if vocabulary.tokenizer is None else vocabulary.tokenizer.vocab_size
    dimension = 0 if content.dense is None else content.dimension
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
    settings: DenseSettings,
    shape: tuple[int, int],
    table: TokenTable,
    tokenizer: TextTokenizer,
    sampled: Float32Array,
) -> DenseInfo:
    """Write the Faiss index of raw vectors of this shape. Every other query lays it out, the others choose its
    parameters; where fewer than two are given, those `sampled` (q, D) of documents choose them."""
    queries = settings.queries[:: max(1, -(-len(settings.queries) // _MAX_QUERIES))]  # from all over
    encoded = query_vectors(table, tokenizer.as_queries(queries))
    raw = folder / _VECTORS_FILE
    vectors = np.memmap(raw, dtype=np.float32, mode="r", shape=shape)
    factory = settings.factory or factory_for(vectors, encoded[::2])
    index = build_dense_index(vectors, factory, encoded[::2])
    write_dense_index(index, folder / _DENSE_FILE)
    parameters, recall = choose_parameters(index, vectors, encoded[1::2] if len(encoded) > 1 else sampled)
    write_array(folder / BACKGROUND_FILE, np.array(vectors[background_ordinals(len(vectors))]))
    raw.unlink()
    return DenseInfo(
        file=_DENSE_FILE, factory=factory, parameters=parameters, recall=recall, background=BACKGROUND_FILE
    )


def write_query_bundle(bundle: Bundle, target: Path, *, overwrite: bool = False) -> Bundle:
    """Copy all files but the two indexes into the folder `target`, which appears whole or not at all.

    The manifest stays the same, and so does the version. Raises BundleError when `target` is in the way.
    """
    check_outside(target)
    part = Bundle(bundle.path, bundle.manifest, indexes=False)
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        for file in [MANIFEST_FILE, *part.files]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / file, folder / file)
    return Bundle.open(target, indexes=False)
