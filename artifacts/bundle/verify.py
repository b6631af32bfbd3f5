"""Check whether a bundle is exactly what its manifest says, down to every byte and every count."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lightretriever.artifacts.bundle.checks import (
    Problem,
    ProblemError,
    check_file,
    check_hash,
    check_unlisted,
    differs,
    ids_sha256,
)
from lightretriever.artifacts.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    Manifest,
    head_files,
    read_manifest,
    table_files,
)
from lightretriever.artifacts.bundle.reader import Bundle, index_files
from lightretriever.artifacts.documents.bounds import new_names
from lightretriever.artifacts.documents.document import stored_object
from lightretriever.artifacts.documents.fields import indexed_values
from lightretriever.artifacts.errors import BundleError, LightRetrieverError
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.sparse.vocabulary import term_problem

_CHUNK = 4096  # table rows, or documents, looked at together
_MIN_LENGTH, _MAX_LENGTH = 0.05, 2.0  # lengths of a vector of length 1, however coarse its codes are
_MAX_VALUE = 1e9  # of a token's row: sums of more would not be finite
_REBUILD = "Build the bundle again."


def verify_bundle(path: Path, seen: Callable[[int], object] = lambda _: None, *, indexes: bool = True) -> list[Problem]:
    """Everything that is wrong with the bundle in the folder `path`; an empty list when it is sound.

    Every file is read and hashed. What is inside a file is looked at only when its hash is right: tables (shape, type,
    finite values), head queries, IDF weights, tokenizer against tables, and the numbers of documents in Faiss, in
    Lucene and in the manifest; in Lucene also its own checksums, and ids and documents one by one. Damaged content
    gives problems, never an exception. JavaError if Java can't start, which says nothing of the bundle.

    `seen` is told bytes when they are done with: those of every file when it is hashed, and again when what is inside
    was looked at. Without `indexes` it is a query bundle: those of Faiss and Lucene are ignored.
    """
    path = Path(path)
    try:
        manifest = read_manifest(path)
    except BundleError as error:
        expected = f"a manifest of format version {FORMAT_VERSION}"
        return [Problem(MANIFEST_FILE, "the manifest can't be used", expected, error.message.rstrip("."), error.remedy)]
    if indexes:
        start_jvm()
    problems = list(check_unlisted(path, manifest))
    sound: set[str] = set()
    bundle = Bundle(path, manifest, indexes=indexes)
    for file in bundle.files:
        file_problems = list(check_file(path, manifest, file)) or list(check_hash(path, manifest, file))
        problems += file_problems
        seen(manifest.files[file].bytes)
        if not file_problems:
            sound.add(file)
    for part, files, check in _parts(manifest):
        if sound.issuperset(files):
            problems += _guarded(part, check, bundle)
        for file in files if indexes or not index_files(manifest).issuperset(files) else ():
            seen(manifest.files[file].bytes)
    return problems


Check = Callable[[Bundle], Iterator[Problem]]


def _parts(manifest: Manifest) -> Iterator[tuple[str, list[str], Check]]:
    """Each part of a bundle: its name, the files that must be sound before it is opened, and its check."""
    for tokenizer in (manifest.tokenizer, manifest.sparse.tokenizer):
        if tokenizer is not None:
            yield (
                tokenizer.file,
                [tokenizer.file],
                partial(_opened, opening=partial(Bundle.read_tokenizer, info=tokenizer)),
            )
    for task, info in manifest.tasks.items():
        if files := table_files(info):
            yield files[0], files, partial(_table, task=task)
        if info.head is not None:
            files = head_files(task)
            yield files[0], files, partial(_head, task=task)
    if manifest.dense is not None:
        yield manifest.dense.file, [manifest.dense.file], _dense
        if manifest.dense.background is not None:
            yield manifest.dense.background, [manifest.dense.background], partial(_opened, opening=Bundle.background)
    if manifest.sparse.idf is not None:
        yield manifest.sparse.idf, [manifest.sparse.idf], partial(_opened, opening=Bundle.idf)
    folder = manifest.sparse.directory
    yield folder, [file for file in manifest.files if file.startswith(f"{folder}/")], _sparse


def _guarded(part: str, check: Check, bundle: Bundle) -> list[Problem]:
    """The problems of a part; one that can't be read at all is a problem too."""
    problems: list[Problem] = []
    try:
        problems.extend(check(bundle))
    except ProblemError as error:
        problems.append(error.problem)
    except LightRetrieverError as error:
        reason = error.message.rstrip(".")
        problems.append(Problem(part, "it can't be opened", "a readable part", reason, error.remedy or _REBUILD))
    except Exception as error:  # whatever strange content makes a library raise is a finding, not our failure
        reason = f"{type(error).__name__}: {error}"
        problems.append(Problem(part, "it can't be read", "a readable part", reason, _REBUILD))
    return problems


