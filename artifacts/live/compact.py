"""A bundle of a bundle's documents and of those in a journal. No document is encoded again."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import LiveInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import BundleContent, TableInput, write_bundle
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.live.journal import Journal, Record
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import numbered

_READ: Final = 4096  # documents read from the indexes at a time


def compact(
    bundle: Bundle,
    folder: Path,
    target: Path,
    *,
    queries: Sequence[str] = (),
    overwrite: bool = False,
    done: Callable[[int], object] = int,
) -> tuple[Bundle, LiveInfo]:
    """Write a bundle of all documents that a bundle and the journal in a folder have now: those of the bundle first, in
    its order, then later ones, in the order of their last change. Return it, and its last change; later ones stay in
    the journal. `queries` lay out a large dense index, as in `write_bundle`; `done` is told numbers of documents.
    Raises JournalError, and what `write_bundle` raises."""
    with Journal(folder, bundle.manifest, begin=False) as journal:
        changed: dict[str, Record] = {}
        for record in journal.read():
            changed.pop(record.id, None)
            changed[record.id] = record
        live = LiveInfo(journal=journal.identity(), position=journal.sequence)
    with bundle.sparse() as sparse:
        dense = None if bundle.manifest.dense is None else bundle.dense()
        kept = sparse.count - int((sparse.ordinals(list(changed)) >= 0).sum())
        if not kept + sum(record.raw is not None for record in changed.values()):
            what = f"{folder}: all documents are deleted, and a bundle has at least one."
            raise JournalError(what, remedy="Write a document before, or build a bundle of another corpus.")
        written = (record for record in changed.values() if record.raw is not None)
        documents = _batches(chain(_bundled(sparse, dense, changed), written), done)
        return write_again(bundle, documents, target, live, queries=queries, overwrite=overwrite), live


def write_again(
    bundle: Bundle,
    documents: Iterator[EncodedBatch],
    target: Path,
    live: LiveInfo,
    *,
    queries: Sequence[str] = (),
    overwrite: bool = False,
) -> Bundle:
    """Write a bundle that has other documents, and all else from a bundle. Raises what `write_bundle` raises."""
    manifest, tokenizer = bundle.manifest, bundle.manifest.sparse.tokenizer
    tables = dict[str, TableInput]()
    for name, task in manifest.tasks.items():
        rows = np.zeros((0, manifest.dimension), np.float32)
        if task.file is not None:
            rows = bundle.table(name).rows(np.arange(manifest.vocab_size))
        tables[name] = TableInput(task.instruction, rows, bundle.head(name))
    dtypes = [task.dtype for task in manifest.tasks.values() if task.dtype is not None]
    content = BundleContent(
        name=manifest.name,
        model=manifest.model,
        corpus=manifest.corpus,
        tokenizer_file=bundle.path / manifest.tokenizer.file,
        lowercase=manifest.tokenizer.lowercase,
        bare=manifest.tokenizer.bare,
        tables=tables,
        default_task=manifest.default_task,
        documents=documents,
        dimension=manifest.dimension,
        sparse=manifest.sparse,
        idf=bundle.idf(),
        sparse_tokenizer_file=None if tokenizer is None else bundle.path / tokenizer.file,
        table_dtype=dtypes[0] if dtypes else "float16",
        dense=manifest.dense is not None,
        queries=queries,
        weights=manifest.fusion,
        fields=manifest.fields,
        examples=manifest.examples,
        live=live,
    )
    return write_bundle(target, content, overwrite=overwrite)


def _batches(records: Iterator[Record], done: Callable[[int], object]) -> Iterator[EncodedBatch]:
    while part := list(islice(records, _READ)):
        vectors = np.array([() if record.vector is None else record.vector for record in part], np.float32)
        impacts = numbered([record.impacts for record in part])
        yield EncodedBatch([record.id for record in part], [record.raw or b"" for record in part], vectors, *impacts)
        done(len(part))


def _bundled(sparse: ImpactIndex, dense: DenseIndex | None, changed: Collection[str]) -> Iterator[Record]:
    """The documents of a bundle, as they would be in a journal, but those that were changed."""
    for first in range(0, sparse.count, _READ):
        ordinals = np.arange(first, min(first + _READ, sparse.count))
        rows = sparse.rows(first, first + len(ordinals))
        vectors = [None] * len(ordinals) if dense is None else dense.vectors(ordinals)
        for raw, vector, impacts in zip(sparse.documents(ordinals), vectors, rows, strict=True):
            if (document_id := orjson.loads(raw)["_id"]) not in changed:
                yield Record(document_id, raw, vector, impacts)
