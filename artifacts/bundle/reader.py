"""A bundle on disk: one folder with everything the online service needs (docs/architecture.md lists its files).

A query bundle has all of them but the two indexes, which a cluster holds (see `artifacts.cluster`). A bundle is one
version: its parts are made, swapped and verified together. Each check of its files against the manifest yields what it
found; `Bundle` raises the first, `verify_bundle` lists all.
"""

import hashlib
import lzma
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from xxhash import xxh3_128

from lightretriever.artifacts.bundle.manifest import (
    MANIFEST_FILE,
    FileInfo,
    Manifest,
    TaskInfo,
    TokenizerInfo,
    head_files,
    read_manifest,
)
from lightretriever.artifacts.dense.index import DenseIndex, load_background
from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import BundleError, JavaError
from lightretriever.artifacts.files.atomic import new_folder
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.tokens.table import HeadQueries, TokenTable
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

HASHES: Final = ("sha256", "xxh3")
"""The hashes of a file in the manifest; the latter has 128 bits."""

# Large, because a thread waits for the interpreter after each read, and a busy service makes it wait long.
_BUFFER: Final = 2**23
_FETCH: Final = "Fetch or build the bundle again."
_INDEXED: Final = "Build one with index.dense: true."
# Lucene leaves its lock file behind; it is empty and belongs to whoever last looked at the index.
_LOCK_FILE: Final = "write.lock"
_WHOLE: Final = (
    "Give the whole bundle, or serve this one on its cluster: `lightretriever serve --opensearch-url URL --index NAME`."
)


def file_hashes(path: Path, names: Iterable[str] = HASHES) -> dict[str, str]:
    """Return hashes of a file's content as hex, by name. The file is read once. OSError."""
    hashes = {name: xxh3_128() if name == "xxh3" else hashlib.new(name) for name in names}
    buffer = memoryview(bytearray(max(1, min(_BUFFER, path.stat().st_size))))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            for digest in hashes.values():
                digest.update(buffer[:count])
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def ids_sha256(ids: Iterable[str]) -> str:
    """Return `Manifest.ids_sha256` of documents in ordinal order: the SHA-256 of their ids joined by line breaks."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def list_files(folder: Path) -> dict[str, FileInfo]:
    """Size and hashes of every file below `folder`, by POSIX path: what `Manifest.files` will hold."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileInfo(bytes=path.stat().st_size, **file_hashes(path)) for path in files
    }


@dataclass(frozen=True)
class Problem:
    """One inconsistency: the file (relative to the bundle), what is wrong, both values, and what to do."""

    file: str
    message: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.message}: expected {self.expected}, found {self.found}. {self.remedy}"


class ProblemError(BundleError):
    """A part of the bundle in the folder `root` has a `problem`."""

    def __init__(self, root: Path, problem: Problem) -> None:
        super().__init__(
            f"{root / problem.file}: {problem.message}: expected {problem.expected}, found {problem.found}.",
            remedy=problem.remedy,
        )
        self.problem = problem


def differs(file: str, message: str, expected: object, found: object, remedy: str = _FETCH) -> Iterator[Problem]:
    """A problem when the two values are not equal."""
    if expected != found:
        yield Problem(file, message, str(expected), str(found), remedy)


