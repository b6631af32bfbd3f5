"""The corpus that the command `corpus` writes: whole or not at all, gzipped where its name says so."""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from pydantic import Field

from lightretriever.artifacts.corpus.beir import Skipped
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.atomic_file import new_file
from lightretriever.artifacts.summary import Summary, Text, megabytes

__all__ = ["CorpusSummary", "check_output", "new_corpus"]


class CorpusSummary(Summary):
    """Of `corpus`: `texts` files became documents, `skipped` were bad, `skipped_files` names some; `passed_over` are of
    another kind, or hidden files or folders; `bytes` is the corpus' size. Of a table `rows` were read, and the bad ones
    skipped, without the columns `dropped`; `numbered` says whether the ids are the rows' numbers, and `id_column` which
    column has them else."""

    command: Literal["corpus"] = "corpus"
    documents: int = 0
    texts: int = 0
    rows: int | None = None
    skipped: int = 0
    skipped_files: list[Text] = Field(default_factory=list)
    passed_over: int = 0
    dropped: list[Text] = Field(default_factory=list)
    numbered: bool | None = None
    id_column: Text | None = None
    bytes: int = 0

    def made(self) -> Iterator[str]:
        """One line, and one each for what was skipped, passed over and dropped, and for ids that are numbers."""
        rows = "" if self.rows is None else f"{self.rows:,} rows in "
        files = f"{self.texts:,} file{'' if self.texts == 1 else 's'}"
        yield f"{self.path}: {self.documents:,} documents of {rows}{files}, {megabytes(self.bytes)}"
        if self.numbered:
            yield "ids: the numbers of the rows, from 1; --id names a column in their place"
        elif self.id_column not in (None, "_id"):
            yield f'ids: column "{self.id_column}"'
        if self.dropped:
            yield f"dropped: {', '.join(self.dropped)}"
        if self.skipped:
            yield f"skipped: {self.skipped:,} bad {'files' if self.rows is None else 'rows'}"
        if self.passed_over:
            yield f"passed over: {self.passed_over:,} hidden files and folders, and files of other kinds"

    def skip(self, reason: str) -> None:
        """Count a bad file or row, and keep the reason if it is among the first."""
        bad = Skipped(self.skipped, self.skipped_files)
        bad.add(reason)
        self.skipped = bad.count


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
