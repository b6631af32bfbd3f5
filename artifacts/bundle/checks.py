"""Checks of a bundle's parts against its manifest. Each yields what it found instead of raising."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from pydantic.dataclasses import dataclass

from lightretriever.artifacts.bundle.hashes import file_hashes
from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, Manifest, TokenizerInfo, head_files
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.errors import BundleError, JavaError
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.summary import Text
from lightretriever.artifacts.tokens.head_queries import HeadQueries
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.tokens.table import TokenTable
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = [
    "Problem",
    "check_dense",
    "check_file",
    "check_hash",
    "check_head",
    "check_idf",
    "check_sparse",
    "check_table",
    "check_tokenizer",
    "check_unlisted",
    "differs",
    "raise_first",
]

_BUILD = "Build the bundle again."
_FETCH = "Fetch or build the bundle again."
# Lucene leaves its lock file behind; it is empty and belongs to whoever last looked at the index.
_LOCK_FILE = "write.lock"
_HASH_NAMES: Final = {"sha256": "SHA-256", "xxh3": "XXH3"}


@dataclass(frozen=True)
class Problem:
    """One inconsistency: the file (relative to the bundle), what is wrong, both values, and what to do."""

    file: Text
    message: Text
    expected: Text
    found: Text
    remedy: Text

    def __str__(self) -> str:
        return f"{self.file}: {self.message}: expected {self.expected}, found {self.found}. {self.remedy}"


def raise_first(root: Path, problems: Iterator[Problem]) -> None:
    """Raise BundleError for the first problem, if there is one."""
    for problem in problems:
        raise BundleError(
            f"{root / problem.file}: {problem.message}: expected {problem.expected}, found {problem.found}.",
            remedy=problem.remedy,
        )


def differs(file: str, message: str, expected: object, found: object, remedy: str = _FETCH) -> Iterator[Problem]:
    """A problem when the two values are not equal."""
    if expected != found:
        yield Problem(file, message, str(expected), str(found), remedy)


def check_file(root: Path, manifest: Manifest, file: str) -> Iterator[Problem]:
    """Check whether a listed file is there, inside the bundle, a regular file, and as long as it should be."""
    path = root / file
    size = manifest.files[file].bytes
    real = Path(os.path.realpath(path))  # unlike resolve(), it raises nothing for a link to itself
    if not real.is_relative_to(os.path.realpath(root)):
        yield Problem(
            file, "a link leaves the bundle", f"a file below {root}", str(real), "Copy the file itself there."
        )
    elif not path.exists():
        yield Problem(file, "the file is missing", f"{size} bytes", "no file", _FETCH)
    elif not path.is_file():
        yield Problem(file, "not a regular file", f"{size} bytes", "something else", _FETCH)
    else:
        yield from differs(file, "wrong size", f"{size} bytes", f"{path.stat().st_size} bytes")


def check_unlisted(root: Path, manifest: Manifest) -> Iterator[Problem]:
    """Files that lie in the bundle's folder but are not part of it."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            file = (Path(folder) / name).relative_to(root).as_posix()
            is_lock = file == f"{manifest.sparse.directory}/{_LOCK_FILE}"
            if file not in manifest.files and file != MANIFEST_FILE and not is_lock:
                yield Problem(file, "the manifest does not list it", "no such file", "a file", "Remove the file.")


def check_hash(root: Path, manifest: Manifest, file: str, *, forged: bool = True) -> Iterator[Problem]:
    """Check whether the content of a file is what the manifest was written for, by every hash listed there.

    Without `forged`, by XXH3 alone, several times as fast, which finds any damage but no forgery.
    """
    info = manifest.files[file]
    expected = {"xxh3": info.xxh3} | ({"sha256": info.sha256} if forged else {})
    try:
        found = file_hashes(root / file, expected)
    except OSError as error:
        yield Problem(file, "the file can't be read", "a readable file", str(error.strerror), _FETCH)
        return
    for name in sorted(expected):
        if expected[name] != found[name]:
            message = f"wrong {_HASH_NAMES[name]}, the content was changed"
            yield Problem(file, message, expected[name], found[name], _FETCH)
            return


