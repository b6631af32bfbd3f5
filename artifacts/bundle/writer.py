"""Writing a bundle: tokenizer, token tables, IDF, documents and both indexes, then the manifest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.batches import (
    EncodedBatch,
    check_batch,
    check_documents,
    dense_prefix,
    keep_top_terms,
)
from lightretriever.artifacts.bundle.hashes import ids_sha256, list_files
from lightretriever.artifacts.bundle.manifest import (
    CorpusInfo,
    DenseInfo,
    ImpactKind,
    LegWeights,
    LiveInfo,
    Manifest,
    ModelInfo,
    ModelSource,
    SparseInfo,
    TokenizerInfo,
)
from lightretriever.artifacts.bundle.parts import ExpansionInfo, HeadInfo, TaskInfo
from lightretriever.artifacts.bundle.paths import MANIFEST_FILE, head_files, table_file
from lightretriever.artifacts.bundle.query_sample import QuerySample, query_vectors
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.software import generator
from lightretriever.artifacts.bundle.thresholds import with_thresholds
from lightretriever.artifacts.corpus.fields import FieldKind
from lightretriever.artifacts.dense.build import build_dense_index, check_factory, factory_for, write_dense_index
from lightretriever.artifacts.dense.tuning import choose_parameters
from lightretriever.artifacts.errors import BundleError, CorpusError, RecipeError
from lightretriever.artifacts.files.atomic_dir import new_folder
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.sparse.vocabulary import Language, Vocabulary, VocabularyKind
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.head_queries import HeadQueries
from lightretriever.artifacts.tokens.idf import IDF_FILE, save_idf
from lightretriever.artifacts.tokens.table import TableDtype, TokenTable, write_table
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["SparseSettings", "TableInput", "write_bundle"]

_TOKENIZER_FILE = "tokenizer.json"
_SPARSE_TOKENIZER_FILE = "sparse_tokenizer.json"
_DENSE_FILE = "dense.faiss"
_SPARSE_FOLDER = "lucene"
_MOST_QUERIES = 1024


@dataclass(frozen=True)
class TableInput:
    """A token table to be: the task instruction, the rows E[t], shape (V, H), H at least the bundle's D, and the head
    queries that the model read behind the same instruction, if any, with vectors of H values."""

    instruction: str
    rows: npt.NDArray[np.floating]
    head: HeadQueries | None = None


@dataclass(frozen=True)
class SparseSettings:
    """The sparse leg of a bundle to be: what a term is, and what made its impacts. The fields are those of
    `SparseInfo`; `tokenizer_file` makes the tokens, where another model made the impacts than the vectors (None: the
    same tokenizer), and with `idf` (V,) a token of a query weighs count times IDF, else its count."""

    vocabulary: VocabularyKind
    impacts: ImpactKind
    language: Language | None = "english"
    quantization: int = 100
    top_k: int | None = None
    k1: float = 0.9
    b: float = 0.4
    token_factor: float | None = None
    expansion: ExpansionInfo | None = None
    idf: npt.NDArray[np.float32] | None = None
    model: ModelSource | None = None
    tokenizer_file: Path | None = None


@dataclass(frozen=True)
class _Bounds:
    """What documents are checked against and cut to: the number of token ids, D (None: no vectors), and the number of
    terms (None: all)."""

    tokens: int
    dimension: int | None
    top_k: int | None


def write_bundle(
    target: Path,
    *,
    name: str,
    model: ModelInfo,
    corpus: CorpusInfo,
    tokenizer_file: Path,
    lowercase: bool,
    tables: Mapping[str, TableInput],
    default_task: str,
    documents: Iterable[EncodedBatch],
    dimension: int,
    sparse: SparseSettings,
    table_dtype: TableDtype = "float16",
    factory: str | None = None,
    dense: bool = True,
    weights: LegWeights | None = None,
    fields: Mapping[str, FieldKind] | None = None,
    queries: Sequence[str] = (),
    examples: Sequence[str] = (),
    overwrite: bool = False,
    live: LiveInfo | None = None,
) -> Bundle:
    """Write a bundle to the folder `target`, which appears whole or not at all, and open it.

    `dimension` is D: table rows and document vectors are cut to their first D values (Matryoshka), and the latter
    normalised again. `factory` is a Faiss factory string (None: by size); without `dense`, the bundle has no vectors
    and no tables, and searches its sparse leg alone. `documents` is consumed once, batch by batch; `sparse` says what
    their terms and impacts are. `weights` of dense and sparse are for requests that name none (None: the service's).
    `fields` are those to filter and count by. `queries` are a sample of those that will be asked of the default task:
    a large dense index is laid out by them, and its search parameters are chosen by them; by some that the documents
    make where there are none. `examples` are queries to try, which the search page offers. With `overwrite`, an older
    bundle is replaced, and stays in place until the new one is complete. `live` says which changes of a journal are
    among the documents.

    Raises CorpusError for documents that can't be used, RecipeError for settings that don't fit each other,
    BundleError when `target` is in the way, or a table or `idf` holds values that can't be stored.
    """
    _check_settings(tables, default_task, dimension, sparse)
    if factory is not None:
        check_factory(factory, dimension)
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        tokenizer = _write_tokenizer(folder / _TOKENIZER_FILE, tokenizer_file, lowercase=lowercase)
        tasks = {task: TaskInfo(instruction=table.instruction) for task, table in tables.items()}
        if dense:
            tasks = _write_tables(folder, tables, table_dtype, tokenizer.vocab_size, dimension)
        vocabulary, settings = _write_vocabulary(folder, tokenizer, sparse)
        declared, sample = dict(fields or {}), QuerySample()
        spellings = vocabulary.language is not None
        with ImpactIndexWriter(folder / _SPARSE_FOLDER, declared, spellings=spellings) as index:
            bounds = _Bounds(_terms_of(vocabulary), dimension if dense else None, sparse.top_k)
            ids, names = _write_documents(folder, index, sample, documents, bounds)
        made = None
        if dense:
            table = TokenTable.open(folder / _table_file(tasks[default_task]))
            given = query_vectors(table, list(tokenizer.as_queries(_sampled(queries))))
            likely = sample.queries(table, tokenizer, vocabulary.spelt)
            made = _write_dense(folder, len(ids), dimension, factory, given, likely)
            tasks = with_thresholds(folder, tasks, made, tokenizer)
        manifest = Manifest(
            name=name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            generator=generator(),
            model=model,
            corpus=corpus,
            vocab_size=tokenizer.vocab_size,
            dimension=dimension,
            documents=len(ids),
            tokenizer=TokenizerInfo(sha256=tokenizer.sha256, lowercase=lowercase),
            default_task=default_task,
            tasks=tasks,
            dense=made,
            sparse=settings,
            fusion=weights,
            fields=declared,
            field_names=names,
            examples=list(examples),
            live=live,
            ids_sha256=ids_sha256(ids),
            files=list_files(folder),
        )
        with writing(folder / MANIFEST_FILE):
            (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    return Bundle.open(target)


def _check_settings(
    tables: Mapping[str, TableInput], default_task: str, dimension: int, sparse: SparseSettings
) -> None:
    if default_task not in tables:
        raise RecipeError(
            f'The default task "{default_task}" has no token table.', remedy=f"Use one of: {', '.join(tables)}."
        )
    for task, table in tables.items():
        try:
            table_file(task)
        except ValueError as error:
            raise RecipeError(f"{error}.", remedy="Rename the task.") from error
        if table.rows.ndim != 2 or not 1 <= dimension <= table.rows.shape[1]:
            raise RecipeError(
                f'Dimension {dimension} does not fit the table "{task}" of shape {table.rows.shape}.',
                remedy="Choose a dimension from 1 to the model's hidden size.",
            )
    if sparse.top_k is not None and sparse.top_k < 1:
        raise RecipeError(f"top_k is {sparse.top_k}, expected at least 1 (or none, for all terms).")


def _write_tokenizer(file: Path, source: Path, *, lowercase: bool) -> TextTokenizer:
    try:
        content = Path(source).read_bytes()
    except OSError as error:
        raise BundleError(f"{source}: the tokenizer can't be read: {error.strerror}.") from error
    with writing(file):
        file.write_bytes(content)
    return TextTokenizer.from_file(file, lowercase=lowercase)


def _write_tables(
    folder: Path, tables: Mapping[str, TableInput], dtype: TableDtype, vocab_size: int, dimension: int
) -> dict[str, TaskInfo]:
    (folder / "tables").mkdir()
    tasks: dict[str, TaskInfo] = {}
    for task, table in tables.items():
        if len(table.rows) != vocab_size:
            raise BundleError(
                f'The table "{task}" has {len(table.rows)} rows, but the tokenizer has {vocab_size} token ids.',
                remedy="Make the table with this tokenizer.",
            )
        file = table_file(task)
        write_table(folder / file, table.rows[:, :dimension], dtype)
        head = None if table.head is None else _write_head(folder, task, table.head, dimension)
        tasks[task] = TaskInfo(file=file, instruction=table.instruction, dtype=dtype, head=head)
    return tasks


def _write_head(folder: Path, task: str, head: HeadQueries, dimension: int) -> HeadInfo:
    (folder / "heads").mkdir(exist_ok=True)
    sparse = head.sparse is not None
    head.save([folder / file for file in head_files(task, sparse=sparse)], dimension)
    return HeadInfo(queries=len(head), sparse=sparse)


def _write_vocabulary(folder: Path, tokenizer: TextTokenizer, sparse: SparseSettings) -> tuple[Vocabulary, SparseInfo]:
    """Write the sparse leg's own tokenizer and the IDF weights, where there are any; return the vocabulary, and what
    the manifest says of the leg."""
    language = None if sparse.vocabulary == "tokens" else sparse.language
    about: dict[str, Any] = {"vocabulary": sparse.vocabulary, "language": language, "quantization": sparse.quantization}
    about |= {"top_k": sparse.top_k, "impacts": sparse.impacts, "expansion": sparse.expansion}
    about |= {"model": sparse.model, "token_factor": sparse.token_factor}
    if language is not None or sparse.impacts == "bm25":
        about |= {"k1": sparse.k1, "b": sparse.b}
    if sparse.vocabulary == "words":
        return Vocabulary(None, language), SparseInfo(directory=_SPARSE_FOLDER, **about)
    if sparse.tokenizer_file is not None:
        lowercase = tokenizer.lowercase
        tokenizer = _write_tokenizer(folder / _SPARSE_TOKENIZER_FILE, sparse.tokenizer_file, lowercase=lowercase)
        about["tokenizer"] = TokenizerInfo(
            file=_SPARSE_TOKENIZER_FILE, sha256=tokenizer.sha256, lowercase=lowercase, vocab_size=tokenizer.vocab_size
        )
    about |= _write_idf(folder, sparse.idf, tokenizer.vocab_size)
    return Vocabulary(tokenizer, language), SparseInfo(directory=_SPARSE_FOLDER, **about)


def _terms_of(vocabulary: Vocabulary) -> int:
    """The number of token ids, which the terms of documents without names stand for."""
    return 0 if vocabulary.tokenizer is None else vocabulary.tokenizer.vocab_size


def _write_idf(folder: Path, idf: npt.NDArray[np.float32] | None, vocab_size: int) -> dict[str, Any]:
    if idf is None:
        return {"query_weights": "count"}
    if len(idf) != vocab_size:
        raise BundleError(
            f"There are {len(idf)} IDF weights, but the tokenizer has {vocab_size} token ids.",
            remedy="Count them with this tokenizer.",
        )
    save_idf(folder / IDF_FILE, idf)
    return {"query_weights": "idf_count", "idf": IDF_FILE}


def _write_documents(
    folder: Path,
    sparse: ImpactIndexWriter,
    sample: QuerySample,
    documents: Iterable[EncodedBatch],
    bounds: _Bounds,
) -> tuple[list[str], list[str]]:
    """Write the Lucene index, and the raw vectors for `_write_dense`; return the ids in ordinal order, and the names
    of all fields in alphabetical order."""
    ids: dict[str, int] = {}
    names: set[str] = set()
    file = _vectors_file(folder)
    for batch in documents:
        check_batch(batch, vocab_size=bounds.tokens, dimension=bounds.dimension or 0, first=len(ids))
        if bounds.dimension is not None:
            prefix = dense_prefix(batch, bounds.dimension, first=len(ids))
            with writing(file), file.open("ab") as vectors:
                vectors.write(prefix.tobytes())
        for document_id in batch.ids:
            if document_id in ids:
                raise CorpusError(
                    f'The id "{document_id}" is used by the documents {ids[document_id]} and {len(ids)}.',
                    remedy="Give every document its own id.",
                )
            ids[document_id] = len(ids)
        check_documents(batch, names, first=len(ids) - len(batch.ids))
        kept = keep_top_terms(batch, bounds.top_k)
        sample.add(kept)
        sparse.add(kept.ids, kept.documents, kept.indptr, kept.terms, kept.impacts, kept.names)
    if not ids:
        raise CorpusError("There are no documents to write.", remedy="Give a corpus with at least one document.")
    return list(ids), sorted(names)


def _sampled(texts: Sequence[str]) -> list[str]:
    """At most 1,024 of the texts, from all over."""
    return list(texts[:: max(1, -(-len(texts) // _MOST_QUERIES))])


def _write_dense(
    folder: Path,
    count: int,
    dimension: int,
    factory: str | None,
    given: npt.NDArray[np.float32],
    made: npt.NDArray[np.float32],
) -> DenseInfo:
    """Every other `given` query lays out the index, the others choose its parameters. Queries `made` of documents
    choose them where fewer than two were given."""
    raw = _vectors_file(folder)
    vectors = np.memmap(raw, dtype=np.float32, mode="r", shape=(count, dimension))
    factory = factory or factory_for(vectors, given[::2])
    index = build_dense_index(vectors, factory, given[::2])
    write_dense_index(index, folder / _DENSE_FILE)
    parameters, recall = choose_parameters(index, vectors, given[1::2] if len(given) > 1 else made)
    raw.unlink()
    return DenseInfo(file=_DENSE_FILE, factory=factory, parameters=parameters, recall=recall)


def _table_file(task: TaskInfo) -> str:
    """The table's file of a task that has one."""
    if task.file is None:
        raise ValueError("the task has no token table")
    return task.file


def _vectors_file(folder: Path) -> Path:
    return folder / "vectors.partial"
