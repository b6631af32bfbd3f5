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
from lightretriever.artifacts.summary import Summary, megabytes


@dataclass
class Written:
    """What `corpus` wrote: `documents` of so many `texts`, files; `skipped` were bad; `passed_over` are of another
    kind, or hidden files or folders. Of a table `rows` were read, and the bad ones skipped, without the columns
    `dropped`; `numbered` says whether the ids are the rows' numbers, and `id_column` which column has them else."""

    documents: int = 0
    texts: int = 0
    rows: int | None = None
    skipped: Skipped = field(default_factory=Skipped)
    passed_over: int = 0
    dropped: list[str] = field(default_factory=list)
    numbered: bool | None = None
    id_column: str | None = None

    def summary(self, path: Path) -> Summary:
        """The summary of the corpus at `path`."""
        size, bad = path.stat().st_size, self.skipped.count
        rows = "" if self.rows is None else f"{self.rows:,} rows in "
        files = f"{self.texts:,} file{'' if self.texts == 1 else 's'}"
        lines = [f"{path}: {self.documents:,} documents of {rows}{files}, {megabytes(size)}"]
        if self.numbered:
            lines += ["ids: the numbers of the rows, from 1; --id names a column in their place"]
        elif self.id_column not in (None, "_id"):
            lines += [f'ids: column "{self.id_column}"']
        if self.dropped:
            lines += [f"dropped: {', '.join(self.dropped)}"]
        if bad:
            lines += [f"skipped: {bad:,} bad {'files' if self.rows is None else 'rows'}"]
        if self.passed_over:
            lines += [f"passed over: {self.passed_over:,} hidden files and folders, and files of other kinds"]
        facts = vars(self) | {"skipped": bad, "skipped_files": self.skipped.reasons, "bytes": size}
        return Summary(str(path), lines, facts)


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