def check_table(root: Path, manifest: Manifest, task: str) -> Iterator[Problem]:
    """Check whether a token table has the shape and the number type that the manifest says."""
    info = manifest.tasks[task]
    if info.file is None:
        return
    try:
        table = TokenTable.open(root / info.file)
    except BundleError as error:
        yield Problem(info.file, error.message.rstrip("."), f"a table of {info.dtype}", "none", _FETCH)
        return
    shape = (manifest.vocab_size, manifest.dimension)
    yield from differs(info.file, "wrong shape (token ids, dimension)", shape, table.shape)
    yield from differs(info.file, "wrong number type", info.dtype, table.dtype)


def check_head(manifest: Manifest, task: str, head: HeadQueries) -> Iterator[Problem]:
    """Check whether the head queries of a task are as many, and their vectors as long, as the manifest says."""
    info, (_, file) = manifest.tasks[task].head, head_files(task, sparse=False)
    queries = 0 if info is None else info.queries
    yield from differs(file, "wrong shape (head queries, dimension)", (queries, manifest.dimension), head.vectors.shape)
    yield from differs(file, "wrong number type", "float16", head.vectors.dtype.name)


def check_idf(root: Path, manifest: Manifest) -> Iterator[Problem]:
    """Check whether the IDF weights, where the bundle has some, are one per token id, float32, finite and positive."""
    file = manifest.sparse.idf
    if file is None:
        return
    try:
        load_idf(root / file, manifest.sparse_vocab_size)
    except BundleError as error:
        found = error.message.removeprefix(f"{root / file}: ").rstrip(".")
        expected = f"{manifest.sparse_vocab_size} positive float32 values"
        yield Problem(file, "unusable IDF weights", expected, found, _FETCH)


def check_tokenizer(manifest: Manifest, info: TokenizerInfo, tokenizer: TextTokenizer) -> Iterator[Problem]:
    """Check whether a tokenizer is the one that the tables were made with, or the documents' terms: its hash, and the
    number of its ids, one for each row of a table."""
    message, ids = "wrong number of token ids", manifest.sparse_vocab_size
    if info is manifest.tokenizer:
        tables = ", ".join(sorted(task.file for task in manifest.tasks.values() if task.file is not None))
        message, ids = f"token ids and rows of {tables} are not equally many", manifest.vocab_size
    yield from differs(info.file, "wrong SHA-256, another tokenizer", info.sha256, tokenizer.sha256)
    yield from differs(info.file, message, ids, tokenizer.vocab_size)


def check_dense(manifest: Manifest, index: DenseIndex) -> Iterator[Problem]:
    """Check whether the Faiss index has the manifest's documents and dimension."""
    file = "" if manifest.dense is None else manifest.dense.file
    yield from differs(file, "wrong number of documents", manifest.documents, index.count)
    yield from differs(file, "wrong dimension", manifest.dimension, index.dimension)


def check_sparse(manifest: Manifest, index: ImpactIndex) -> Iterator[Problem]:
    """Check whether the Lucene index has the manifest's number of documents, and its declared fields in their kinds."""
    file = manifest.sparse.directory
    yield from differs(file, "wrong number of documents", manifest.documents, index.count)
    if not index.count:
        return
    bits = np.zeros(-(-index.count // 64) * 8, np.uint8)
    bits[0] = 1
    first = index.chosen(bits)
    for name, kind in manifest.fields.items():
        try:
            index.listed(first, Order(name, kind, descending=False), 0, 1)  # Lucene refuses a field of another kind
        except JavaError as error:
            yield Problem(MANIFEST_FILE, f'the field "{name}" is not of its kind', kind, error.message, _BUILD)
