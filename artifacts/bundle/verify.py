"""Check whether a bundle is exactly what its manifest says, down to every byte and every count."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lightretriever.artifacts.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    Manifest,
    head_files,
    read_manifest,
    table_files,
)
from lightretriever.artifacts.bundle.reader import (
    Bundle,
    Problem,
    ProblemError,
    differs,
    ids_sha256,
)
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
    """Return everything that is wrong with the bundle in the folder `path`.

    Every file is hashed. What is inside one is looked at only when its hash is right: tables (shape, type, finite
    values), head queries, IDF weights, tokenizer against tables, numbers of documents; in Lucene its checksums, and
    ids and documents one by one. Damaged content gives problems, never an exception. JavaError if Java can't start.

    `seen` is told the bytes of every file when it is hashed, and again when what is inside was looked at. Without
    `indexes` it is a query bundle: those of Faiss and Lucene are ignored.
    """
    path = Path(path)
    try:
        manifest = read_manifest(path)
    except BundleError as error:
        expected = f"a manifest of format version {FORMAT_VERSION}"
        return [Problem(MANIFEST_FILE, "the manifest can't be used", expected, error.message.rstrip("."), error.remedy)]
    if indexes:
        start_jvm()
    bundle = Bundle(path, manifest, indexes=indexes)
    problems, sound = list(bundle.unlisted()), set[str]()
    for file in bundle.files:
        if found := list(bundle.check_file(file)) or list(bundle.check_hash(file)):
            problems += found
        else:
            sound.add(file)
        seen(manifest.files[file].bytes)
    for part, files, found_inside in _parts(bundle):
        if sound.issuperset(files):
            problems += _guarded(part, found_inside)
        seen(sum(manifest.files[file].bytes for file in files if file in bundle.files))
    return problems


def _parts(bundle: Bundle) -> Iterator[tuple[str, list[str], Iterator[Problem]]]:
    """Return each part of a bundle: its name, the files that must be sound before it is opened, and its problems, which
    are looked for when they are asked for."""
    manifest, dense, sparse = bundle.manifest, bundle.manifest.dense, bundle.manifest.sparse
    for tokenizer in filter(None, (manifest.tokenizer, sparse.tokenizer)):
        yield tokenizer.file, [tokenizer.file], _opened(bundle.read_tokenizer, tokenizer)
    for task, info in manifest.tasks.items():
        if files := table_files(info):
            yield files[0], files, _table(bundle, task)
        if info.head is not None:
            files = head_files(task)
            yield files[0], files, _head(bundle, task)
    if dense is not None:
        yield dense.file, [dense.file], _dense(bundle, dense.file)
        if dense.background is not None:
            yield dense.background, [dense.background], _opened(bundle.background)
    if sparse.idf is not None:
        yield sparse.idf, [sparse.idf], _opened(bundle.idf)
    files = [file for file in manifest.files if file.startswith(f"{sparse.directory}/")]
    yield sparse.directory, files, _sparse(bundle)


def _guarded(part: str, found: Iterator[Problem]) -> list[Problem]:
    """Return the problems of a part; one that can't be read at all is a problem too."""
    problems = list[Problem]()
    try:
        problems.extend(found)
    except ProblemError as error:
        problems.append(error.problem)
    except Exception as error:  # whatever strange content makes a library raise is a finding, not our failure
        reason, remedy = f"{type(error).__name__}: {error}", _REBUILD
        if isinstance(error, LightRetrieverError):
            reason, remedy = error.message.rstrip("."), error.remedy or _REBUILD
        problems.append(Problem(part, "it can't be opened", "a readable part", reason, remedy))
    return problems


def _opened(opening: Callable[..., object], *given: object) -> Iterator[Problem]:
    """A part that is checked whole when it is opened."""
    opening(*given)
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


def _dense(bundle: Bundle, file: str) -> Iterator[Problem]:
    """Check whether each document's vector has about the length 1 (the first that has not). Quantised vectors are
    shorter or longer by what the index rounds."""
    index = bundle.dense()
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