class Bundle:
    """An opened bundle. Its parts are opened on request, and each is checked against the manifest then."""

    def __init__(self, path: Path, manifest: Manifest, *, indexes: bool = True) -> None:
        self.path = path
        self.manifest = manifest
        self.files = [file for file in manifest.files if indexes or file not in index_files(manifest)]
        """The files that are used: without `indexes`, those of a query bundle."""

    @classmethod
    def open(cls, path: Path, *, indexes: bool = True) -> "Bundle":
        """Read the manifest and check what is cheap: every file is there, as long as listed, and nothing else is;
        tables have the right shape, IDF weights are usable. Hashes are left to `check_hashes` and `verify_bundle`.
        Without `indexes` those of Faiss and Lucene are ignored, and may be missing, as in a query bundle. Raises
        BundleError that names the file, both values and the remedy."""
        bundle = cls(Path(path), read_manifest(path), indexes=indexes)
        path, manifest = bundle.path, bundle.manifest
        if indexes and not any((path / file).exists() for file in index_files(manifest)):
            raise BundleError(f"{path}: this is a query bundle, it has no indexes.", remedy=_WHOLE)
        bundle._refuse(*map(bundle.check_file, bundle.files), bundle.unlisted())
        if manifest.dense is not None:
            for task in manifest.tasks:
                bundle.table(task)
        bundle.idf()
        return bundle

    def check_hashes(self) -> None:
        """Read every file, several at a time, and compare it with its XXH3; this also fills the page cache. A bundle
        with the right hashes is byte for byte what was written. Raises BundleError that names the file."""
        with ThreadPoolExecutor() as threads:
            self._refuse(*threads.map(lambda file: list(self.check_hash(file, ["xxh3"])), self.files))

    def check_file(self, file: str) -> Iterator[Problem]:
        """Check whether a listed file is there, inside the bundle, a regular file, and as long as it should be."""
        path, size = self.path / file, f"{self.manifest.files[file].bytes} bytes"
        real = Path(os.path.realpath(path))  # unlike resolve(), it raises nothing for a link to itself
        if not real.is_relative_to(os.path.realpath(self.path)):
            remedy = "Copy the file itself there."
            yield Problem(file, "a link leaves the bundle", f"a file below {self.path}", str(real), remedy)
        elif not path.exists():
            yield Problem(file, "the file is missing", size, "no file", _FETCH)
        elif not path.is_file():
            yield Problem(file, "not a regular file", size, "something else", _FETCH)
        else:
            yield from differs(file, "wrong size", size, f"{path.stat().st_size} bytes")

    def unlisted(self) -> Iterator[Problem]:
        """Return the files that lie in the bundle's folder but are not part of it."""
        listed = {*self.manifest.files, MANIFEST_FILE, f"{self.manifest.sparse.directory}/{_LOCK_FILE}"}
        for path in sorted(path for path in self.path.rglob("*") if not path.is_dir()):
            file = path.relative_to(self.path).as_posix()
            if file not in listed:
                yield Problem(file, "the manifest does not list it", "no such file", "a file", "Remove the file.")

    def check_hash(self, file: str, names: Sequence[str] = HASHES) -> Iterator[Problem]:
        """Compare the content of a file with its hashes of these names. XXH3 finds any damage several times as fast as
        SHA-256, but no forgery."""
        try:
            hashes = file_hashes(self.path / file, names)
        except OSError as error:
            yield Problem(file, "the file can't be read", "a readable file", str(error.strerror), _FETCH)
            return
        for name in names:
            if (expected := getattr(self.manifest.files[file], name)) != hashes[name]:
                yield Problem(file, f"wrong {name}, the content was changed", expected, hashes[name], _FETCH)
                return

    def _refuse(self, *problems: Iterable[Problem]) -> None:
        """Raise ProblemError for the first problem, if there is one."""
        for problem in chain.from_iterable(problems):
            raise ProblemError(self.path, problem)

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of dense queries. Raises BundleError when it is not the one the tables were made with."""
        tokenizer = self.read_tokenizer(self.manifest.tokenizer)
        return tokenizer.bare() if self.manifest.tokenizer.bare else tokenizer

    def read_tokenizer(self, info: TokenizerInfo) -> TextTokenizer:
        """One of the bundle's tokenizers. Raises BundleError for another one, and for another number of ids than the
        tables have rows, or the documents terms."""
        tokenizer = TextTokenizer.from_file(self.path / info.file, lowercase=info.lowercase)
        message, ids = "wrong number of token ids", self.manifest.sparse_vocab_size
        if info is self.manifest.tokenizer:
            tables = ", ".join(sorted(task.file for task in self.manifest.tasks.values() if task.file is not None))
            message, ids = f"token ids and rows of {tables} are not equally many", self.manifest.vocab_size
        self._compare(info.file, "wrong SHA-256, another tokenizer", info.sha256, tokenizer.sha256)
        self._compare(info.file, message, ids, tokenizer.vocab_size)
        return tokenizer

    def _compare(self, file: str, message: str, expected: object, found: object) -> None:
        """Raise BundleError where a part is not what the manifest says."""
        self._refuse(differs(file, message, expected, found))

    def vocabulary(self, tokenizer: TextTokenizer) -> Vocabulary:
        """The vocabulary of the sparse leg; `tokenizer` is that of the dense leg. Raises BundleError where the tokens
        are of another tokenizer, and that is not the one that the bundle was made with."""
        sparse = self.manifest.sparse
        if sparse.vocabulary == "words":
            return Vocabulary(None, sparse.language)
        if sparse.tokenizer is not None or self.manifest.tokenizer.bare:
            tokenizer = self.read_tokenizer(sparse.tokenizer or self.manifest.tokenizer)
        return Vocabulary(tokenizer, None)

    def task(self, name: str) -> TaskInfo:
        """Return the manifest's facts of a task. Raises BundleError for a task that the bundle does not have."""
        if (info := self.manifest.tasks.get(name)) is None:
            raise BundleError(
                f'{self.path}: there is no task "{name}".', remedy=f"Use one of: {', '.join(self.manifest.tasks)}."
            )
        return info

    def table(self, task: str) -> TokenTable:
        """The token table of a task, memory-mapped. Raises BundleError for a task that the bundle does not have, and
        for a table of another shape or number type."""
        info = self.task(task)
        if info.file is None:
            raise BundleError(f"{self.path}: the bundle has no dense leg.", remedy=_INDEXED)
        table, shape = TokenTable.open(self.path / info.file), (self.manifest.vocab_size, self.manifest.dimension)
        self._compare(info.file, "wrong shape (token ids, dimension)", shape, table.shape)
        self._compare(info.file, "wrong number type", info.dtype, table.dtype)
        return table

    def head(self, task: str) -> HeadQueries | None:
        """The head queries of a task, memory-mapped; None for a task without. Raises BundleError for an unknown task
        and for unusable head queries."""
        if (info := self.task(task).head) is None:
            return None
        files, shape = head_files(task), (info.queries, self.manifest.dimension)
        head = HeadQueries.open(*(self.path / file for file in files), lowercase=self.manifest.tokenizer.lowercase)
        self._compare(files[1], "wrong shape (head queries, dimension)", shape, head.vectors.shape)
        self._compare(files[1], "wrong number type", "float16", head.vectors.dtype.name)
        return head

    def idf(self) -> Float32Array | None:
        """The IDF of every term, (V,) float32; None where a token of a query weighs its count alone."""
        file = self.manifest.sparse.idf
        return None if file is None else load_idf(self.path / file, self.manifest.sparse_vocab_size)

    def dense(self) -> DenseIndex:
        """The Faiss index, memory-mapped, with the manifest's search parameters set. Raises BundleError for a bundle
        without a dense leg."""
        if (info := self.manifest.dense) is None:
            raise BundleError(f"{self.path}: the bundle has no dense leg.", remedy=_INDEXED)
        index = DenseIndex.open(self.path / info.file, info.parameters)
        self._compare(info.file, "wrong number of documents", self.manifest.documents, index.count)
        self._compare(info.file, "wrong dimension", self.manifest.dimension, index.dimension)
        return index

    def background(self) -> Float32Array | None:
        """Return the background's vectors, float32 (b, D) of length 1; None in a bundle without. Raises BundleError."""
        if (info := self.manifest.dense) is None or info.background is None:
            return None
        return load_background(self.path / info.background, self.manifest.dimension)

    def sparse(self) -> ImpactIndex:
        """The Lucene index with impacts and documents; starts the JVM. Close it after use. Raises BundleError for
        another number of documents, and for declared fields of another kind."""
        folder = self.manifest.sparse.directory
        index = ImpactIndex.open(self.path / folder)
        try:
            self._compare(folder, "wrong number of documents", self.manifest.documents, index.count)
            first = index.of(np.array([0]))
            for name, kind in self.manifest.fields.items():
                try:  # Lucene refuses a field of another kind
                    index.listed(first, Order(name, kind, descending=False), 0, 1)
                except JavaError as error:
                    message = f'the field "{name}" is not of its kind'
                    problem = Problem(MANIFEST_FILE, message, kind, error.message, "Build the bundle again.")
                    raise ProblemError(self.path, problem) from error
        except BundleError:
            index.close()
            raise
        return index


