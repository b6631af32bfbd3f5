"""The corpus that the command `corpus` writes: whole or not at all, gzipped where its name says so."""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from lightretriever.artifacts.corpus.beir import Skipped
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.atomic_file import new_file

__all__ = ["Written", "check_output", "new_corpus"]


@dataclass
class Written:
    """Counts of files that became a corpus.

    `documents` were written, of `files` read. `skipped` are bad files, or bad rows of tables, left out; `passed_over`
    are hidden entries and files of other kinds. Of tables, `rows` were read, the columns `dropped` were left out, and
    `numbered` says whether the rows' numbers are the documents' ids; else `id_column` has them.
    """

    documents: int = 0
    files: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    passed_over: int = 0
    rows: int | None = None
    dropped: list[str] = field(default_factory=list)
    numbered: bool | None = None
    id_column: str | None = None


def check_output(path: Path, *, overwrite: bool) -> None:
    """Raise CorpusError for a corpus of another ending, and for one that is there already."""
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise CorpusError(f"{path}: a corpus is called *.jsonl.gz or *.jsonl.", remedy="Choose such a name.")
    if os.path.lexists(path) and not overwrite:  # what may not be looked at is told of when it is written
        raise CorpusError(f"{path}: exists already.", remedy="Choose another name, or pass --overwrite.")


@contextmanager
def new_corpus(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The new corpus, which is all that its command makes. Raises DiskError when it can't be written."""
    with new_file(path, last=True) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield packed
        else:
            yield file