def _opened(bundle: Bundle, opening: Callable[[Bundle], object]) -> Iterator[Problem]:
    """A part that is checked whole when it is opened."""
    opening(bundle)
    yield from ()


def _table(bundle: Bundle, task: str) -> Iterator[Problem]:
    table, (file, *_) = bundle.table(task), table_files(bundle.task(task))
    for start in range(0, table.shape[0], _CHUNK):
        rows = table.rows(np.arange(start, min(start + _CHUNK, table.shape[0])))
        bad = np.flatnonzero(~(np.abs(rows) < _MAX_VALUE).all(axis=1))
        if len(bad):
            yield Problem(file, f"row {start + bad[0]} is not finite, or huge", "numbers", str(rows[bad[0]]), _REBUILD)
            return


def _head(bundle: Bundle, task: str) -> Iterator[Problem]:
    head = bundle.head(task)
    bad = None if head is None else head.first_bad()
    if bad is not None:
        file, expected = head_files(task)[0], "a vector of length 1"
        yield Problem(file, "the values of a head query are impossible", expected, repr(bad[:80]), _REBUILD)


def _dense(bundle: Bundle) -> Iterator[Problem]:
    """Check whether each document's vector has about the length 1 (the first that has not). Quantised vectors are
    shorter or longer by what the index rounds."""
    index, file = bundle.dense(), "" if bundle.manifest.dense is None else bundle.manifest.dense.file
    for start in range(0, index.count, _CHUNK):
        ordinals = np.arange(start, min(start + _CHUNK, index.count))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found below
            lengths = np.linalg.norm(index.vectors(ordinals), axis=1)
        if (bad := np.flatnonzero(~((lengths > _MIN_LENGTH) & (lengths < _MAX_LENGTH)))).size:
            row = int(bad[0])
            message = f"the vector of document {ordinals[row]} has not the length 1"
            yield Problem(file, message, f"{_MIN_LENGTH:g} to {_MAX_LENGTH:g}", f"{lengths[row]:g}", _REBUILD)
            return


def _sparse(bundle: Bundle) -> Iterator[Problem]:
    manifest = bundle.manifest
    with bundle.sparse() as index:
        index.check()
        ids = index.ids()
        message = "ids or their order differ (SHA-256 of all ids)"
        yield from differs(manifest.sparse.directory, message, manifest.ids_sha256, ids_sha256(ids), _REBUILD)
        yield from _documents(manifest, index, ids)
        words = manifest.sparse
        for term in sorted(set().union(*index.rows(0, min(_CHUNK, index.count)))):
            if (problem := term_problem(term, words.vocabulary, manifest.sparse_vocab_size)) is not None:
                expected = f"terms of the vocabulary {words.vocabulary}"
                yield Problem(words.directory, "a term is not of the vocabulary", expected, problem, _REBUILD)
                return


def _documents(manifest: Manifest, index: ImpactIndex, ids: list[str]) -> Iterator[Problem]:
    """Check whether each stored document is one that a bundle may hold, with the id that it is indexed under and values
    of the declared kinds (the first that is not), whether as many documents have a value in the index, and whether the
    manifest names all their fields."""
    folder = manifest.sparse.directory
    names: set[str] = set()
    valued = dict.fromkeys(manifest.fields, 0)
    for start in range(0, len(ids), _CHUNK):
        ordinals = np.arange(start, min(start + _CHUNK, len(ids)))
        for ordinal, raw in zip(ordinals, index.documents(ordinals), strict=True):
            try:
                record = stored_object(raw)
                names |= new_names(record, names)
                for name in {name for name, _ in indexed_values(record, manifest.fields)}:
                    valued[name] += 1
            except ValueError as error:
                yield Problem(folder, f"document {ordinal} can't be served", ids[ordinal], str(error), _REBUILD)
                return
            if record["_id"] != ids[ordinal]:
                message = f"document {ordinal} is stored under another id"
                yield Problem(folder, message, ids[ordinal], repr(record["_id"]), _REBUILD)
                return
    for name, count in valued.items():
        message = f'documents with a value of the field "{name}"'
        yield from differs(folder, message, count, index.where(["exists", name]).count, _REBUILD)
    yield from differs(MANIFEST_FILE, "field_names", manifest.field_names, sorted(names), _REBUILD)