def index_files(manifest: Manifest) -> set[str]:
    """The files of the two indexes, by POSIX path: a query bundle has all others."""
    folder = PurePosixPath(manifest.sparse.directory)
    dense = set() if manifest.dense is None else {manifest.dense.file}
    return dense | {file for file in manifest.files if folder in PurePosixPath(file).parents}


def unpack(archive: Path, target: Path) -> bool:
    """Unpack a bundle in one file, an xz-compressed tar archive, to the folder `target`, all or nothing; False if it is
    there. The archive's SHA-256 is kept beside `target`, so that another archive is unpacked again. BundleError for an
    archive that is cut off or empty, for a member that leads out of `target`, and when `target` is in the way.
    OSError."""
    stamp = target.with_name(f".{target.name}.sha256")
    digest = file_sha256(archive)
    if target.is_dir() and stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
        return False
    with new_folder(target, overwrite=True, marker=MANIFEST_FILE) as folder:
        try:
            with lzma.open(archive) as stream, tarfile.open(fileobj=stream) as tar:
                tar.extractall(folder, filter="data")
                stream.seek(0, os.SEEK_END)  # reads the checksum behind the last member
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise BundleError(f"{archive}: not a whole archive: {error}.", remedy="Fetch it again.") from error
        if not (folder / MANIFEST_FILE).is_file():
            raise BundleError(f"{archive}: there is no {MANIFEST_FILE} in it.", remedy="Fetch it again.")
    stamp.write_text(digest, encoding="ascii")
    return True
