"""A bundle on disk: one folder with everything the online service needs (docs/architecture.md lists its files).

A query bundle has all of them but the two indexes, which a cluster holds (see `artifacts.cluster`). A bundle is one
version: its parts are made, swapped and verified together.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np

from lightretriever.artifacts.bundle.checks import (
    Problem,
    ProblemError,
    check_file,
    check_hash,
    check_unlisted,
    differs,
    raise_first,
)
from lightretriever.artifacts.bundle.manifest import (
    MANIFEST_FILE,
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
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.head_queries import HeadQueries
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.tokens.table import TokenTable
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

_WHOLE = (
    "Give the whole bundle, or serve this one on its cluster: `lightretriever serve --opensearch-url URL --index NAME`."
)


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

        Without `indexes` those of Faiss and Lucene are ignored, and may be missing, as in a query bundle.
        Raises BundleError that names the file, both values and the remedy.
        """
        path = Path(path)
        manifest = read_manifest(path)
        bundle = cls(path, manifest, indexes=indexes)
        if indexes and not any((path / file).exists() for file in index_files(manifest)):
            raise BundleError(f"{path}: this is a query bundle, it has no indexes.", remedy=_WHOLE)
        raise_first(path, chain.from_iterable(check_file(path, manifest, file) for file in bundle.files))
        raise_first(path, check_unlisted(path, manifest))
        if manifest.dense is not None:
            for task in manifest.tasks:
                bundle.table(task)
        bundle.idf()
        return bundle

    def check_hashes(self) -> None:
        """Read every file, several at a time, and compare it with its hash; this also fills the page cache.

        A bundle with the right hashes is byte for byte what was written. Raises BundleError that names the file.
        """
        with ThreadPoolExecutor() as threads:
            of_file = partial(check_hash, self.path, self.manifest, forged=False)
            problems = threads.map(lambda file: list(of_file(file)), self.files)
            raise_first(self.path, chain.from_iterable(problems))

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
        raise_first(self.path, differs(file, message, expected, found))

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
            raise BundleError(f"{self.path}: the bundle has no dense leg.", remedy="Build one with index.dense: true.")
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
            raise BundleError(f"{self.path}: the bundle has no dense leg.", remedy="Build one with index.dense: true.")
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
